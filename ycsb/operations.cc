#include "ycsb/operations.h"

#include <algorithm>

#include "ycsb/generators.h"

namespace gpm::ycsb {
namespace {

constexpr std::size_t kBlock = 4096;  ///< operations handed to a thread at once

}  // namespace

/// Chooses the record of an operation, as YCSB's CoreWorkload does (but for `zipf`). One thread
/// each, because `latest` remembers constants.
class OperationSource::Chooser {
 public:
  explicit Chooser(const WorkloadSpec& spec)
      : spec_(spec),
        // YCSB makes room for the records that will probably be inserted, so that a key's
        // popularity does not change when they are; and its upper bound is inclusive. Draws beyond
        // what is there are repeated.
        zipfian_(spec.records + 1 +
                     static_cast<std::uint64_t>(static_cast<double>(spec.operations) *
                                                spec.mix.insert * 2),
                 ThetaFor(Distribution::kZipfian)),
        zipf_(std::max<std::uint64_t>(spec.records, 1), ThetaFor(Distribution::kZipf)),
        latest_(std::max<std::uint64_t>(spec.records, 1) - 1, ThetaFor(Distribution::kLatest)),
        hotspot_(std::max<std::uint64_t>(spec.records, 1), spec.hotspot_data_fraction,
                 spec.hotspot_operation_fraction),
        exponential_(spec.exponential_percentile,
                     static_cast<double>(spec.records) * spec.exponential_fraction) {}

  /// @param last the highest record that exists
  std::uint64_t Choose(Random& random, std::uint64_t operation, std::uint64_t last) {
    switch (spec_.distribution) {
      case Distribution::kUniform:
        return random.NextBelow(spec_.records);
      case Distribution::kSequential:
        return operation % spec_.records;
      case Distribution::kHotspot:
        return hotspot_.Draw(random);
      case Distribution::kLatest:
        return latest_.Draw(random, last);
      case Distribution::kZipfian:
        while (true) {
          const std::uint64_t record = zipfian_.Draw(random);
          if (record <= last) return record;
        }
      case Distribution::kZipf:
        return zipf_.Draw(random);
      case Distribution::kExponential:
        return last - exponential_.Draw(random, last);
    }
    return 0;
  }

 private:
  /// A skew that is valid whatever was given for a distribution that has none.
  double ThetaFor(Distribution distribution) const {
    return spec_.distribution == distribution ? spec_.theta : Zipfian::kDefaultTheta;
  }

