#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "bench/roofline_cells.h"
#include "ycsb/buffer.h"

namespace gpm::bench {
namespace {

/// Threads that copy cells to rows of their own memory, or back, as a store does for its callers.
class CpuAccessor : public Accessor {
 public:
  CpuAccessor(CellRange& range, ThreadPool& threads) : range_(range), threads_(threads) {}

  std::vector<std::uint32_t> InFlight(AccessOrder order, std::uint64_t) const override {
    if (order == AccessOrder::kDealt) return {};
    return {8, 16, 32, 64};
  }
  Timed Run(AccessKind kind, const CellChoice& choice, std::uint32_t in_flight) override;
  std::optional<MemoryRates> MeasureMemory(unsigned) override { return std::nullopt; }
  double MeasureEmptyBatch() override { return 0; }

 private:
  /// Accesses handed to a thread at once; fewer where all threads would not get some.
  static constexpr std::uint64_t kPart = 4096;
  /// Bytes of a cell that are prefetched; the hardware sees by then where the rest is.
  static constexpr std::uint64_t kPrefetchBytes = 512;
  static constexpr std::uint64_t kCacheLineBytes = 64;

  std::byte* Cell(std::uint64_t i) const {
    return range_.base() + std::uint64_t{cells_[i]} * range_.cell_bytes();
  }
  std::byte* Row(std::uint64_t i) const { return rows_.bytes().data() + i * row_bytes_; }

  void Prepare(AccessKind kind, const CellChoice& choice);
  /// The sum of the rows of cells that were read.
  std::uint64_t SumOfRows(AccessKind kind);
  /// @param access called with the number of each access; returns what is added up
  template <AccessKind kKind, class Access>
  Timed Time(std::uint64_t count, std::uint64_t in_flight, const Access& access);

  CellRange& range_;
  ThreadPool& threads_;
  std::vector<std::uint32_t> cells_;  ///< in the order of access
  std::uint64_t row_bytes_ = 0;       ///< a multiple of 8
  ycsb::Buffer rows_;                 ///< one for each access, of what it reads or writes
};

void CpuAccessor::Prepare(AccessKind kind, const CellChoice& choice) {
  cells_.resize(choice.count);
  for (std::uint64_t i = 0; i < choice.count; ++i) cells_[i] = choice[i];
  if (choice.order == AccessOrder::kOrdered) std::ranges::sort(cells_);
  row_bytes_ = kind == AccessKind::kTouch        ? kTouchBytes
               : kind == AccessKind::kSmallWrite ? 8
                                                 : range_.cell_bytes();
  const std::uint64_t bytes = choice.count * row_bytes_;
  if (rows_.bytes().size() < bytes) rows_ = ycsb::Buffer(ycsb::Memory::kHost, bytes);
  // What is written, or something that a read has to replace.
  XorOver(threads_, choice.count, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) {
      auto* const row = reinterpret_cast<std::uint64_t*>(Row(i));
      const std::uint64_t version = Changes(kind, cells_[i]) ? 1 : 2;
      for (std::uint64_t w = 0; w < row_bytes_ / 8; ++w) {
        row[w] = CellWord(cells_[i] * range_.words() + w, version);
      }
    }
    return std::uint64_t{0};
  });
}

std::uint64_t CpuAccessor::SumOfRows(AccessKind kind) {
  return XorOver(threads_, cells_.size(), [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      if (Changes(kind, cells_[i])) continue;
      const auto* const row = reinterpret_cast<const std::uint64_t*>(Row(i));
      for (std::uint64_t w = 0; w < row_bytes_ / 8; ++w) sum ^= row[w];
    }
    return sum;
  });
}

