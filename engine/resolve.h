#ifndef GPM_ENGINE_RESOLVE_H_
#define GPM_ENGINE_RESOLVE_H_

#include <cstddef>
#include <cstdint>

#include "engine/key_runs.h"

namespace gpm {

/// How the operations of key runs are answered, written once for the GPU and for its explorer.

/// What has to be known of an operation to answer it, but for whether its key was there.
struct ResultQuery {
  std::uint32_t operation;
  std::uint32_t position;
  std::uint32_t first;       ///< where its key run begins
  std::uint32_t reader;      ///< the operation that reads the value as it was before the run
  std::uint32_t if_absent;   ///< effect of the operations of the run before this one
  std::uint32_t if_present;  ///< the same, when the key was there before
  Op op;
};

/// @param p a position of a sorted batch
template <class Batch>
GPM_HD inline ResultQuery QueryAt(const Batch& batch, std::uint32_t p) {
  // As few loads as possible one behind the other.
  const KeyRunEffect effect = batch.effects[p];
  const KeyRunEffect before = p != 0 ? batch.effects[p - 1] : effect;
  ResultQuery query;
  query.operation = batch.OperationAt(p);
  query.position = p;
  query.first = effect.first;
  const std::uint32_t find = effect.first_find();
  query.reader = find == kNoPosition ? 0 : batch.OperationAt(find);
  query.if_absent = p == effect.first ? kUnchanged : before.if_absent;
  query.if_present = p == effect.first ? kUnchanged : before.if_present;
  query.op = batch.KindOf(query.operation);
  return query;
}

struct Resolved {
  bool found = false;  ///< it finds, and the key is there
  bool gives = false;  ///< it gives back a value
  /// Position of the operation that wrote that value; kUnchanged: it was there before the run.
  std::uint32_t writer = kUnchanged;
};

/// Answers an operation that found no room with no-space, until it is finished after growth.
/// @param record of its run
/// @param p the operation's position
template <class Batch>
GPM_HD inline void ResolvePending(const Batch& batch, const KeyRunRecord& record, std::uint32_t p,
                                  std::uint32_t operation) {
  if (record.status == KeyRunStatus::kPending && p >= record.next) {
    batch.results[operation] = Result::kNoSpace;
  }
}

/// Writes an operation's result. The value that it gives back is for the caller to copy.
template <class Batch>
GPM_HD inline Resolved ResolveResult(const Batch& batch, const ResultQuery& query,
                                     bool present_before) {
  const std::uint32_t before = present_before ? query.if_present : query.if_absent;
  const bool present = PresentAfter(before, present_before);
  const Result result = ResultOf(query.op, present, batch.HasValueFor(query.op));
  batch.results[query.operation] = result;
  const bool found = present && GivesValue(query.op) && result != Result::kInvalid;
  const bool inserts = query.op == Op::kFindOrInsert && result == Result::kOk;
  return Resolved{found, found || inserts, inserts ? query.position : before};
}

/// Answers an operation again. Its key run was answered for a key that is there, or is not, and met
/// the opposite when it was carried out; or it found no room.
/// @param p its position in the sorted batch
/// @param record of the run: `present` as it was first taken to be, and, where the key was there
///        after all, the cell that the item had
template <class Group, class Media, class Batch>
GPM_HD inline void FixMispredicted(const Group& group, const Media& media, const TableView& table,
                                   const Batch& batch, std::uint32_t p,
                                   const KeyRunRecord& record) {
  const bool present = record.present == 0;
  const ResultQuery query = QueryAt(batch, p);
  if (record.status != KeyRunStatus::kDone) {
    ResolvePending(batch, record, p, query.operation);
    return;
  }
  const Resolved before = ResolveResult(batch, query, !present);
  const Resolved answer = ResolveResult(batch, query, present);
  if (before.found) {
    const bool was_hit = before.writer != kUnchanged || record.hit != 0;
    AtomicAdd(&batch.sums->found, ~std::uint64_t{0});
    if (was_hit) AtomicAdd(&batch.sums->cache_hits, ~std::uint64_t{0});
  }
  if (answer.found) AtomicAdd(&batch.sums->found, 1);
  if (!answer.gives) return;
  std::byte* const row = batch.FoundOf(query.operation, table.value_size);
  if (answer.writer == kUnchanged) {  // (not written again before the batch ends)
    media.ReadCell(group, row, table.Cell(record.old_cell * table.cell_bytes), table.value_size);
  } else {
    if (answer.found) AtomicAdd(&batch.sums->cache_hits, 1);
    media.CopyRow(group, row, batch.ValueOf(batch.OperationAt(answer.writer), table.value_size),
                  table.value_size);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_RESOLVE_H_
