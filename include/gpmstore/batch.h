#ifndef GPM_BATCH_H_
#define GPM_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

struct CUstream_st;  // cudaStream_t, so that this header needs no CUDA

namespace gpm {

/// A CUDA stream; null is the default stream. Ignored by the cpu executor.
using Stream = CUstream_st*;

/// Kind of one operation.
enum class Op : std::uint8_t {
  kFind,          ///< copy out the value of a key
  kInsert,        ///< add an item; the key must not exist
  kUpdate,        ///< replace the value of an item that exists
  kUpsert,        ///< insert or update
  kErase,         ///< remove an item
  kFindOrInsert,  ///< copy out the value of a key; of one that is missing, add an item first, with
                  ///< an initial value (InitialValue)
  kAccumulate,    ///< add a row to the value of an item that exists, element by element (Element)
};
inline constexpr std::uint8_t kOpKinds = 7;

/// What the values of a store consist of, for operations that calculate with them: elements side by
/// side, little-endian, as many as fill a value. Both executors calculate the same bits: a sum is
/// rounded once, to nearest, ties to even, and one that is no number becomes the quiet NaN
/// without a sign or payload.
enum class Element : std::uint8_t {
  kNone,      ///< bytes of which nobody knows what they are
  kFloat32,   ///< IEEE 754 binary32
  kFloat16,   ///< IEEE 754 binary16
  kBFloat16,  ///< the first half of a binary32
  kUInt64,    ///< counters: sums wrap around
};

/// Bytes of an element; 0 for kNone.
constexpr std::uint32_t ElementBytes(Element element) {
  switch (element) {
    case Element::kNone:
      return 0;
    case Element::kFloat32:
      return 4;
    case Element::kFloat16:
    case Element::kBFloat16:
      return 2;
    case Element::kUInt64:
      return 8;
  }
  return 0;
}

/// Where kFindOrInsert takes the value of a new item from. What is drawn depends on the seed, the
/// key and the element's place in the value alone: it is the same bits on both executors, in every
/// pool and batch.
struct InitialValue {
  enum class From : std::uint8_t {
    kValues,    ///< its row of Batch::values
    kConstant,  ///< `row`, for all
    kUniform,   ///< drawn, evenly between `low` and `high`
    kNormal,    ///< drawn, of this mean and deviation
  };
  From from = From::kValues;
  std::span<const std::byte> row{};  ///< kConstant: value_size bytes, host memory
  std::uint64_t seed = 0;
  /// kUniform: low and high. kNormal: mean and standard deviation. Rounded to Batch::element, which
  /// is a floating point number then.
  float first = 0;
  float second = 0;
  /// Drawn: so many bytes from the value's start, a multiple of the element's; those behind them
  /// are 0. By default all.
  std::uint32_t drawn_bytes = ~std::uint32_t{0};

  static InitialValue Constant(std::span<const std::byte> row) {
    return {.from = From::kConstant, .row = row};
  }
  static InitialValue Uniform(std::uint64_t seed, float low, float high) {
    return {.from = From::kUniform, .seed = seed, .first = low, .second = high};
  }
  static InitialValue Normal(std::uint64_t seed, float mean, float deviation) {
    return {.from = From::kNormal, .seed = seed, .first = mean, .second = deviation};
  }
};

/// Outcome of one operation.
enum class Result : std::uint8_t {
  kOk,
  kNotFound,  ///< find, update, erase, accumulate: no such key
  kExists,    ///< insert, find-or-insert: the key exists, its value is unchanged
  kNoSpace,   ///< no slot, or (also for an update) no spare value cell, and the pool can't grow
  kInvalid,   ///< the kind is not one of Op's, or needs values in a batch without, or an element
};

std::string_view OpName(Op op);                 ///< "find", "insert", ... "find-or-insert"
std::string_view ElementName(Element element);  ///< "none", "float32", "float16", ...
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
/// of keys are 8-byte aligned where key_size is a multiple of 8; nothing else has to be aligned.
/// Input arrays must not overlap output arrays. All arrays stay valid and untouched until the call
/// (or Ticket::Wait) returns. Inputs in pageable host memory are read by the call that starts the
/// batch, and outputs there are written by Ticket::Wait; everything else is accessed in the order
/// of the batch's stream.
struct Batch {
  Op op = Op::kFind;                    ///< kind of every operation, when `ops` is empty
  std::span<const Op> ops{};            ///< n kinds, or empty
  std::span<const std::byte> keys{};    ///< n rows of key_size bytes, contiguous
  std::span<const std::byte> values{};  ///< n * value_size bytes: input of insert, update, upsert,
                                        ///< accumulate, and of find-or-insert if `initial` says
                                        ///< so; empty when no operation needs it
  std::span<std::byte> found{};         ///< n * value_size bytes: row i holds the value when
                                        ///< operation i is a find that is ok, or a find-or-insert
                                        ///< that is ok or exists, and is unspecified otherwise;
                                        ///< empty when only existence is asked
  std::span<Result> results{};          ///< n outcomes
  Element element = Element::kNone;     ///< of values: for kAccumulate and drawn initial values
  InitialValue initial{};               ///< for kFindOrInsert; of a mixed batch with one that is
                                        ///< not kValues, `values` is there, too
};

/// Where a batch puts what it evicts from a store with a capacity (Store::ApplyAndEvict): arrays in
/// host memory, with room for as many rows as they have.
struct Evicted {
  std::span<std::byte> keys{};    ///< rows of key_size bytes
  std::span<std::byte> values{};  ///< as many of value_size bytes, or empty if nobody wants them
  std::uint64_t count = 0;        ///< rows that were filled, those that went first in front
};

}  // namespace gpm

#endif  // GPM_BATCH_H_