template <AccessKind kKind, class Access>
Accessor::Timed CpuAccessor::Time(std::uint64_t count, std::uint64_t in_flight,
                                  const Access& access) {
  constexpr bool kWholeCell = kKind == AccessKind::kRead || kKind == AccessKind::kWrite ||
                              kKind == AccessKind::kReadOrWrite;
  constexpr int kForWriting = Changes(kKind, 1) ? 1 : 0;
  const std::uint64_t prefetched =
      kWholeCell ? std::min<std::uint64_t>(range_.cell_bytes(), kPrefetchBytes) : 1;
  const auto prefetch = [&](std::uint64_t i) {
    for (std::uint64_t offset = 0; offset < prefetched; offset += kCacheLineBytes) {
      __builtin_prefetch(Cell(i) + offset, kForWriting);
    }
  };
  const std::uint64_t part = std::clamp<std::uint64_t>(count / threads_.threads(), 1, kPart);
  std::atomic<std::uint64_t> sum{0};
  const auto begin = std::chrono::steady_clock::now();
  threads_.Run((count + part - 1) / part, [&](std::size_t p) {
    const std::uint64_t first = p * part;
    const std::uint64_t end = std::min(count, first + part);
    std::uint64_t part_sum = 0;
    for (std::uint64_t i = first; i < std::min(end, first + in_flight); ++i) prefetch(i);
    for (std::uint64_t i = first; i < end; ++i) {
      if (i + in_flight < end) prefetch(i + in_flight);
      part_sum += access(i);
    }
    sum.fetch_add(part_sum, std::memory_order_relaxed);
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return {time.count(), sum.load()};
}

Accessor::Timed CpuAccessor::Run(AccessKind kind, const CellChoice& choice,
                                 std::uint32_t in_flight) {
  Prepare(kind, choice);
  const std::uint64_t cell_bytes = range_.cell_bytes();
  const auto copy = [](std::byte* target, const std::byte* source, std::uint64_t bytes) {
    std::memcpy(target, source, bytes);
    return std::uint64_t{0};
  };
  Timed timed;
  switch (kind) {
    case AccessKind::kTouch:
      timed = Time<AccessKind::kTouch>(choice.count, in_flight, [&](std::uint64_t i) {
        return copy(Row(i), Cell(i), kTouchBytes);
      });
      timed.sum = SumOfRows(kind);
      break;
    case AccessKind::kRead:
      timed = Time<AccessKind::kRead>(choice.count, in_flight, [&](std::uint64_t i) {
        return copy(Row(i), Cell(i), cell_bytes);
      });
      timed.sum = SumOfRows(kind);
      break;
    case AccessKind::kReadOrWrite:
      timed = Time<AccessKind::kReadOrWrite>(choice.count, in_flight, [&](std::uint64_t i) {
        if (Changes(kind, cells_[i])) return copy(Cell(i), Row(i), cell_bytes);
        return copy(Row(i), Cell(i), cell_bytes);
      });
      timed.sum = SumOfRows(kind);
      break;
    case AccessKind::kWrite:
      timed = Time<AccessKind::kWrite>(choice.count, in_flight, [&](std::uint64_t i) {
        return copy(Cell(i), Row(i), cell_bytes);
      });
      break;
    case AccessKind::kSmallWrite:
      timed = Time<AccessKind::kSmallWrite>(
          choice.count, in_flight, [&](std::uint64_t i) { return copy(Cell(i), Row(i), 8); });
      break;
    case AccessKind::kCas:
      timed = Time<AccessKind::kCas>(choice.count, in_flight, [&](std::uint64_t i) {
        const std::uint64_t index = cells_[i] * range_.words();
        std::uint64_t expected = CellWord(index, 0);
        const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(Cell(i)));
        return std::uint64_t{word.compare_exchange_strong(expected, CellWord(index, 1))};
      });
      break;
  }
  return timed;
}

}  // namespace

std::unique_ptr<Accessor> MakeCpuAccessor(CellRange& range, ThreadPool& threads) {
  return std::make_unique<CpuAccessor>(range, threads);
}

}  // namespace gpm::bench
