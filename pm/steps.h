#ifndef GPM_PM_STEPS_H_
#define GPM_PM_STEPS_H_

#include <cstdint>
#include <string_view>

namespace gpm {

/// Every compare-and-swap, flush, fence and lock of the protocols, by name, in the order in which
/// each protocol takes them. Media that run batches ignore the name; the traced one records it, and
/// the mutation tests leave out each in turn and see that a test fails (docs/CRASH_CONSISTENCY.md).
enum class Step : std::uint8_t {
  kOther,  ///< plain loads and stores
  // A value cell, for insert and update.
  kCellFlush,
  // A key's lock (volatile memory): of inserts, and with a directory of every write.
  kKeyLock,
  // Insert.
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
  // Operations of a block that commit together: fences by one thread, and the barriers that let it
  // see what the others wrote, and these know that it has fenced.
  kTeamPreparedFence,
  kTeamPreparedBarrier,
  kTeamPublishedBarrier,
  kTeamDoneFence,
  kTeamDoneBarrier,
  // Results that rest on what another batch wrote.
  kSettleFlush,
  kSettleFence,
  // Draining a level.
  kDrainFlush,
  kDrainFence,
  // A level that took the oldest one's items, before the superblock names it.
  kComposeFlush,
  kComposeFence,
  // Moving a value to another cell, before the one that it had is given back to the pool.
  kMoveCellFlush,
  kMoveCellFence,
  kMoveReferenceFlush,
  kMoveDoneFence,
  // Recovery.
  kOpenFlush,
  kInspectFlush,
  kInspectFence,
  kRepairFlush,
  kRepairFence,
  // Cells whose values the host writes: its fence behind a part, and who publishes waits for that.
  kHostWrittenFence,
  kHostWrittenAwait,
  // The directory (volatile memory): an insert's claim; fences behind its contents, and behind what
  // makes them found; behind a new reference; behind an erasure; and behind the fingerprint of an
  // item that was moved up.
  kDirectoryClaimCas,
  kDirectoryContentsFence,
  kDirectoryInsertedFence,
  kDirectoryUpdatedFence,
  kDirectoryErasedFence,
  kDirectoryMovedUpFence,
  // The cache of values (volatile memory).
  kCachePutCas,
  kCacheKeepCas,
  kCacheCloseCas,
  kCacheFillingCas,
  kCacheFillCas,
  kCacheValidate,
  kCacheValidateFills,
  kCachePutFence,        ///< behind a value, before its tag
  kCacheFilledFence,     ///< behind that, before its tag
  kCacheFillsReadFence,  ///< behind the count of fillings, before the tag
  kCacheValueReadFence,  ///< behind the value, before the tag is looked at again
  kCacheTagReadFence,    ///< behind that, before the count is
  // Superblock.
  kZeroLevelFlush,
  kMoveLevelFlush,
  kCommitContentsFence,
  kCommitCopyFlush,
  kCommitDoneFence,
  kCount,
};

std::string_view StepName(Step step);  ///< "insert-claim-cas", ...

}  // namespace gpm

#endif  // GPM_PM_STEPS_H_
