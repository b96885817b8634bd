#include "recovery/recover.h"

#include <fmt/format.h>

#include "gpmstore/error.h"

namespace gpm {

ScanCounters RecoverPool(Pool& pool, const RecoverySteps& steps, RecoveryStats* stats) {
  const Superblock& superblock = pool.superblock();
  const bool resizing = superblock.level_count > superblock.geometry.levels;
  stats->was_clean = superblock.clean != 0;
  const bool trusted = stats->was_clean && !resizing;
  ScanCounters found = steps.scan(trusted ? ScanMode::kTrust : ScanMode::kInspect);
  // It was not closed in order, whatever it says: second copies have to be looked for too.
  if (trusted && found.insert_slots > 0) found = steps.scan(ScanMode::kInspect);
  if (found.bad_references + found.shared_cells > 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: {} items name no value cell of the pool and {} share one; nothing "
                            "was changed; `gpmstore check` names the first",
                            pool.mapping().path(), found.bad_references, found.shared_cells));
  }
  if (found.bad_keys > 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: {} items have keys of more than {} bytes; nothing was changed; "
                            "`gpmstore check` names the first",
                            pool.mapping().path(), found.bad_keys, superblock.key_size));
  }
  stats->insert_slots_cleared = found.insert_slots;
  stats->duplicates_removed = found.duplicates;
  if (stats->was_clean) pool.SetClean(false);
  if (found.insert_slots + found.duplicates > 0) steps.scan(ScanMode::kRepair);
  if (resizing) {
    stats->resize_continued = true;
    // Counted anew: items were moved.
    if (steps.finish_resize()) found = steps.scan(ScanMode::kTrust);
  }
  return found;
}

}  // namespace gpm
