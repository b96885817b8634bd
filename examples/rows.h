#ifndef GPM_EXAMPLES_ROWS_H_
#define GPM_EXAMPLES_ROWS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpmstore/typed_store.h"

namespace examples {

/// The calls of one kind, and what they took.
class Meter {
 public:
  /// Makes a call, of so many operations.
  template <class Call>
  void Measure(std::size_t operations, Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    operations_ += operations;
    seconds_.push_back(taken.count());
  }

  /// Millions a second, in all calls; 0 if there were none.
  double mops() const {
    const double sum = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
    return sum > 0 ? static_cast<double>(operations_) / sum / 1e6 : 0;
  }
  double median_seconds() const {  ///< of a call; 0 if there were none
    if (seconds_.empty()) return 0;
    std::vector<double> sorted = seconds_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

  /// "  finds: 4096000 in 1000 batches, 12.3 M/s, median of a batch 0.333 ms"; nothing if there
  /// were no calls.
  void Print(const char* name) const {
    if (seconds_.empty()) return;
    std::printf("  %s: %llu in %zu batches, %.2f M/s, median of a batch %.3f ms\n", name,
                static_cast<unsigned long long>(operations_), seconds_.size(), mops(),
                median_seconds() * 1e3);
  }

 private:
  std::uint64_t operations_ = 0;
  std::vector<double> seconds_;
};

/// Rows by number, in some key-value container: all that the applications ask of one. To put
/// another in the store's place, derive from this as MapRows does. Thread safety: none.
///
/// @tparam Row trivially copyable
template <class Row>
class Rows {
 public:
  using Keys = std::span<const std::uint64_t>;

  virtual ~Rows() = default;

  /// Finds n rows, in one batch; Row{} where there is none. A key may come several times.
  /// @return how many there are not
  std::uint64_t Find(Keys keys, std::span<Row> rows) {
    std::uint64_t missing = 0;
    finds_.Measure(keys.size(), [&] { missing = DoFind(keys, rows); });
    return missing;
  }
  /// Replaces n rows, or adds them, in one batch; the keys differ. @throws gpm::Error
  void Write(Keys keys, std::span<const Row> rows) {
    writes_.Measure(keys.size(), [&] { DoWrite(keys, rows); });
  }

  virtual std::uint64_t items() const = 0;

  /// Begins to measure: forgets what was done so far, but for a cache, if there is one, which is
  /// filled with what was used most.
  void StartMeasuring() {
    finds_ = {};
    writes_ = {};
    LoadCache();
  }
  const Meter& finds() const { return finds_; }
  const Meter& writes() const { return writes_; }
  /// Says on the standard output what was measured.
  void Print() const {
    std::printf("%s\n", Describe().c_str());
    finds_.Print("finds");
    writes_.Print("writes");
  }

 protected:
  virtual std::uint64_t DoFind(Keys keys, std::span<Row> rows) = 0;
  virtual void DoWrite(Keys keys, std::span<const Row> rows) = 0;
  virtual void LoadCache() {}
  virtual std::string Describe() const = 0;

 private:
  Meter finds_;
  Meter writes_;
};

/// In a store. Arrays are in host memory, on either executor.
template <class Row>
class StoreRows : public Rows<Row> {
 public:
  using typename Rows<Row>::Keys;

  /// @param pool a file, which is made if it is not there, or "pinned:"
  StoreRows(const std::string& pool, const gpm::OpenOptions& open)
      : store_(gpm::TypedStore<std::uint64_t, Row>::OpenOrCreate(pool, {}, open)) {}

  std::uint64_t items() const override { return store_.Stats().items; }

 protected:
  std::uint64_t DoFind(Keys keys, std::span<Row> rows) override {
    results_.resize(keys.size());
    const std::uint64_t missing = store_.Find(keys, rows, results_);
    for (std::size_t i = 0; missing != 0 && i < keys.size(); ++i) {
      if (results_[i] != gpm::Result::kOk) rows[i] = Row{};
    }
    return missing;
  }
  void DoWrite(Keys keys, std::span<const Row> rows) override {
    results_.resize(keys.size());
    if (store_.Upsert(keys, rows, results_) != 0) {
      throw gpm::Error(gpm::ErrorCode::kNoSpace, "the pool has no space for all rows");
    }
  }
  void LoadCache() override {
    store_.store().RefreshCache().Wait();
    before_ = store_.Stats().cache;
  }
  std::string Describe() const override {
    const gpm::StoreStats stats = store_.Stats();
    std::string text = "store, executor " + std::string(gpm::ExecutorName(stats.executor)) +
                       ", pool on " + std::string(gpm::MediumName(stats.medium.medium)) + ", " +
                       std::to_string(stats.items) + " items of " + std::to_string(sizeof(Row)) +
                       " bytes; ";
    if (stats.cache.frames == 0) return text + "no cache";
    const auto hits = static_cast<double>(stats.cache.hits - before_.hits);
    const auto found = static_cast<double>(stats.cache.found - before_.found);
    char rate[64];
    std::snprintf(rate, sizeof(rate), "hit rate of the cache %.3f", found > 0 ? hits / found : 0);
    return text + rate;
  }

 private:
  gpm::TypedStore<std::uint64_t, Row> store_;
  std::vector<gpm::Result> results_;
  gpm::CacheStats before_;  ///< when measuring began
};

/// In a std::unordered_map: what the store's answers are compared with.
template <class Row>
class MapRows : public Rows<Row> {
 public:
  using typename Rows<Row>::Keys;

  std::uint64_t items() const override { return map_.size(); }

 protected:
  std::uint64_t DoFind(Keys keys, std::span<Row> rows) override {
    std::uint64_t missing = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = map_.find(keys[i]);
      rows[i] = found != map_.end() ? found->second : Row{};
      missing += found == map_.end();
    }
    return missing;
  }
  void DoWrite(Keys keys, std::span<const Row> rows) override {
    for (std::size_t i = 0; i < keys.size(); ++i) map_[keys[i]] = rows[i];
  }
  std::string Describe() const override {
    return "std::unordered_map, " + std::to_string(map_.size()) + " items";
  }

 private:
  std::unordered_map<std::uint64_t, Row> map_;
};

}  // namespace examples

#endif  // GPM_EXAMPLES_ROWS_H_
