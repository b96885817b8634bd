#ifndef GPM_TABLE_KEY_ROWS_H_
#define GPM_TABLE_KEY_ROWS_H_

#include <cstdint>
#include <cstring>

#include "pm/format.h"

namespace gpm {

/// Keys as users have them, and as tables have them.
///
/// A user's keys are *rows* of exactly key_size bytes, one behind the other, at any alignment. A
/// table's keys are whole words, with zeros behind the key's own bytes. Rows are padded once, where
/// a batch begins, so that protocols and kernels see words alone; keys are narrowed where they are
/// handed out. For sizes that are multiples of 8 the two are the same.

/// Whether rows of this size are padded.
GPM_HD constexpr bool ArePadded(std::uint32_t key_size) { return key_size % 8 != 0; }

/// Copies a row to KeyWords(key_size) words.
inline void PadKey(const void* row, std::uint32_t key_size, std::uint64_t* words) {
  words[KeyWords(key_size) - 1] = 0;
  std::memcpy(words, row, key_size);
}

/// Copies `count` padded keys to rows.
inline void NarrowKeys(const std::uint64_t* words, std::uint64_t count, std::uint32_t key_size,
                       std::byte* rows) {
  if (!ArePadded(key_size)) {
    std::memcpy(rows, words, count * key_size);
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(rows + i * key_size, words + i * KeyWords(key_size), key_size);
  }
}

/// The word that `bytes` bytes of a row begin, or 8 of them if there are more: zeros follow.
GPM_HD inline std::uint64_t PaddedWord(const std::byte* row, std::uint32_t bytes) {
  std::uint64_t word = 0;
  for (std::uint32_t b = 0; b < 8 && b < bytes; ++b) {
    word |= static_cast<std::uint64_t>(row[b]) << (8 * b);
  }
  return word;
}

/// Whether zeros follow a key's own bytes, as they must.
GPM_HD inline bool IsPadded(const std::uint64_t* words, std::uint32_t key_size) {
  return !ArePadded(key_size) || words[key_size / 8] >> (8 * (key_size % 8)) == 0;
}

}  // namespace gpm

#endif  // GPM_TABLE_KEY_ROWS_H_
