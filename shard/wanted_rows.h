#ifndef GPM_SHARD_WANTED_ROWS_H_
#define GPM_SHARD_WANTED_ROWS_H_

#include <cstdint>

#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/operation.h"

namespace gpm {

/// Of which operations of a batch a row of an array is moved: what the others have there nobody
/// reads, and where it would come it is unspecified.
struct WantedRows {
  enum class Which : std::uint8_t { kAll, kWritten, kFound };

  Which which = Which::kAll;
  Op op{};
  const Op* ops = nullptr;          ///< of each operation; null: all are `op`
  const Result* results = nullptr;  ///< of each operation, for kFound

  /// Of Batch::values.
  static WantedRows Written(const Batch& batch) {
    if (batch.ops.empty()) return {};
    return {.which = Which::kWritten, .ops = batch.ops.data()};
  }
  /// Of Batch::found. REQUIRES: the results are there.
  static WantedRows Found(const Batch& batch) {
    return {.which = Which::kFound,
            .op = batch.op,
            .ops = batch.ops.empty() ? nullptr : batch.ops.data(),
            .results = batch.results.data()};
  }

  GPM_HD bool Has(std::uint64_t operation) const {
    if (which == Which::kAll) return true;
    const Op kind = ops == nullptr ? op : ops[operation];
    return which == Which::kWritten ? Writes(kind) : HasFound(kind, results[operation]);
  }
};

}  // namespace gpm

#endif  // GPM_SHARD_WANTED_ROWS_H_
