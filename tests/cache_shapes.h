#ifndef GPM_TESTS_CACHE_SHAPES_H_
#define GPM_TESTS_CACHE_SHAPES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "cache/memory.h"
#include "cache/sizing.h"
#include "table/layout.h"
#include "tests/levels.h"

/// What tests of the parts of the directory and the cache share that stand alone.
namespace gpm::test {

/// @param top the newest level has 2^top buckets
inline TableView TableOf(std::uint32_t key_size, std::uint32_t value_size, std::uint32_t top,
                         Geometry geometry = {2, 2, 8}) {
  Superblock superblock{};
  superblock.key_size = key_size;
  superblock.value_size = value_size;
  superblock.geometry = geometry;
  LayLevels(&superblock, LevelsFrom(geometry, std::uint64_t{1} << top), 0);
  return MakeTableView(nullptr, superblock);
}

/// An array that counts what it allocates.
template <class T>
class CountedArray {
 public:
  CountedArray() = default;
  explicit CountedArray(std::atomic<std::uint64_t>* total_bytes) : total_bytes_(total_bytes) {}
  void Reserve(std::uint64_t count) {
    elements_ = std::make_unique<T[]>(count);
    if (total_bytes_ != nullptr) *total_bytes_ += count * sizeof(T);
  }
  T* data() const { return elements_.get(); }

 private:
  std::atomic<std::uint64_t>* total_bytes_ = nullptr;
  std::unique_ptr<T[]> elements_;
};

/// The directory, and this of the cache.
inline CacheOptions Fraction(std::optional<double> fraction, std::uint64_t bytes = 0) {
  return CacheOptions{.directory = true, .fraction = fraction, .bytes = bytes};
}

inline CacheDefaults Defaults(std::uint64_t cache_bytes = 1 << 30, bool directory = true) {
  return CacheDefaults{.directory = directory, .cache_bytes = cache_bytes};
}

}  // namespace gpm::test

#endif  // GPM_TESTS_CACHE_SHAPES_H_
