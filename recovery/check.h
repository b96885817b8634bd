#ifndef GPM_RECOVERY_CHECK_H_
#define GPM_RECOVERY_CHECK_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pm/pool.h"

namespace gpm {

/// What an offline check found.
struct CheckReport {
  std::uint64_t items = 0;
  std::uint64_t slots = 0;
  std::vector<std::uint64_t> level_items;  ///< of `items`, those in each level, the newest first
  std::uint64_t insert_slots = 0;          ///< half-inserted or half-emptied; recovery clears them
  std::uint64_t duplicates = 0;            ///< further copies of a key; recovery removes them
  std::uint64_t value_cells = 0;
  std::uint64_t cells_in_use = 0;
  bool resizing = false;
  bool clean = false;
  /// Broken invariants, the first ones found (at most 16), each naming the slot: empty when the
  /// pool is sound.
  std::vector<std::string> defects;
};

/// Told now and then how many slots were visited, and of how many; by one thread at a time, not
/// always the same.
using SlotProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Verifies every invariant of a pool that no store has open, and writes nothing. A crashed pool is
/// sound: half slots (TableView::IsHalf), duplicates and an unfinished resize are reported as
/// counts, and become defects only in a pool that claims to have been closed in order. On as many
/// threads as the machine has cores, up to 16; in a large pool any of several items that share a
/// cell may be the one without defect.
/// @param path a pool file @throws Error kNotFound, kBusy, kDamaged (superblock), kIo
CheckReport CheckPool(const std::string& path, const SlotProgress& progress = {});
CheckReport CheckPool(const Pool& pool, const SlotProgress& progress = {});

/// Looks for a key in a pool, writing nothing; of several copies that a crash left it finds the one
/// that recovery keeps.
/// @param key,value of the pool's sizes
bool FindInPool(const Pool& pool, std::span<const std::byte> key, std::span<std::byte> value);

/// Calls `visit(key, value)` for valid items of a pool until it returns false, writing nothing.
/// @return whether it saw all
bool VisitPoolUntil(const Pool& pool,
                    const std::function<bool(std::span<const std::byte> key,
                                             std::span<const std::byte> value)>& visit,
                    const SlotProgress& progress = {});

/// Calls `visit(key, value)` for every valid item of a pool, writing nothing.
void VisitPool(const Pool& pool,
               const std::function<void(std::span<const std::byte> key,
                                        std::span<const std::byte> value)>& visit,
               const SlotProgress& progress = {});

}  // namespace gpm

#endif  // GPM_RECOVERY_CHECK_H_
