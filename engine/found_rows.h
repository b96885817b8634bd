#ifndef GPM_ENGINE_FOUND_ROWS_H_
#define GPM_ENGINE_FOUND_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/search_index.h"
#include "pm/thread_pool.h"

namespace gpm {

/// What an index gave, with room for the values of its rows: whoever finds those fills it.
struct FoundRows : public MatchedRows {
  /// @param of_version SearchIndex::version
  FoundRows(const MatchedRows& rows, std::uint64_t of_version, std::uint32_t key_size,
            std::uint32_t value_size, ThreadPool* threads)
      : version(of_version) {
    counts_ = rows.counts();
    offsets_ = rows.offsets();
    const std::uint64_t count = offsets_.back();
    keys.resize(count * key_size);
    values.resize(count * value_size);
    rows.CopyRows(count, keys.data(), nullptr, threads);
  }
  void CopyRows(std::uint64_t count, std::byte* to_keys, std::byte* to_values,
                ThreadPool* /*threads*/) const override {
    if (count == 0) return;
    std::memcpy(to_keys, keys.data(), count * (keys.size() / offsets_.back()));
    if (to_values == nullptr) return;
    std::memcpy(to_values, values.data(), count * (values.size() / offsets_.back()));
  }

  const std::uint64_t version;
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
};

}  // namespace gpm

#endif  // GPM_ENGINE_FOUND_ROWS_H_
