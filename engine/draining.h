#ifndef GPM_ENGINE_DRAINING_H_
#define GPM_ENGINE_DRAINING_H_

#include <cstdint>

#include "engine/batch_executor.h"
#include "engine/space.h"

namespace gpm {

/// Which buckets of the level that is being drained beside batches were given to which batch. Each
/// batch drains some before it begins, the more the larger it is: so the level is empty before the
/// new one is full, and no batch waits for all of it.
///
/// When each bucket was given out, and the batches that got them have done so, somebody has to be
/// alone for a moment to end it (Resizer).
class Draining {
 public:
  /// @param buckets of the level @param bucket_slots of a bucket
  /// @param room inserts until the table is full @param least buckets for each batch; of a small
  /// level fewer
  void Begin(std::uint64_t buckets, std::uint32_t bucket_slots, std::uint64_t room,
             std::uint64_t least) GPM_REQUIRES(store_state);
  void End() GPM_REQUIRES(store_state) { *this = {}; }

  bool active() const GPM_REQUIRES(store_state) { return buckets_ > 0; }
  /// What a batch has to drain that begins now.
  BucketRange Take(const Demand& demand) GPM_REQUIRES(store_state);
  /// It has done so. @param all no item is left in them
  void Done(const BucketRange& buckets, bool all) GPM_REQUIRES(store_state);
  /// Nobody has anything left to drain.
  bool IsOver() const GPM_REQUIRES(store_state) { return active() && done_ == buckets_; }
  /// REQUIRES: IsOver. Whether items stayed behind.
  bool left_some() const GPM_REQUIRES(store_state) { return left_some_; }
  std::uint64_t buckets_left() const GPM_REQUIRES(store_state) { return buckets_ - done_; }

 private:
  std::uint64_t buckets_ = 0;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  bool left_some_ = false;
  double least_ = 0;          ///< buckets of a batch
  double per_insert_ = 0;     ///< buckets
  double per_operation_ = 0;  ///< that inserts nothing
};

}  // namespace gpm

#endif  // GPM_ENGINE_DRAINING_H_
