#ifndef GPM_SHARD_MULTISPLIT_H_
#define GPM_SHARD_MULTISPLIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pm/thread_pool.h"
#include "shard/partition.h"

namespace gpm {

/// The operations of a batch by shard (multisplit: Jünger, Hundt and Schmidt, WarpDrive, 2018,
/// section V), in batch order within each: a batch stays sequential per key.
struct Split {
  std::vector<std::uint64_t> starts;  ///< shards + 1; shard s has [starts[s], starts[s + 1])
  /// order[j]: index in the batch of the operation that comes j-th; the shards one after another.
  std::vector<std::uint32_t> order;

  std::span<const std::uint32_t> Of(std::uint32_t shard) const {
    return std::span(order).subspan(starts[shard], starts[shard + 1] - starts[shard]);
  }
};

/// @param keys n rows of `key_size` bytes, host memory, n < 2^32
/// Memory: 8 bytes for each key, of which 4 stay. @throws std::bad_alloc
Split Multisplit(std::span<const std::byte> keys, std::uint32_t key_size,
                 const Partition& partition, ThreadPool& threads);

/// Row j of `to` becomes row order[j] of `from`. Host memory, rows of `row_bytes` bytes.
/// @param to order.size() rows
void GatherRows(std::span<const std::byte> from, std::size_t row_bytes,
                std::span<const std::uint32_t> order, std::span<std::byte> to, ThreadPool& threads);

/// The way back: row order[j] of `to` becomes row j of `from`.
/// @param from order.size() rows
void ScatterRows(std::span<const std::byte> from, std::size_t row_bytes,
                 std::span<const std::uint32_t> order, std::span<std::byte> to,
                 ThreadPool& threads);

}  // namespace gpm

#endif  // GPM_SHARD_MULTISPLIT_H_
