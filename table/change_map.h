#ifndef GPM_TABLE_CHANGE_MAP_H_
#define GPM_TABLE_CHANGE_MAP_H_

#include <cstdint>

#include "pm/annotate.h"
#include "table/hash.h"

namespace gpm {

/// Which items have changed since a snapshot, by *ranges*: keys whose hashes have the same high
/// bits. In the executor's memory, a byte for each range; a trivially copyable view, the same on
/// host and device.
///
/// Who changes an item marks its range before it ends the operation (Operations::Finish). Moving an
/// item does not change it. A mark without a change costs an increment a few bytes, and no more: it
/// lists all items of the range.
///
/// Marks are all the same, so that plain writes of them do not get in each other's way. They are
/// read when all batches have ended.
struct ChangeMap {
  std::uint8_t* marks = nullptr;  ///< null: nobody asks what changes
  std::uint32_t range_bits = 0;

  GPM_HD bool enabled() const { return marks != nullptr; }
  GPM_HD std::uint64_t RangeOf(const KeyHash& hash) const { return hash.h >> (64 - range_bits); }
  GPM_HD void Mark(const KeyHash& hash) const { MarkRange(RangeOf(hash)); }
  GPM_HD void MarkRange(std::uint64_t range) const {
#ifdef __CUDA_ARCH__
    *const_cast<volatile std::uint8_t*>(marks + range) = 1;
#else
    __atomic_store_n(marks + range, std::uint8_t{1}, __ATOMIC_RELAXED);
#endif
  }
  /// Marks range i of a map with fewer ranges, or as many: all that are in it.
  GPM_HD void MarkAll(std::uint64_t i, std::uint32_t its_range_bits) const {
    const std::uint32_t more = range_bits - its_range_bits;
    for (std::uint64_t range = i << more; range < (i + 1) << more; ++range) MarkRange(range);
  }
  /// What says whether it is marked. REQUIRES: no batch runs.
  GPM_HD const std::uint8_t* MarkOf(const KeyHash& hash) const { return marks + RangeOf(hash); }
};

}  // namespace gpm

#endif  // GPM_TABLE_CHANGE_MAP_H_
