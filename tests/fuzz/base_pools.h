#ifndef GPM_TESTS_FUZZ_BASE_POOLS_H_
#define GPM_TESTS_FUZZ_BASE_POOLS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "pm/format.h"
#include "table/layout.h"

namespace gpm::fuzz {

/// Sound pools that inputs damage: every kind of table in some state, with a few dozen items. Built
/// once in a process by the store itself, the same bytes each time.

/// Where one slot keeps its parts, as offsets in the pool.
struct SlotPlace {
  std::uint64_t state = 0;
  std::uint64_t key = 0;  ///< of keys longer than 8 bytes; else 0
  std::uint64_t reference = 0;
};

struct BasePool {
  static constexpr std::uint16_t kNothing = 0xFFFF;

  std::string name;
  std::vector<std::byte> bytes;     ///< the whole file: what the superblock in force names, no more
  int in_force = 0;                 ///< which superblock copy
  Superblock superblock;            ///< that copy
  std::vector<std::string> keys;    ///< of the items, by item number
  std::vector<std::string> values;  ///< of the items
  std::vector<bool> copied;         ///< items that are there more than once
  std::vector<SlotPlace> slots;     ///< all of them: the reserved level's first, then by level
  std::vector<std::uint16_t> used;  ///< the slots that hold valid items
  /// By 8-byte word of the pool: the item that keeps its slot or cell there, and the slot.
  std::vector<std::uint16_t> item_of_word;
  std::vector<std::uint16_t> slot_of_word;

  /// The key that a slot of a pool with this layout holds, which `bytes` are an image of; or empty.
  std::string KeyIn(const std::vector<std::byte>& image, std::uint16_t slot) const;
};

const std::vector<BasePool>& BasePools();

}  // namespace gpm::fuzz

#endif  // GPM_TESTS_FUZZ_BASE_POOLS_H_
