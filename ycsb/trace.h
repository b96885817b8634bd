#ifndef GPM_YCSB_TRACE_H_
#define GPM_YCSB_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"

namespace gpm::ycsb {

/// One operation of a trace. The texts belong to the Trace.
struct TraceLine {
  Op op = Op::kFind;       ///< READ: find, INSERT: insert, UPDATE: update, DELETE: erase
  std::uint64_t key = 0;   ///< the key's number
  std::string_view text;   ///< the key as written, such as "user123"
  std::string_view value;  ///< of INSERT and UPDATE; empty in the bare style
};

/// The operations of a trace file, in order. Two styles are read, plain or gzip-compressed:
///
///  - what YCSB's BasicDB prints: `INSERT usertable user123 [ field0=VALUE ]`, `UPDATE` likewise,
///    `READ usertable user123 [ <all fields>]` and `DELETE usertable user123`. A value is any bytes
///    but NUL and line ends: everything between "[ field0=" and the " ]" that ends the line. With
///    several fields (" field1=" in it), the whole text between "[ " and " ]" is the value.
///  - bare: `INSERT 123`, `READ 123`, `UPDATE 123`, `DELETE 123`, without values.
///
/// A key is an optional prefix without digits and then a decimal number that fits 64 bits: at most
/// kMaxKeyBytes of printable text. The number alone tells keys apart, so that all must have the
/// same prefix, and those with leading zeros the same number of digits (and no other key fewer).
/// Blank lines and lines that begin with '*', '[', '"', '#' or '-' (what BasicDB prints beside
/// operations) are skipped.
///
/// Movable, not copyable. Thread safety: const members may be called from several threads.
class Trace {
 public:
  static constexpr std::size_t kMaxValueBytes = gpm::kMaxValueBytes;
  static constexpr std::size_t kMaxKeyBytes = 255;  ///< of a key as written

  /// @param before a trace that is applied to the same store before, or null: the keys of both
  ///        have the same prefix
  /// @throws Error kNotFound, kIo (also truncated compressed data), kInvalidArgument naming file
  ///         and line: a line that can't be read, a key that can't be told from another one, a scan
  ///         (refused: a hash index has no key order)
  static Trace Read(const std::string& path, const Trace* before = nullptr);

  Trace(Trace&&) = default;
  Trace& operator=(Trace&&) = default;

  const std::vector<TraceLine>& lines() const { return lines_; }
  std::size_t longest_value() const { return longest_value_; }  ///< bytes
  std::size_t longest_key() const { return longest_key_; }      ///< bytes, as it is written

 private:
  Trace() = default;
  std::string_view Keep(std::string_view text);

  /// How the keys are written, which only their numbers tell apart.
  struct KeyForm {
    std::optional<std::string> prefix;
    std::size_t padded_digits = 0;        ///< of keys with leading zeros; 0: there are none
    std::size_t least_digits = SIZE_MAX;  ///< of keys without

    /// Takes a key in. @return what is wrong with it beside those before; empty: nothing
    std::string Add(std::string_view key);
  };

  KeyForm key_form_;
  std::vector<TraceLine> lines_;
  std::size_t longest_value_ = 0;
  std::size_t longest_key_ = 0;
  std::deque<std::string> texts_;  ///< blocks that never reallocate; lines_ points into them
};

/// "READ", "INSERT", "UPDATE" or "DELETE". REQUIRES: an op of a TraceLine.
std::string_view TraceWord(Op op);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_TRACE_H_
