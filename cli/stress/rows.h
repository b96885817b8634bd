#ifndef GPM_CLI_STRESS_ROWS_H_
#define GPM_CLI_STRESS_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/operation.h"

namespace gpm::stress {

/// The bytes of keys and values, made and judged by the same text on host and GPU.
///
/// A key is a number, its *id*, in the first or in the last word of the key, or in all of a key of
/// less than a word, in which owners get fewer numbers each. A value tells which
/// key it belongs to and which operation wrote it: each operation that writes has a *version* of
/// its own, and a value's *token* is as much of the version as the value has room for. All other
/// bytes follow from id and token, so that a value of another key, a torn one, and a row that was
/// never written are recognized.

/// A lane's own keys alone are added to: their values are known, and a sum of such is judged by a
/// token that stands for all of its bytes. (Numbers in values of more than 8 bytes are from 1 to 2
/// or -2 to -1 when they have 32 bits, so that sums tell of the order of what was added.)

/// Ids of keys: whose they are, above a number.
inline constexpr unsigned kOwnerShift = 40;
inline constexpr std::uint64_t kShared = 0;   ///< of all lanes; what they hold is not known
inline constexpr std::uint64_t kWatched = 1;  ///< of all lanes, with recorded histories
inline constexpr std::uint64_t kFirstLane = 2;
inline std::uint64_t IdIn(std::uint64_t owner, std::uint64_t number) {
  return owner << kOwnerShift | number;
}
GPM_HD inline std::uint64_t OwnerOf(std::uint64_t id) { return id >> kOwnerShift; }
GPM_HD inline std::uint64_t NumberOf(std::uint64_t id) {
  return id & ((std::uint64_t{1} << kOwnerShift) - 1);
}

/// How large rows are.
struct Shape {
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 8;
  bool id_last = false;  ///< the id is the key's last 8 bytes: keys begin with the same ones
  std::uint64_t numbers = std::uint64_t{1} << kOwnerShift;  ///< that each owner has room for

