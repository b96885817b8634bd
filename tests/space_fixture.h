#ifndef GPM_TESTS_SPACE_FIXTURE_H_
#define GPM_TESTS_SPACE_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/test_util.h"

namespace gpm::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Pools that are filled, one kind of operation at a time.
class SpaceFixture : public PoolTest {
 protected:
  Store Make(std::uint32_t value_size, std::uint64_t max_bytes = 0) {
    path_ = NewPath();
    value_size_ = value_size;
    CreateOptions create;
    create.value_size = value_size;
    return Store::Create(path_, create, TestOpenOptions(max_bytes));
  }
  /// Applies one kind to keys [first, first + n), or all to one key. @return the results
  std::vector<Result> Apply(Store& store, Op op, std::uint64_t first, std::size_t n,
                            bool mixed = false, bool one_key = false) {
    std::vector<std::uint64_t> keys(n, first);
    if (!one_key) std::iota(keys.begin(), keys.end(), first);
    const std::vector<Op> ops(mixed ? n : 0, op);
    const bool writes = op != Op::kFind && op != Op::kErase;
    std::vector<std::byte> values(writes ? n * value_size_ : 0);
    for (std::size_t i = 0; i < n && writes; ++i) {
      std::memcpy(&values[i * value_size_], &keys[i], std::min<std::size_t>(8, value_size_));
    }
    std::vector<Result> results(n, Result::kInvalid);
    store.Apply({.op = op,
                 .ops = ops,
                 .keys = std::as_bytes(std::span(keys)),
                 .values = values,
                 .found = {},
                 .results = results});
    return results;
  }
  static std::size_t Count(const std::vector<Result>& results, Result result) {
    return static_cast<std::size_t>(std::count(results.begin(), results.end(), result));
  }
  /// Inserts batches of new keys until one finds no room. @return items
  std::uint64_t Fill(Store& store, std::uint64_t first, std::size_t batch) {
    std::uint64_t items = 0;
    for (;;) {
      const auto results = Apply(store, Op::kInsert, first, batch);
      items += Count(results, Result::kOk);
      first += batch;
      if (Count(results, Result::kNoSpace) > 0) return items;
    }
  }
  const std::string& path() const { return path_; }

 protected:
  std::string path_;
  std::uint32_t value_size_ = 0;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_SPACE_FIXTURE_H_
