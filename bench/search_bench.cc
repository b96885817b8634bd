#include "bench/search_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>
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

constexpr std::uint32_t kNumber = 0;  ///< attribute: 0 to records - 1, each in one item
constexpr std::uint32_t kGroup = 1;   ///< attribute: one of kGroups
constexpr std::uint32_t kRank = 2;    ///< attribute: of the items of a group, each has another
constexpr std::uint32_t kGroups = 1000;
constexpr std::uint64_t kMostMatches = 1'000'000;

void Require(bool right) {
  if (!right) throw Error(ErrorCode::kDamaged, "a search did not find what it must");
}

/// Which of the numbers below `records` a key's item has: a permutation, as 2^61 - 1 is a prime.
std::uint64_t NumberOf(std::uint64_t key, std::uint64_t records) {
  return key % records * (((std::uint64_t{1} << 61) - 1) % records) % records;
}

/// Items to be inserted, in host memory.
class Items {
 public:
  Items(std::uint32_t value_size, std::uint64_t records)
      : value_size_(value_size), records_(records) {}

  void Add(std::uint64_t key) {
    keys_.push_back(key);
    values_.resize(values_.size() + value_size_);
    std::byte* const value = values_.data() + values_.size() - value_size_;
    const std::uint64_t number = NumberOf(key, records_);
    const auto group = static_cast<std::uint32_t>(number % kGroups);
    const auto rank = static_cast<std::uint32_t>(number / kGroups);
    std::memcpy(value, &number, sizeof number);
    std::memcpy(value + sizeof number, &group, sizeof group);
    std::memcpy(value + sizeof number + sizeof group, &rank, sizeof rank);
  }
  void InsertInto(Store& store) {
    std::vector<Result> results(keys_.size());
    Require(store.Apply({.op = Op::kInsert,
                         .keys = std::as_bytes(std::span(keys_)),
                         .values = values_,
                         .results = results}) == 0);
    keys_.clear();
    values_.clear();
  }
  std::size_t size() const { return keys_.size(); }

 private:
  const std::uint32_t value_size_;
  const std::uint64_t records_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::byte> values_;
};

/// Queries that have one match each.
std::vector<Query> SingleMatches(std::uint64_t count, std::uint64_t records) {
  std::mt19937_64 random(1);
  std::vector<Query> queries(count);
  for (Query& query : queries) {
    const std::uint64_t number = random() % records;
    query = {{.attribute = kNumber, .least = number, .most = number},
             {.attribute = kGroup, .least = number % kGroups, .most = number % kGroups}};
  }
  return queries;
}

/// Queries that have one match each, by two attributes that many items meet.
std::vector<Query> PairMatches(std::uint64_t count, std::uint64_t records) {
  std::mt19937_64 random(1);
  std::vector<Query> queries(count);
  for (Query& query : queries) {
    const std::uint64_t number = random() % records;
    query = {{.attribute = kGroup, .least = number % kGroups, .most = number % kGroups},
             {.attribute = kRank, .least = number / kGroups, .most = number / kGroups}};
  }
  return queries;
}

/// Queries of one shape in arrays of the GPU's memory, and room for what they match.
class DeviceSearch {
 public:
  /// @param matches of each query @param value_size 0: no values are wanted
  DeviceSearch(const std::vector<Query>& queries, std::uint64_t matches, std::uint32_t value_size)
      : counts_(ycsb::Memory::kDevice, 8 * queries.size()),
        offsets_(ycsb::Memory::kDevice, 8 * (queries.size() + 1)),
        keys_(ycsb::Memory::kDevice, 8 * matches * queries.size()),
        values_(ycsb::Memory::kDevice, value_size * matches * queries.size()) {
    for (const Condition& condition : queries.front()) attributes_.push_back(condition.attribute);
    std::vector<std::uint64_t> bounds;
    for (const Query& query : queries) {
      for (const Condition& condition : query) {
        bounds.insert(bounds.end(), {condition.least, condition.most});
      }
    }
    bounds_ = ycsb::Buffer(ycsb::Memory::kDevice, 8 * bounds.size());
    bounds_.CopyFrom(std::as_bytes(std::span(bounds)));
  }
  /// @return rows
  std::uint64_t Search(Store& store, bool keys) const {
    Matches matches{.counts = counts_.as<std::uint64_t>()};
    if (keys) {
      matches.offsets = offsets_.as<std::uint64_t>();
      matches.keys = keys_.bytes();
      matches.values = values_.bytes();
    }
    store.Search({.attributes = attributes_, .bounds = bounds_.as<const std::uint64_t>()},
                 ~std::uint64_t{0}, &matches);
    return matches.rows;
  }

