#ifndef GPM_BATCH_H_
#define GPM_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gpm {

/// Kind of one operation.
enum class Op : std::uint8_t {
  kFind,    ///< copy out the value of a key
  kInsert,  ///< add an item; the key must not exist
  kUpdate,  ///< replace the value of an item that exists
  kUpsert,  ///< insert or update
  kErase,   ///< remove an item
};
inline constexpr std::uint8_t kOpKinds = 5;

/// Outcome of one operation.
enum class Result : std::uint8_t {
  kOk,
  kNotFound,  ///< find, update, erase: no such key
  kExists,    ///< insert: the key exists, its value is unchanged
  kNoSpace,   ///< no slot, or (also for an update) no spare value cell, and the pool can't grow
  kInvalid,   ///< the kind is not one of Op's, or an insert, update or upsert in a batch without
              ///< values
};

std::string_view OpName(Op op);              ///< "find", "insert", ...
std::string_view ResultName(Result result);  ///< "ok", "not-found", "exists", "no-space", "invalid"

/// The unit of work: n = results.size() operations, at most 2^31 - 1, of one or of mixed kinds.
///
/// Operations on the same key take effect in batch order, so the results equal those of applying
/// the operations one by one; operations on different keys are independent. (Where another batch
/// writes a key at the same time, the finds of it in a batch that only finds may see that in any
/// order.) When the call that
/// takes the batch completes, each of its operations is durable as far as the pool's medium
/// promises (MediumInfo).
///
/// Memory: every array may be host or (executor cuda) device memory, each on its own. Device arrays
/// of keys are 8-byte aligned; nothing else has to be aligned. Input arrays must not overlap output
/// arrays. All arrays stay valid and untouched until the call (or Ticket::Wait) returns. Inputs in
/// pageable host memory are read by the call that starts the batch, and outputs there are written
/// by Ticket::Wait; everything else is accessed in the order of the batch's stream.
struct Batch {
  Op op = Op::kFind;                    ///< kind of every operation, when `ops` is empty
  std::span<const Op> ops{};            ///< n kinds, or empty
  std::span<const std::byte> keys{};    ///< n * key_size bytes, contiguous
  std::span<const std::byte> values{};  ///< n * value_size bytes: input of insert, update, upsert;
                                        ///< empty when no operation is one of those
  std::span<std::byte> found{};         ///< n * value_size bytes: row i holds the value when
                                        ///< operation i is a find that is ok, and is unspecified
                                        ///< otherwise; empty when only existence is asked
  std::span<Result> results{};          ///< n outcomes
};

}  // namespace gpm

#endif  // GPM_BATCH_H_
