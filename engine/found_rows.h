#ifndef GPM_ENGINE_FOUND_ROWS_H_
#define GPM_ENGINE_FOUND_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/search_index.h"
#include "gpmstore/batch.h"
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
    results.resize(offsets_.back());
    keys.resize(results.size() * key_size);
    values.resize(results.size() * value_size);
    rows.CopyRows(results.size(), keys.data(), nullptr, threads);
  }
  void CopyRows(std::uint64_t count, std::byte* to_keys, std::byte* to_values,
                ThreadPool* /*threads*/) const override {
    if (count == 0) return;
    std::memcpy(to_keys, keys.data(), count * (keys.size() / results.size()));
    if (to_values == nullptr) return;
    std::memcpy(to_values, values.data(), count * (values.size() / results.size()));
  }

  const std::uint64_t version;
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  std::vector<Result> results;
};

}  // namespace gpm

#endif  // GPM_ENGINE_FOUND_ROWS_H_
