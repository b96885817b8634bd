#ifndef GPM_SHARD_DIVIDED_BATCH_H_
#define GPM_SHARD_DIVIDED_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gpmstore/batch.h"
#include "shard/shard_set.h"
#include "shard/splitter.h"

namespace gpm {

/// A batch whose operations are in the order of the shards, in memory of the set: the caller's
/// arrays are read when it is made, its kinds also when it is carried out, and then the others are
/// written.
///
/// Thread safety: one thread at a time; batches beside each other.
class DividedBatch {
 public:
  /// Divides a valid batch. REQUIRES: operations, and several shards.
  /// @param batch as of ShardSet::Run
  DividedBatch(ShardSet& set, const Batch& batch);
  DividedBatch(const DividedBatch&) = delete;
  DividedBatch& operator=(const DividedBatch&) = delete;

  /// All shards carry out their parts, and results and found values go where the caller wants
  /// them. Once. @throws as ShardSet::Run
  void CarryOut(ShardSet::Call call);

 private:
  std::span<std::byte> Gather(std::span<const std::byte> rows, std::size_t row_bytes,
                              const WantedRows& wanted = {});
  /// @param starts Splitter::Starts
  Batch PartOf(std::uint32_t shard, std::span<const std::uint64_t> starts) const;
  void BringBack();

  ShardSet& set_;
  const Batch batch_;
  const bool finds_;  ///< gives back values, if they are wanted
  std::unique_ptr<Splitter> splitter_;
  // Rows of all shards, one after the other.
  std::span<std::byte> keys_;
  std::span<std::byte> ops_;
  std::span<std::byte> values_;
  std::span<std::byte> found_;
  std::span<std::byte> results_;
};

}  // namespace gpm

#endif  // GPM_SHARD_DIVIDED_BATCH_H_
