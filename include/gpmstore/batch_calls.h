#ifndef GPM_BATCH_CALLS_H_
#define GPM_BATCH_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpmstore/batch.h"

namespace gpm {

/// Batches of one kind, of a store that has Apply(const Batch&). Arrays are as in Batch, with
/// n = results.size(): keys of n rows of key_size bytes, values of n rows of value_size bytes.
/// Each call returns and throws as Apply.
///
/// Thread safety: as Apply.
template <class StoreType>
class BatchCalls {
 public:
  /// @param found n rows, or empty
  std::uint64_t Find(std::span<const std::byte> keys, std::span<std::byte> found,
                     std::span<Result> results) {
    return Apply({.op = Op::kFind, .keys = keys, .found = found, .results = results});
  }
  std::uint64_t Update(std::span<const std::byte> keys, std::span<const std::byte> values,
                       std::span<Result> results) {
    return Apply({.op = Op::kUpdate, .keys = keys, .values = values, .results = results});
  }
  std::uint64_t Upsert(std::span<const std::byte> keys, std::span<const std::byte> values,
                       std::span<Result> results) {
    return Apply({.op = Op::kUpsert, .keys = keys, .values = values, .results = results});
  }
  std::uint64_t Erase(std::span<const std::byte> keys, std::span<Result> results) {
    return Apply({.op = Op::kErase, .keys = keys, .results = results});
  }
  /// Finds the values of keys, and adds an item for each that is missing, with an initial value.
  /// Of a key that comes several times, the first adds, and all find the same value.
  /// @param initial where the value of a new item comes from: `values`, a constant, or drawn
  /// @param element of values, where they are drawn
  /// @param values n rows for InitialValue::From::kValues, else empty
  /// @param found n rows: the values that the items have, new or not; or empty
  /// @return as Apply; kOk means that an item was added, kExists that there was one
  std::uint64_t FindOrInsert(std::span<const std::byte> keys, const InitialValue& initial,
                             Element element, std::span<const std::byte> values,
                             std::span<std::byte> found, std::span<Result> results) {
    return Apply({.op = Op::kFindOrInsert,
                  .keys = keys,
                  .values = values,
                  .found = found,
                  .results = results,
                  .element = element,
                  .initial = initial});
  }
  /// Adds a row to the value of each key, element by element; for a key that comes several times,
  /// in batch order. A crash leaves a value as it was, or with rows added, never in part.
  /// @param element of values and rows
  std::uint64_t Accumulate(std::span<const std::byte> keys, Element element,
                           std::span<const std::byte> rows, std::span<Result> results) {
    return Apply({.op = Op::kAccumulate,
                  .keys = keys,
                  .values = rows,
                  .results = results,
                  .element = element});
  }

 protected:
  ~BatchCalls() = default;

 private:
  std::uint64_t Apply(const Batch& batch) { return static_cast<StoreType*>(this)->Apply(batch); }
};

}  // namespace gpm

#endif  // GPM_BATCH_CALLS_H_
