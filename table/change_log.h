#ifndef GPM_TABLE_CHANGE_LOG_H_
#define GPM_TABLE_CHANGE_LOG_H_

#include <cstdint>
#include <cstring>

#include "table/hash.h"

namespace gpm {

/// The keys of the items that have changed since an instant, for who follows the changes of a store
/// (engine/kept_index.h): what it costs to look at them depends on how many they are, not on the
/// table. In host memory, by the threads of executor cpu; a trivially copyable view.
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

  void Add(const KeyHash& hash, const std::uint64_t* key) const {
    // Keys that change again and again are logged once: a place is written when the key is there.
    std::uint32_t* recently = recent + (hash.g & recent_mask);  // that this one's place is put to
    for (std::uint64_t way = 0; way < kWays; ++way) {
      std::uint32_t* const its = recent + ((hash.g ^ way) & recent_mask);
      const std::uint32_t place = __atomic_load_n(its, __ATOMIC_ACQUIRE);
      if (place == 0) {
        recently = its;
        break;
      }
      if (std::memcmp(KeyAt(place - 1), key, key_words * sizeof *key) == 0) return;
    }
    if (__atomic_load_n(logged, __ATOMIC_RELAXED) > room) return;
    const std::uint64_t at = __atomic_fetch_add(logged, 1, __ATOMIC_RELAXED);
    if (at >= room) return;
    std::memcpy(keys + at * key_words, key, key_words * sizeof *key);
    __atomic_store_n(recently, static_cast<std::uint32_t>(at + 1), __ATOMIC_RELEASE);
  }
  const std::uint64_t* KeyAt(std::uint64_t at) const { return keys + at * key_words; }
  std::uint64_t count() const { return __atomic_load_n(logged, __ATOMIC_RELAXED); }
  bool whole() const { return count() <= room; }
};

}  // namespace gpm

#endif  // GPM_TABLE_CHANGE_LOG_H_