  const WorkloadSpec& spec_;
  ScrambledZipfian zipfian_;
  RecordZipfian zipf_;
  Latest latest_;
  Hotspot hotspot_;
  Exponential exponential_;
};

OperationSource::OperationSource(const WorkloadSpec& spec, Phase phase, std::size_t batch_rows)
    : spec_(spec),
      phase_(phase),
      batch_rows_(batch_rows),
      operations_(phase == Phase::kLoad ? spec.records : spec.operations),
      next_record_(phase == Phase::kLoad ? 0 : spec.records) {
  ValidateWorkload(spec_);
}

bool OperationSource::reads() const {
  return phase_ == Phase::kRun &&
         (spec_.mix.find > 0 || spec_.mix.missing > 0 || spec_.mix.read_modify_write > 0);
}

bool OperationSource::writes() const {
  return phase_ == Phase::kLoad || spec_.mix.update > 0 || spec_.mix.insert > 0 ||
         spec_.mix.read_modify_write > 0;
}

bool OperationSource::searches() const { return phase_ == Phase::kRun && spec_.mix.search > 0; }

std::optional<Op> OperationSource::only_kind() const {
  const Mix& mix = spec_.mix;
  if (phase_ == Phase::kLoad || mix.insert == 1) return Op::kInsert;
  if (mix.find + mix.missing == 1) return Op::kFind;
  if (mix.update == 1) return Op::kUpdate;
  if (mix.erase == 1) return Op::kErase;
  return std::nullopt;
}

Version OperationSource::VersionOf(std::uint64_t operation) const {
  // The two highest versions are left for who keeps account of them.
  return phase_ == Phase::kLoad ? 0 : static_cast<Version>(1 + operation % 0xFFFF'FFFDu);
}

std::uint64_t OperationSource::RowsOf(std::uint64_t first, std::uint64_t end) const {
  std::uint64_t rows = end - first;
  if (phase_ == Phase::kLoad || spec_.mix.read_modify_write == 0) return rows;
  for (; first < end; ++first) rows += KindOf(first) == Kind::kReadModifyWrite;
  return rows;
}

OperationSource::Kind OperationSource::KindOf(std::uint64_t operation) const {
  if (phase_ == Phase::kLoad) return Kind::kInsert;
  const Mix& mix = spec_.mix;
  double u = Random(spec_.seed, operation).NextDouble();
  if ((u -= mix.find) < 0) return Kind::kFind;
  if ((u -= mix.update) < 0) return Kind::kUpdate;
  if ((u -= mix.insert) < 0) return Kind::kInsert;
  if ((u -= mix.read_modify_write) < 0) return Kind::kReadModifyWrite;
  if ((u -= mix.missing) < 0) return Kind::kMissing;
  if ((u -= mix.erase) < 0) return Kind::kErase;
  if ((u -= mix.search) < 0) return Kind::kSearch;
  // Shares that were rounded can sum to a little less than 1: any kind that there is will do.
  if (mix.search > 0) return Kind::kSearch;
  return mix.find > 0 ? Kind::kFind : Kind::kUpdate;
}

void OperationSource::Fill(BatchBuffers& buffers, ThreadPool& threads, Chunk& chunk) {
  ChooseKinds(buffers.shape().rows, threads);
  Plan(buffers, chunk);
  threads.Run((chunk.rows + kBlock - 1) / kBlock, [&](std::size_t part) {
    FillRows(buffers, chunk, part * kBlock, std::min(chunk.rows, (part + 1) * kBlock));
  });
}

void OperationSource::ChooseKinds(std::size_t rows, ThreadPool& threads) {
  kinds_.resize(std::min<std::uint64_t>(rows, operations_ - next_));
  threads.Run((kinds_.size() + kBlock - 1) / kBlock, [&](std::size_t part) {
    const std::size_t end = std::min(kinds_.size(), (part + 1) * kBlock);
    for (std::size_t i = part * kBlock; i < end; ++i) kinds_[i] = KindOf(next_ + i);
  });
}

/// Rows, and what depends on the order of operations: the record of an insert or erase and, for
/// others, the highest record that exists (FillRows replaces it by the one that is chosen).
void OperationSource::Plan(BatchBuffers& buffers, Chunk& chunk) {
  chunk.first_operation = next_;
  chunk.rows = 0;
  chunk.batches.clear();
  chunk.row.resize(buffers.shape().rows);
  const auto add = [&](Op op, std::uint64_t record, bool missing, bool paired) {
    buffers.ops()[chunk.rows] = op;
    chunk.row[chunk.rows] = {record, next_erased_,
                             static_cast<std::uint32_t>(next_ - chunk.first_operation), missing,
                             paired};
    ++chunk.rows;
  };
  const auto add_search = [&](std::uint64_t record) {
    searches_.push_back({.record = record,
                         .oldest = next_erased_,
                         .operation = static_cast<std::uint32_t>(next_ - chunk.first_operation),
                         .search = true});
  };
  while (next_ < operations_ && chunk.rows + RowsFor(1) <= buffers.shape().rows) {
    const std::size_t first = chunk.rows;
    searches_.clear();
    for (; next_ < operations_ && chunk.rows - first + searches_.size() < batch_rows_; ++next_) {
      const std::uint64_t last = next_record_ == 0 ? 0 : next_record_ - 1;
      switch (kinds_[next_ - chunk.first_operation]) {
        case Kind::kFind:
          add(Op::kFind, last, false, false);
          break;
        case Kind::kMissing:
          add(Op::kFind, last, true, false);
          break;
        case Kind::kUpdate:
          add(Op::kUpdate, last, false, false);
          break;
        case Kind::kErase:
          if (next_erased_ < next_record_) {
            add(Op::kErase, next_erased_, false, false);
            ++next_erased_;
          } else {
            add(Op::kErase, last, false, false);
          }
          break;
        case Kind::kInsert:
          add(Op::kInsert, next_record_++, false, false);
          break;
        case Kind::kSearch:
          add_search(last);
          break;
        case Kind::kReadModifyWrite:
          add(Op::kFind, last, false, false);
          add(Op::kUpdate, last, false, true);
          break;
      }
    }
    chunk.batches.push_back(
        {first, chunk.rows - first, searches_.size(), next_ - chunk.first_operation});
    for (const Row& search : searches_) {
      buffers.ops()[chunk.rows] = Op::kFind;
      chunk.row[chunk.rows++] = search;
    }
  }
  chunk.operations = next_ - chunk.first_operation;
}

void OperationSource::FillRows(BatchBuffers& buffers, Chunk& chunk, std::size_t first,
                               std::size_t end) const {
  Chooser chooser(spec_);
  for (std::size_t i = first; i < end; ++i) {
    Row& row = chunk.row[i];
    const Op op = buffers.ops()[i];
    const std::uint64_t operation = chunk.first_operation + row.operation;
    if (op != Op::kInsert && op != Op::kErase) {
      const std::uint64_t last = row.record;
      Random random(spec_.seed, operation);
      random.Next();  // the draw that chose the kind
      row.record = chooser.Choose(random, operation, last);
      if (spec_.record_shift != 0) {
        row.record = (row.record + spec_.record_shift) % spec_.records;
      }
      if (row.gone()) {
        const std::uint64_t laps = (row.oldest - row.record + spec_.records - 1) / spec_.records;
        const std::uint64_t successor = row.record + laps * spec_.records;
        if (successor <= last) row.record = successor;
      }
    }
    if (row.search) buffers.bounds()[2 * i] = buffers.bounds()[2 * i + 1] = row.record;
    WriteKey(KeyWord(row.record, spec_.order, row.missing), buffers.key(i));
    if (op == Op::kInsert || op == Op::kUpdate) {
      WriteValue(row.record, VersionOf(operation), buffers.value(i));
    }
  }
}

}  // namespace gpm::ycsb
