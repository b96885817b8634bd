#ifndef GPM_TABLE_CHANGE_MAP_H_
#define GPM_TABLE_CHANGE_MAP_H_

#include <cstdint>

#include "pm/annotate.h"
#include "table/hash.h"

namespace gpm {

/// Which items have changed since a snapshot, by *groups*: keys whose hashes have the same high
/// bits. In the executor's memory, a byte for each group; a trivially copyable view, the same on
/// host and device.
///
/// Who changes an item marks its group before it ends the operation (Operations::Finish). Moving an
/// item does not change it. A mark without a change costs an increment a few bytes, and no more: it
/// lists all items of the group.
///
/// Marks are all the same, so that plain writes of them do not get in each other's way. They are
/// read when all batches have ended.
struct ChangeMap {
  std::uint8_t* marks = nullptr;  ///< null: nobody asks what changes
  std::uint32_t group_bits = 0;

  GPM_HD bool enabled() const { return marks != nullptr; }
  GPM_HD std::uint64_t GroupOf(const KeyHash& hash) const { return hash.h >> (64 - group_bits); }
  GPM_HD void Mark(const KeyHash& hash) const { MarkGroup(GroupOf(hash)); }
  GPM_HD void MarkGroup(std::uint64_t group) const {
#ifdef __CUDA_ARCH__
    *const_cast<volatile std::uint8_t*>(marks + group) = 1;
#else
    __atomic_store_n(marks + group, std::uint8_t{1}, __ATOMIC_RELAXED);
#endif
  }
  /// Marks group i of a map with fewer groups, or as many: all that are in it.
  GPM_HD void MarkAll(std::uint64_t i, std::uint32_t its_group_bits) const {
    const std::uint32_t more = group_bits - its_group_bits;
    for (std::uint64_t group = i << more; group < (i + 1) << more; ++group) MarkGroup(group);
  }
  /// REQUIRES: no batch runs.
  GPM_HD bool IsMarked(const KeyHash& hash) const { return marks[GroupOf(hash)] != 0; }
};

}  // namespace gpm

#endif  // GPM_TABLE_CHANGE_MAP_H_
