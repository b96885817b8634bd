#ifndef GPM_TABLE_OPERATION_H_
#define GPM_TABLE_OPERATION_H_

#include "gpmstore/batch.h"
#include "table/protocol.h"

namespace gpm {

/// What the kinds of operation mean: as plans for the table, and as results. Used by both executors
/// and the device-side view, so that all agree.

/// Whether this kind of operation may need a value cell.
GPM_HD constexpr bool Writes(Op op) {
  return op == Op::kInsert || op == Op::kUpdate || op == Op::kUpsert || op == Op::kFindOrInsert ||
         op == Op::kAccumulate;
}

/// Whether an operation of this kind gives back a value.
GPM_HD constexpr bool GivesValue(Op op) { return op == Op::kFind || op == Op::kFindOrInsert; }

/// Whether an operation can be carried out at all.
/// @param has_value the batch has what it writes (for kAccumulate: and an element)
GPM_HD constexpr bool IsValid(Op op, bool has_value) {
  return static_cast<std::uint8_t>(op) < kOpKinds && (has_value || !Writes(op));
}

/// Whether an operation that finds its key gives back the value. @param has_value as for IsValid
GPM_HD constexpr bool GivesValue(Op op, bool has_value) {
  return GivesValue(op) && IsValid(op, has_value);
}

/// The plan of an operation; of one that is invalid (IsValid), to leave everything as it is.
/// @param value value_size bytes for kinds that write (null: the batch has none), else unused. For
///        kAccumulate its presence alone counts: who carries it out sets Plan::addends
GPM_HD constexpr Plan PlanOf(Op op, const std::byte* value) {
  Plan plan;
  if (!IsValid(op, value != nullptr)) return plan;
  plan.absent_value = value;
  plan.present_value = value;
  if (op == Op::kInsert || op == Op::kUpsert || op == Op::kFindOrInsert) {
    plan.if_absent = Action::kWrite;
  }
  if (op == Op::kUpdate || op == Op::kUpsert) plan.if_present = Action::kWrite;
  if (op == Op::kErase) plan.if_present = Action::kErase;
  if (op == Op::kAccumulate) {
    plan.if_present = Action::kAdd;
    plan.addends = nullptr;
  }
  return plan;
}

/// The result of an operation that met its key present or absent, with room enough.
GPM_HD inline Result ResultOf(Op op, bool present, bool has_value = true) {
  if (!IsValid(op, has_value)) return Result::kInvalid;
  switch (op) {
    case Op::kInsert:
    case Op::kFindOrInsert:
      return present ? Result::kExists : Result::kOk;
    case Op::kUpsert:
      return Result::kOk;
    case Op::kFind:
    case Op::kUpdate:
    case Op::kErase:
    case Op::kAccumulate:
      return present ? Result::kOk : Result::kNotFound;
  }
  return Result::kInvalid;
}

/// Whether an operation with this result gave back a value.
GPM_HD constexpr bool HasFound(Op op, Result result) {
  return GivesValue(op) && (result == Result::kOk || result == Result::kExists);
}

/// Change of the number of items by a plan that was carried out with this outcome.
GPM_HD inline int ItemsAdded(const Plan& plan, const Outcome& outcome) {
  if (outcome.shortage != Shortage::kNothing) return 0;
  if (outcome.present) return plan.if_present == Action::kErase ? -1 : 0;
  return plan.if_absent == Action::kWrite ? 1 : 0;
}

/// Whether an operation of this kind may add an item.
GPM_HD inline bool Inserts(Op op) {
  return op == Op::kInsert || op == Op::kUpsert || op == Op::kFindOrInsert;
}

}  // namespace gpm

#endif  // GPM_TABLE_OPERATION_H_