  /// Bytes of a key that tell its id, and where they are.
  GPM_HD std::uint32_t id_bytes() const { return key_size < 8 ? key_size : 8; }
  GPM_HD std::uint32_t id_at() const { return id_last ? key_size - id_bytes() : 0; }
};

/// An operation, in one word: its kind above its key's id.
inline constexpr unsigned kOpShift = 56;
GPM_HD inline std::uint64_t Planned(Op op, std::uint64_t id) {
  return static_cast<std::uint64_t>(op) << kOpShift | id;
}
GPM_HD inline Op OpOf(std::uint64_t planned) { return static_cast<Op>(planned >> kOpShift); }
GPM_HD inline std::uint64_t IdOf(std::uint64_t planned) {
  return planned & ((std::uint64_t{1} << kOpShift) - 1);
}

/// What rows of `found` and results hold before a batch.
inline constexpr std::uint64_t kPoison = 0xA5A5A5A5A5A5A5A5ull;
inline constexpr std::uint8_t kPoisonResult = 0xEE;
/// Instead of a token: the row is not a value of its key; is still poison. No version equals them.
inline constexpr std::uint64_t kWrongRow = ~std::uint64_t{0};
inline constexpr std::uint64_t kPoisonRow = ~std::uint64_t{1};

/// The arrays of a batch; null: there is none, or somebody else fills it.
struct Rows {
  Shape shape;
  std::uint32_t n = 0;
  const std::uint64_t* plan = nullptr;  ///< by operation, as Planned
  std::uint64_t first_version = 0;      ///< operation i writes version first_version + i
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::byte* ops = nullptr;
  std::byte* found = nullptr;
  std::byte* results = nullptr;
};

/// What a batch answered, for the checks on the host.
struct Answers {
  std::uint64_t* tokens = nullptr;  ///< of finds that are ok; kWrongRow, kPoisonRow
  std::uint8_t* results = nullptr;
};

GPM_HD inline std::uint32_t Words(std::uint32_t bytes) { return (bytes + 7) / 8; }

/// What stands for an id in a key. Id 1 stands for all ones, which, like 0, is also a reserved
/// state word.
GPM_HD inline std::uint64_t KeyNumber(const Shape& shape, std::uint64_t id) {
  return id == 1 ? ~std::uint64_t{0} >> (64 - 8 * shape.id_bytes())
                 : OwnerOf(id) * shape.numbers + NumberOf(id);
}
/// Word `word` of a key: the bytes of it that tell the id, between zeros.
GPM_HD inline std::uint64_t KeyWord(const Shape& shape, std::uint64_t id, std::uint32_t word) {
  const std::uint32_t begin = 8 * word;
  const std::uint32_t at = shape.id_at();
  if (begin + 8 <= at || begin >= at + 8) return 0;
  const std::uint64_t number = KeyNumber(shape, id);
  return begin < at ? number << 8 * (at - begin) : number >> 8 * (begin - at);
}

GPM_HD inline std::uint32_t TokenBits(std::uint32_t value_size) {
  return value_size > 8 ? 64 : value_size == 8 ? 40 : value_size >= 4 ? 8 * value_size - 16 : 0;
}
GPM_HD inline std::uint64_t TokenOf(std::uint32_t value_size, std::uint64_t version) {
  const std::uint32_t bits = TokenBits(value_size);
  return bits == 64 ? version : Scramble(version) & ((std::uint64_t{1} << bits) - 1);
}
GPM_HD inline std::uint64_t ValueWord(std::uint32_t value_size, std::uint64_t id,
                                      std::uint64_t token, std::uint32_t word) {
  const std::uint32_t bits = TokenBits(value_size);
  if (bits == 64 && word == 0) return token;
  const std::uint64_t check = Scramble(token + Scramble(id + 1) + word * 0xD6E8FEB86659FD93ull);
  constexpr std::uint64_t kExponents = 0x7F8000007F800000ull;
  constexpr std::uint64_t kOnes = 0x3F8000003F800000ull;
  return bits == 64 ? (check & ~kExponents) | kOnes : token | check << bits;
}

/// The bytes of word `word` of a row of `bytes` bytes: the last one may be short.
GPM_HD inline std::uint32_t WordBytes(std::uint32_t bytes, std::uint32_t word) {
  return bytes - 8 * word < 8 ? bytes - 8 * word : 8;
}
GPM_HD inline std::uint64_t Cut(std::uint64_t value, std::uint32_t bytes) {
  return bytes == 8 ? value : value & ((std::uint64_t{1} << 8 * bytes) - 1);
}
GPM_HD inline void PutWord(std::byte* row, std::uint32_t bytes, std::uint32_t word,
                           std::uint64_t value) {
  const std::uint32_t count = WordBytes(bytes, word);
  std::byte* const at = row + 8 * word;
  if (count == 8 && reinterpret_cast<std::uintptr_t>(at) % 8 == 0) {
    *reinterpret_cast<std::uint64_t*>(at) = value;
    return;
  }
  for (std::uint32_t b = 0; b < count; ++b) at[b] = static_cast<std::byte>(value >> 8 * b);
}
GPM_HD inline std::uint64_t GetWord(const std::byte* row, std::uint32_t bytes, std::uint32_t word) {
  const std::uint32_t count = WordBytes(bytes, word);
  const std::byte* const at = row + 8 * word;
  if (count == 8 && reinterpret_cast<std::uintptr_t>(at) % 8 == 0) {
    return *reinterpret_cast<const std::uint64_t*>(at);
  }
  std::uint64_t value = 0;
  for (std::uint32_t b = 0; b < count; ++b) {
    value |= static_cast<std::uint64_t>(at[b]) << 8 * b;
  }
  return value;
}

/// The words that FillWord is called for, by operation.
GPM_HD inline std::uint32_t WordsToFill(const Rows& rows) {
  const std::uint32_t of_key = rows.keys == nullptr ? 1 : Words(rows.shape.key_size);
  const std::uint32_t of_value =
      rows.values == nullptr && rows.found == nullptr ? 1 : Words(rows.shape.value_size);
  return of_key > of_value ? of_key : of_value;
}

/// Word `word` of all that operation `i` is given: key, value, kind, and poison for its answer.
GPM_HD inline void FillWord(const Rows& rows, std::uint32_t i, std::uint32_t word) {
  const Shape& shape = rows.shape;
  const std::uint64_t id = IdOf(rows.plan[i]);
  if (rows.keys != nullptr && word < Words(shape.key_size)) {
    PutWord(rows.keys + std::size_t{i} * shape.key_size, shape.key_size, word,
            KeyWord(shape, id, word));
  }
  if (word < Words(shape.value_size)) {
    const std::size_t at = std::size_t{i} * shape.value_size;
    if (rows.values != nullptr) {
      const std::uint64_t token = TokenOf(shape.value_size, rows.first_version + i);
      PutWord(rows.values + at, shape.value_size, word,
              ValueWord(shape.value_size, id, token, word));
    }
    if (rows.found != nullptr) PutWord(rows.found + at, shape.value_size, word, kPoison);
  }
  if (word != 0) return;
  if (rows.ops != nullptr) rows.ops[i] = static_cast<std::byte>(OpOf(rows.plan[i]));
  if (rows.results != nullptr) rows.results[i] = std::byte{kPoisonResult};
}

/// Whether row `i` of `found` has to be a value.
GPM_HD inline bool IsAnswer(const Rows& rows, std::uint32_t i) {
  return rows.found != nullptr &&
         HasFound(OpOf(rows.plan[i]), static_cast<Result>(rows.results[i]));
}
/// The token that a row begins with, whole or not.
GPM_HD inline std::uint64_t TokenIn(const std::byte* row, std::uint32_t value_size) {
  const std::uint64_t word = GetWord(row, value_size, 0);
  const std::uint32_t bits = TokenBits(value_size);
  return bits == 64 ? word : word & ((std::uint64_t{1} << bits) - 1);
}
GPM_HD inline bool IsWord(const std::byte* row, std::uint32_t value_size, std::uint64_t id,
                          std::uint64_t token, std::uint32_t word) {
  return GetWord(row, value_size, word) ==
         Cut(ValueWord(value_size, id, token, word), WordBytes(value_size, word));
}
/// The part of a word in a sum's token, which is the sum of all parts, by TokenOfSum.
GPM_HD inline std::uint64_t SumPart(const std::byte* row, std::uint32_t value_size,
                                    std::uint32_t word) {
  return Scramble(GetWord(row, value_size, word) + (word + 1) * 0xD6E8FEB86659FD93ull);
}
/// No token of a value that was written.
GPM_HD inline std::uint64_t TokenOfSum(std::uint64_t parts) {
  return parts | std::uint64_t{1} << 63;
}
/// What is said of a row whose words are not all right. @param parts of all words
GPM_HD inline std::uint64_t OtherToken(const std::byte* row, std::uint32_t value_size,
                                       std::uint64_t id, std::uint64_t parts) {
  if (GetWord(row, value_size, 0) == Cut(kPoison, WordBytes(value_size, 0))) return kPoisonRow;
  return OwnerOf(id) >= kFirstLane ? TokenOfSum(parts) : kWrongRow;
}

/// The token of a value of key `id`, or kWrongRow, kPoisonRow.
inline std::uint64_t JudgeRow(const std::byte* row, std::uint32_t value_size, std::uint64_t id) {
  const std::uint64_t token = TokenIn(row, value_size);
  const std::uint32_t words = Words(value_size);
  std::uint32_t word = 0;
  while (word < words && IsWord(row, value_size, id, token, word)) ++word;
  if (word == words) return token;
  std::uint64_t parts = 0;
  for (word = 0; word < words; ++word) parts += SumPart(row, value_size, word);
  return OtherToken(row, value_size, id, parts);
}

/// The value with a token that an operation writes.
inline void PutValueRow(std::byte* row, std::uint32_t value_size, std::uint64_t id,
                        std::uint64_t token) {
  for (std::uint32_t word = 0; word < Words(value_size); ++word) {
    PutWord(row, value_size, word, ValueWord(value_size, id, token, word));
  }
}

/// On the host; cli/stress/gpu.h has the same for arrays that a GPU reaches.
inline void FillRows(const Rows& rows) {
  const std::uint32_t words = WordsToFill(rows);
  for (std::uint32_t i = 0; i < rows.n; ++i) {
    for (std::uint32_t word = 0; word < words; ++word) FillWord(rows, i, word);
  }
}
inline void JudgeRows(const Rows& rows, const Answers& answers) {
  for (std::uint32_t i = 0; i < rows.n; ++i) {
    answers.results[i] = static_cast<std::uint8_t>(rows.results[i]);
    if (!IsAnswer(rows, i)) continue;
    answers.tokens[i] = JudgeRow(rows.found + std::size_t{i} * rows.shape.value_size,
                                 rows.shape.value_size, IdOf(rows.plan[i]));
  }
}

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ROWS_H_
