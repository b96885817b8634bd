#include "bench/search_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "gpmstore/store.h"
#include "pm/clock.h"
#include "ycsb/buffer.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

constexpr std::uint64_t kSmallBatch = std::uint64_t{1} << 12;
constexpr std::uint64_t kRoundShare = 32;
constexpr std::uint32_t kGroups = 1000;
constexpr std::uint64_t kKeySize = 8;

void Require(bool right, const char* what) {
  if (!right) throw Error(ErrorCode::kDamaged, what);
}

/// A store with two attributes, and the operations of a round, where its executor takes them best.
class Writes {
 public:
  Writes(const SearchBenchOptions& options, bool indexed)
      : options_(options),
        indexed_(indexed),
        round_(std::max<std::uint64_t>(1, options.records / kRoundShare)),
        pool_(options.pool),
        store_([&] {
          OpenOptions open = options.open;
          open.search_index_bytes = indexed ? ~std::uint64_t{0} : 0;
          return Store::Create(options.pool,
                               {.value_size = options.value_size,
                                .initial_capacity = 2 * options.records,
                                .attributes = {{"number", 0, 8}, {"group", 8, 4}}},
                               open);
        }()),
        memory_(store_.Stats().executor == ExecutorKind::kCuda ? ycsb::Memory::kDevice
                                                               : ycsb::Memory::kHost),
        keys_(memory_, round_ * kKeySize),
        values_(memory_, round_ * options.value_size),
        results_(memory_, round_) {
    pool_.Made();
    while (next_key_ < options.records) (void)Round(Op::kInsert, round_);
    // By the second search an index is made.
    for (int i = 0; i < 2; ++i) Search();
  }

  json Measure(Op kind, std::uint64_t batch) {
    const StoreStats before = store_.Stats();
    std::vector<double> writes;
    std::vector<double> with_search;
    for (unsigned i = 0; i < options_.repeats; ++i) {
      const double seconds = Round(kind, batch);
      const Clock::time_point start = Clock::now();
      if (indexed_) Search();
      writes.push_back(static_cast<double>(round_) / seconds);
      with_search.push_back(static_cast<double>(round_) / (seconds + SecondsSince(start)));
    }
    const StoreStats after = store_.Stats();
    // (One that much has changed since is made anew, by the search whose time is counted.)
    Require(!indexed_ || after.search_scans - before.search_scans ==
                             after.search_indexes_made - before.search_indexes_made,
            "a search did not find an index that followed what was written");
    return {{"kind", OpName(kind)},
            {"batch", batch},
            {"indexed", indexed_},
            {"ops_per_s", Median(writes)},
            {"with_search_ops_per_s", Median(with_search)}};
  }
  std::uint64_t round() const { return round_; }

 private:
  /// @return seconds that its batches took
  double Round(Op kind, std::uint64_t batch) {
    std::vector<std::uint64_t> keys(round_);
    std::vector<std::byte> values(round_ * options_.value_size);
    for (std::uint64_t i = 0; i < round_; ++i) {
      keys[i] = kind == Op::kInsert ? next_key_++ : random_() % next_key_;
      const std::uint64_t number = random_();
      const auto group = static_cast<std::uint32_t>(number % kGroups);
      std::byte* const value = values.data() + i * options_.value_size;
      std::memset(value, static_cast<int>(number & 0xFF), options_.value_size);
      std::memcpy(value, &number, sizeof number);
      std::memcpy(value + sizeof number, &group, sizeof group);
    }
    keys_.CopyFrom(std::as_bytes(std::span(keys)));
    values_.CopyFrom(values);
    const Clock::time_point start = Clock::now();
    for (std::uint64_t first = 0; first < round_; first += batch) {
      const std::uint64_t n = std::min(batch, round_ - first);
      store_.Apply(
          {.op = kind,
           .keys = keys_.bytes().subspan(first * kKeySize, n * kKeySize),
           .values = values_.bytes().subspan(first * options_.value_size, n * options_.value_size),
           .results = results_.as<Result>().subspan(first, n)});
    }
    const double seconds = SecondsSince(start);
    std::vector<Result> results(round_);
    results_.CopyTo(std::as_writable_bytes(std::span(results)));
    Require(std::ranges::all_of(results, [](Result result) { return result == Result::kOk; }),
            "a batch beside an index did not do what it must");
    return seconds;
  }
  void Search() {
    (void)store_.Search(std::vector<Query>{{{.attribute = 0, .least = 1, .most = 1},
                                            {.attribute = 1, .least = 1, .most = 1}}},
                        {.keys = false});
  }

  const SearchBenchOptions& options_;
  const bool indexed_;
  const std::uint64_t round_;
  RemovedAtEnd pool_;
  Store store_;
  const ycsb::Memory memory_;
  ycsb::Buffer keys_, values_, results_;
  std::uint64_t next_key_ = 0;
  std::mt19937_64 random_{3};
};

}  // namespace

json MeasureWritesBesideIndex(const SearchBenchOptions& options) {
  json rows = json::array();
  for (const bool indexed : {false, true}) {
    ShowProgress(indexed ? "writes beside an index" : "writes without an index");
    Writes writes(options, indexed);
    for (const Op kind : {Op::kInsert, Op::kUpdate}) {
      for (const std::uint64_t batch : {std::min(kSmallBatch, writes.round()), writes.round()}) {
        rows.push_back(writes.Measure(kind, batch));
      }
    }
  }
  return rows;
}

void PrintWritesBesideIndex(const json& rows) {
  fmt::print("\n{:<8}{:>9}{:>9}{:>14}{:>26}\n", "", "batch", "index", "operations/s",
             "and a search each round");
  for (const json& row : rows) {
    fmt::print("{:<8}{:>9}{:>9}{:>14.0f}{:>26.0f}\n", row.at("kind").get<std::string>(),
               row.at("batch").get<std::uint64_t>(), row.at("indexed").get<bool>() ? "yes" : "no",
               row.at("ops_per_s").get<double>(), row.at("with_search_ops_per_s").get<double>());
  }
}

}  // namespace gpm::bench
