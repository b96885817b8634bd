#ifndef GPM_PM_STEPS_H_
#define GPM_PM_STEPS_H_

#include <cstdint>
#include <string_view>

namespace gpm {

/// Every compare-and-swap, flush, fence and lock of the protocols, by name, in the order in which
/// each protocol takes them. Media that run batches ignore the name; the traced one records it, and
/// the mutation tests leave out each in turn and see that a test fails (docs/crash_consistency.md).
enum class Step : std::uint8_t {
  kOther,  ///< plain loads and stores
  // A value cell, for insert and update.
  kCellFlush,
  // Insert.
  kInsertLock,
  kInsertClaimCas,
  kInsertKeyFlush,
  kInsertReferenceFlush,
  kInsertContentsFence,
  kInsertStateFlush,
  kInsertDoneFence,
  // Update.
  kUpdateCellFence,
  kUpdateReferenceCas,
  kUpdateReferenceFlush,
  kUpdateDoneFence,
  // Erase.
  kEraseStateCas,
  kEraseStateFlush,
  kEraseDoneFence,
  kGiveBackFlush,
  kGiveBackFence,
  // Results that rest on what another batch wrote.
  kSettleFlush,
  kSettleFence,
  // Draining a level.
  kDrainFlush,
  kDrainFence,
  // Recovery.
  kOpenFlush,
  kInspectFlush,
  kInspectFence,
  kRepairFlush,
  kRepairFence,
  // Copies of buckets (volatile memory).
  kCacheLock,
  kCacheFillLock,
  kCacheValidate,
  kCacheGrace,
  // Superblock.
  kZeroLevelFlush,
  kCommitContentsFence,
  kCommitCopyFlush,
  kCommitDoneFence,
  kCount,
};

std::string_view StepName(Step step);  ///< "insert-claim-cas", ...

}  // namespace gpm

#endif  // GPM_PM_STEPS_H_
