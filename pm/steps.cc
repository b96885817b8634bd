#include "pm/steps.h"

namespace gpm {

std::string_view StepName(Step step) {
  switch (step) {
    case Step::kOther:
      return "other";
    case Step::kCellFlush:
      return "cell-flush";
    case Step::kKeyLock:
      return "key-lock";
    case Step::kInsertClaimCas:
      return "insert-claim-cas";
    case Step::kInsertKeyFlush:
      return "insert-key-flush";
    case Step::kInsertReferenceFlush:
      return "insert-reference-flush";
    case Step::kInsertContentsFence:
      return "insert-contents-fence";
    case Step::kInsertStateFlush:
      return "insert-state-flush";
    case Step::kInsertDoneFence:
      return "insert-done-fence";
    case Step::kUpdateCellFence:
      return "update-cell-fence";
    case Step::kUpdateReferenceCas:
      return "update-reference-cas";
    case Step::kUpdateReferenceFlush:
      return "update-reference-flush";
    case Step::kUpdateDoneFence:
      return "update-done-fence";
    case Step::kEraseStateCas:
      return "erase-state-cas";
    case Step::kEraseStateFlush:
      return "erase-state-flush";
    case Step::kEraseDoneFence:
      return "erase-done-fence";
    case Step::kGiveBackFlush:
      return "give-back-flush";
    case Step::kGiveBackFence:
      return "give-back-fence";
    case Step::kSettleFlush:
      return "settle-flush";
    case Step::kSettleFence:
      return "settle-fence";
    case Step::kDrainFlush:
      return "drain-flush";
    case Step::kDrainFence:
      return "drain-fence";
    case Step::kOpenFlush:
      return "open-flush";
    case Step::kInspectFlush:
      return "inspect-flush";
    case Step::kInspectFence:
      return "inspect-fence";
    case Step::kRepairFlush:
      return "repair-flush";
    case Step::kRepairFence:
      return "repair-fence";
    case Step::kDirectoryClaimCas:
      return "directory-claim-cas";
    case Step::kCachePutCas:
      return "cache-put-cas";
    case Step::kCacheFillCas:
      return "cache-fill-cas";
    case Step::kCacheValidate:
      return "cache-validate";
    case Step::kCacheValidateFills:
      return "cache-validate-fills";
    case Step::kCacheCloseCas:
      return "cache-close-cas";
    case Step::kZeroLevelFlush:
      return "zero-level-flush";
    case Step::kCommitContentsFence:
      return "commit-contents-fence";
    case Step::kCommitCopyFlush:
      return "commit-copy-flush";
    case Step::kCommitDoneFence:
      return "commit-done-fence";
    case Step::kCount:
      break;
  }
  return "unknown";
}

}  // namespace gpm
