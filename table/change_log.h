#ifndef GPM_TABLE_CHANGE_LOG_H_
#define GPM_TABLE_CHANGE_LOG_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "table/hash.h"
#include "table/volatile_ops.h"

namespace gpm {

/// The keys of the items that have changed since an instant, for who follows the changes of a store
/// (engine/kept_index.h): what it costs to look at them depends on how many they are, not on the
/// table. In the memory of the executor; a trivially copyable view.
///
/// It stands beside the marks of a ChangeMap and shares nothing with them: an increment of a
/// snapshot wants the ranges that changed since one instant, an index the keys since another, and
/// each begins anew at its own without asking the other. Nor do keys tell less after growth: that
/// moves items, and changes none.
///
/// Who changes an item logs its key before it ends the operation (Operations::Finish). A key may be
/// there several times, and without a change. What has no room is lost, and the log says so: then
/// it tells nothing (`whole`). It is read when all batches have ended.
struct ChangeLog {
  static constexpr std::uint64_t kWays = 4;  ///< where the place of a key may be in `recent`

  std::uint64_t* keys = nullptr;    ///< `room` of them, all words of each
  std::uint64_t* logged = nullptr;  ///< keys so far; more than `room`: some were lost
  std::uint32_t* recent = nullptr;  ///< by hash: 1 + the place of a key that is there
  std::uint64_t room = 0;           ///< less than 2^32
  std::uint64_t recent_mask = 0;    ///< of `recent`: a power of two, less 1
  std::uint32_t key_words = 0;

  static std::uint64_t RecentFor(std::uint64_t room) {
    return std::bit_ceil(std::max<std::uint64_t>(room, 1));
  }
  /// Of memory.
  static std::uint64_t Bytes(std::uint64_t room, std::uint32_t key_words) {
    return room * key_words * sizeof(std::uint64_t) + RecentFor(room) * sizeof(std::uint32_t);
  }

  /// By one of the threads that change the item.
  GPM_HD void Add(const KeyHash& hash, const std::uint64_t* key) const {
    // Keys that change again and again are logged once: a place is written when the key is there.
    std::uint32_t* recently = recent + (hash.g & recent_mask);  // that this one's place is put to
    for (std::uint64_t way = 0; way < kWays; ++way) {
      std::uint32_t* const its = recent + ((hash.g ^ way) & recent_mask);
      const std::uint32_t place = AtomicAcquire32(its);
      if (place == 0) {
        recently = its;
        break;
      }
      if (IsAt(place - 1, key)) return;
    }
    if (AtomicLoad(logged) > room) return;
    const std::uint64_t at = AtomicAdd(logged, 1);
    if (at >= room) return;
    for (std::uint32_t w = 0; w < key_words; ++w) keys[at * key_words + w] = key[w];
    AtomicRelease32(recently, static_cast<std::uint32_t>(at + 1));
  }
  GPM_HD bool IsAt(std::uint64_t place, const std::uint64_t* key) const {
    for (std::uint32_t w = 0; w < key_words; ++w) {
      if (AtomicLoad(KeyAt(place) + w) != key[w]) return false;
    }
    return true;
  }
  GPM_HD const std::uint64_t* KeyAt(std::uint64_t at) const { return keys + at * key_words; }
  /// On the host, of a log there.
  std::uint64_t count() const { return AtomicLoad(logged); }
  bool whole() const { return count() <= room; }
};

}  // namespace gpm

#endif  // GPM_TABLE_CHANGE_LOG_H_