 private:
  std::vector<std::uint32_t> attributes_;
  ycsb::Buffer bounds_, counts_, offsets_, keys_, values_;
};

class SearchBench {
 public:
  SearchBench(const SearchBenchOptions& options, bool indexed)
      : options_(options),
        indexed_(indexed),
        pool_(options.pool),
        store_(Store::Create(pool_.path(),
                             {.value_size = options.value_size,
                              .initial_capacity = options.records,
                              .attributes = {{"number", 0, 8}, {"group", 8, 4}, {"rank", 12, 4}}},
                             Options({}))) {
    pool_.Made();
    ShowProgress("loading");
    Items items(options.value_size, options.records);
    for (std::uint64_t key = 0; key < options.records; ++key) {
      items.Add(key);
      if (items.size() == kItemsAtOnce || key + 1 == options.records) items.InsertInto(store_);
    }
  }

  json Facts() const { return StoreFacts(store_.Stats()); }

  json Searches() {
    json rows = json::array();
    const auto measure = [&](const char* what, const std::vector<Query>& queries,
                             std::uint64_t matches, const SearchOptions& options) {
      rows.push_back(Measure(what, queries, matches, options));
    };
    const std::uint64_t most = std::min(kMostMatches, options_.records);
    const auto range = [](std::uint64_t matches) {
      return std::vector<Query>{{{.attribute = kNumber, .least = 0, .most = matches - 1}}};
    };
    if (indexed_) {
      for (int i = 0; i < 2; ++i) {
        const Clock::time_point start = Clock::now();
        (void)store_.Search(SingleMatches(1, options_.records), {.keys = false});
        build_seconds_ = SecondsSince(start);
      }
    }
    measure("2^12 queries", SingleMatches(std::uint64_t{1} << 12, options_.records), 1, {});
    if (indexed_) {
      measure("2^20 queries", SingleMatches(std::uint64_t{1} << 20, options_.records), 1, {});
    }
    for (std::uint64_t matches = 1; matches < most; matches *= 10) {
      measure("1 query, keys", range(matches), matches, {});
    }
    measure("1 query, keys", range(most), most, {});
    measure("1 query, values", range(most), most, {.values = true});
    return rows;
  }
  /// Queries that want two attributes to equal numbers, before the two are a pair and after; and
  /// one that wants the first to, alone.
  json Pairs() {
    json rows = json::array();
    const auto measure = [&](const char* few, const char* many) {
      const auto each = [&](const char* what, std::uint64_t queries) {
        rows.push_back(Measure(what, PairMatches(queries, options_.records), 1, {}));
      };
      each(few, std::uint64_t{1} << 12);
      // (Without a pair, that is 2^30 rows to look at.)
      if (store_.Stats().executor == ExecutorKind::kCuda) each(many, std::uint64_t{1} << 20);
    };
    const auto search = [&](std::uint64_t queries) {
      const Clock::time_point start = Clock::now();
      (void)store_.Search(PairMatches(queries, options_.records), {.keys = false});
      return SecondsSince(start);
    };
    // Both have another partner, and keep it.
    Reopen({"group+number", "rank+number"});
    (void)search(1);
    measure("2^12, no pair", "2^20, no pair");
    Reopen({"group", "rank"});
    (void)search(1);
    const auto measure_first = [&](const char* what) {
      rows.push_back(Measure(what,
                             {{{.attribute = kGroup, .least = kGroups - 1, .most = kGroups - 1}}},
                             options_.records / kGroups, {}));
    };
    measure_first("first, no pair");
    for (int i = 0; i < 1000 && store_.Stats().search_pairs == 0; ++i) {
      pair_seconds_ = search(std::uint64_t{1} << 12);
    }
    Require(store_.Stats().search_pairs == 1);
    measure("2^12, pair", "2^20, pair");
    Reopen({"group+rank"});
    (void)search(1);
    measure_first("first, pair");
    return rows;
  }
  /// Of the search that made the pair.
  double pair_seconds() const { return pair_seconds_; }
  double build_seconds() const { return build_seconds_; }
  std::uint64_t IndexBytes() const { return store_.Stats().search_index_bytes; }

