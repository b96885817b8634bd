#ifndef GPM_TABLE_PLAN_H_
#define GPM_TABLE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "table/elements.h"
#include "table/layout.h"

namespace gpm {

/// What to do with a key, depending on whether it is there. Every operation is a plan, and so is
/// any sequence of operations on one key (engine/combining.h).
enum class Action : std::uint8_t { kKeep, kWrite, kErase, kAdd };

/// Whether an action writes a value, so that it takes a cell.
GPM_HD constexpr bool WritesValue(Action action) {
  return action == Action::kWrite || action == Action::kAdd;
}

struct Plan {
  Action if_absent = Action::kKeep;  ///< kKeep or kWrite
  Action if_present = Action::kKeep;
  const std::byte* absent_value = nullptr;  ///< value_size bytes; written if absent
  union {
    const std::byte* present_value = nullptr;  ///< kWrite: written if present
    Addends* addends;                          ///< kAdd: added to the value if present
  };
};

/// What an operation could not go on for want of; nothing was changed then.
enum class Shortage : std::uint8_t { kNothing, kSlot, kCell };

/// What Apply found, and did.
struct Outcome {
  bool present = false;                    ///< the key was there before
  Shortage shortage = Shortage::kNothing;  ///< the plan could not be carried out
  std::uint32_t position = 0;              ///< present: its candidate slot
  std::uint64_t reference = 0;             ///< present: the value reference it had
};

/// Where a key was found.
struct Hint {
  Slot slot;                   ///< no bucket: nowhere
  std::uint32_t position = 0;  ///< its number among the candidate slots
};

}  // namespace gpm

#endif  // GPM_TABLE_PLAN_H_
