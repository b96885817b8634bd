#ifndef GPM_TABLE_GROUP_H_
#define GPM_TABLE_GROUP_H_

#include <cstdint>

#include "pm/annotate.h"

namespace gpm {

/// A group of one thread, on the host or on the device.
struct ThreadGroup {
  static constexpr std::uint32_t kSize = 1;
  GPM_HD std::uint32_t Lane() const { return 0; }
  GPM_HD bool IsLeader() const { return true; }
  GPM_HD void Sync() const {}
  template <class Word>
  GPM_HD Word Broadcast(Word value) const {
    return value;
  }
  GPM_HD std::uint32_t Ballot(bool bit) const { return bit ? 1u : 0u; }
  GPM_HD std::uint32_t Or(std::uint32_t bits) const { return bits; }  ///< of all threads' bits
};

}  // namespace gpm

#endif  // GPM_TABLE_GROUP_H_