 private:
  static constexpr std::size_t kItemsAtOnce = std::size_t{1} << 18;

  OpenOptions Options(std::vector<std::string> fixed) const {
    OpenOptions open = options_.open;
    open.search_index_bytes = indexed_ ? ~std::uint64_t{0} : 0;
    open.search_indexed = std::move(fixed);
    return open;
  }
  void Reopen(std::vector<std::string> fixed) {
    store_.Close();
    store_ = Store::Open(pool_.path(), Options(std::move(fixed)));
  }
  json Measure(const char* what, const std::vector<Query>& queries, std::uint64_t matches,
               const SearchOptions& options) {
    ShowProgress(what);
    const StoreStats before = store_.Stats();
    const bool on_device = before.executor == ExecutorKind::kCuda;
    std::optional<DeviceSearch> arrays;
    if (on_device) {
      arrays.emplace(queries, matches, options.values ? options_.value_size : 0);
    }
    std::vector<double> seconds;
    for (unsigned i = 0; i < options_.repeats; ++i) {
      const Clock::time_point start = Clock::now();
      const std::uint64_t found = on_device ? arrays->Search(store_, options.keys)
                                            : store_.Search(queries, options).offsets.back();
      seconds.push_back(SecondsSince(start));
      Require(found == matches * queries.size());
    }
    const double median = Median(seconds);
    return {{"what", what},
            {"indexed", indexed_},
            {"scanned", store_.Stats().search_scans > before.search_scans},
            {"arrays", on_device ? "device" : "host"},
            {"queries", queries.size()},
            {"matches_each", matches},
            {"seconds", median},
            {"queries_per_s", static_cast<double>(queries.size()) / median},
            {"matches_per_s", static_cast<double>(matches * queries.size()) / median}};
  }

  const SearchBenchOptions& options_;
  const bool indexed_;
  RemovedAtEnd pool_;
  Store store_;
  double build_seconds_ = 0;
  double pair_seconds_ = 0;
};

}  // namespace

json MeasureSearches(const SearchBenchOptions& options) {
  json report = {{"searches", json::array()}};
  const auto add = [&](const json& rows) {
    for (const json& row : rows) report["searches"].push_back(row);
  };
  {
    SearchBench scanning(options, false);
    report["store"] = scanning.Facts();
    add(scanning.Searches());
  }
  SearchBench indexed(options, true);
  add(indexed.Searches());
  report["index_build_seconds"] = indexed.build_seconds();
  report["index_bytes"] = indexed.IndexBytes();
  add(indexed.Pairs());
  report["pair_seconds"] = indexed.pair_seconds();
  return report;
}

void PrintSearches(const json& report) {
  fmt::print("{:<18}{:>9}{:>9}{:>9}{:>9}{:>12}{:>14}{:>14}\n", "", "index", "scan", "queries",
             "matches", "ms", "queries/s", "matches/s");
  for (const json& row : report.at("searches")) {
    fmt::print("{:<18}{:>9}{:>9}{:>9}{:>9}{:>12.3f}{:>14.0f}{:>14.0f}\n",
               row.at("what").get<std::string>(), row.at("indexed").get<bool>() ? "yes" : "no",
               row.at("scanned").get<bool>() ? "yes" : "no", row.at("queries").get<std::uint64_t>(),
               row.at("matches_each").get<std::uint64_t>(), 1e3 * row.at("seconds").get<double>(),
               row.at("queries_per_s").get<double>(), row.at("matches_per_s").get<double>());
  }
  fmt::print(
      "\nthe search that made the index: {:.3f} s; its bytes: {}\n"
      "the one that made the pair: {:.3f} s\n",
      report.at("index_build_seconds").get<double>(), report.at("index_bytes").get<std::uint64_t>(),
      report.at("pair_seconds").get<double>());
}

}  // namespace gpm::bench
