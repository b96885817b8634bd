// How a store carries out batches: starts them, waits for them, and finishes what lacked room.

#include <fmt/format.h>

#include <algorithm>

#include "engine/profiler_range.h"
#include "engine/store_impl.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"
#include "table/operation.h"

namespace gpm {
namespace {

/// A batch that lacks slots has some freed (BatchTask::MakeSlots) before the table grows: in a
/// table as full as OpenOptions::grow_above, about one operation in so many lacks one, and few lack
/// one again. Where more do, moving items would soon cost more than a larger table.
constexpr std::uint64_t kOperationsPerFreedSlot = 512;
constexpr std::uint64_t kFewSlots = 8;
constexpr unsigned kAttemptsBeforeGrowth = 4;
/// A table that would have to grow by more than this factor for a batch does so at once: its items,
/// hardly more than the batch adds, are moved once.
constexpr double kGrowthAtOnce = 2;

/// @throws Error(kInvalidArgument) saying what of it is wrong
void CheckEvicted(const Evicted* evicted, std::uint32_t key_size, std::uint32_t value_size) {
  const std::uint64_t rows = evicted->keys.size() / key_size;
  if (evicted->keys.size() % key_size != 0 ||
      (!evicted->values.empty() && evicted->values.size() != rows * value_size)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("evicted: 'keys' has {} bytes and 'values' {}; they must have {} and, "
                            "if they are wanted, {} for each row",
                            evicted->keys.size(), evicted->values.size(), key_size, value_size));
  }
  RequireHostMemory(evicted->keys.data(), evicted->keys.size(), "evicted keys");
  RequireHostMemory(evicted->values.data(), evicted->values.size(), "evicted values");
}

}  // namespace

Demand StoreImpl::DemandOf(const Batch& batch) const {
  const std::uint64_t n = batch.results.size();
  Demand demand;
  demand.operations = n;
  demand.mixed = !batch.ops.empty();
  if (!demand.mixed) demand.kind = batch.op;
  // (Of mixed kinds, those that add items are invalid without values.)
  demand.inserts = demand.mixed ? !batch.values.empty() : Inserts(batch.op);
  if (demand.inserts) demand.most_added = n;
  demand.writes = demand.mixed || batch.op != Op::kFind;
  if (!InlineValues(value_size_) && (demand.mixed || Writes(batch.op))) demand.most.cells = n;
  if (demand.mixed || batch.op == Op::kErase) demand.most.slots = n;
  // On executor cuda the kinds may be in device memory: then they may be any.
  if (demand.mixed && executor_->kind() == ExecutorKind::kCpu) {
    RequireHostMemory(batch.ops.data(), batch.ops.size(), "ops");
    demand.most.slots =
        static_cast<std::uint64_t>(std::count(batch.ops.begin(), batch.ops.end(), Op::kErase));
    if (demand.most.cells == 0) return demand;
    demand.most.cells = static_cast<std::uint64_t>(
        std::count_if(batch.ops.begin(), batch.ops.end(), [](Op op) { return Writes(op); }));
  }
  return demand;
}

std::shared_ptr<InFlight> StoreImpl::Start(const Batch& batch, Stream stream, Answers answers,
                                           Evicted* evicted) {
  const Log::TellsAtEnd tells(log_);
  ValidateBatch(batch, key_size_, value_size_);
  if (evicted != nullptr) CheckEvicted(evicted, key_size_, value_size_);
  health_.Check();
  cache_.Advance(CacheManager::Haste::kBegin, batch.results.size(), admission_.Totals());
  LogRefreshes();
  if (batch.results.empty()) {
    auto nothing = std::make_shared<InFlight>(Demand{});
    nothing->ended = true;
    return nothing;
  }
  const Demand demand = DemandOf(batch);
  auto task = executor_->Prepare(batch, stream, answers);  // refuses, before anything is evicted
  std::optional<Bound::Turn> turn;
  if (bound_ != nullptr && demand.inserts) TakeTurn(&turn);
  Bound::MayAdd adds{.most = demand.most_added};
  const bool made_way = turn && !turn->nested() && MakeWay(&batch, stream, evicted, &adds);
  const bool results_on_host = task->ResultsOnHost();
  std::unique_ptr<BatchWatch> watch;
  if (bound_ != nullptr) watch = bound_->Watch(&batch, adds);
  auto in_flight = StartTask(std::move(task), demand, std::move(watch));
  in_flight->results_on_host = results_on_host;
  in_flight->evicted = made_way;
  return in_flight;
}

std::shared_ptr<InFlight> StoreImpl::StartScope(std::shared_ptr<BatchTask> task,
                                                const Demand& demand) {
  const Log::TellsAtEnd tells(log_);
  if (bound_ == nullptr) return StartTask(std::move(task), demand);
  std::optional<Bound::Turn> turn;
  if (demand.inserts) TakeTurn(&turn);
  Bound::MayAdd adds{.most = demand.most_added};
  const bool made_way = turn && !turn->nested() && MakeWay(nullptr, nullptr, nullptr, &adds);
  auto in_flight = StartTask(std::move(task), demand, bound_->Watch(nullptr, adds));
  in_flight->evicted = made_way;
  return in_flight;
}

std::shared_ptr<InFlight> StoreImpl::Run(const Batch& batch, Stream stream) {
  Demand demand = DemandOf(batch);
  demand.inserts = false;
  demand.most.cells = 0;
  const bool erases = !batch.ops.empty() || batch.op == Op::kErase;
  return StartTask(executor_->Prepare(batch, stream, Answers::kOnStream), demand,
                   erases ? bound_->Watch(&batch, {}) : nullptr);
}

void StoreImpl::TakeTurn(std::optional<Bound::Turn>* turn) {
  bool waits = false;
  {
    // Who has the turn may wait for this thread's scope.
    const Admission::Entered entered(admission_);
    waits = !entered.CallerHasOpenScope();
  }
  turn->emplace(*bound_, waits);
}

std::shared_ptr<InFlight> StoreImpl::StartTask(std::shared_ptr<BatchTask> task, Demand demand,
                                               std::unique_ptr<BatchWatch> watch) {
  demand.scope = !task->Complete();
  const auto in_flight = std::make_shared<InFlight>(demand);
  in_flight->watch = std::move(watch);
  if (!demand.scope) in_flight->range = ProfilerRange("batch", demand.operations);
  Epochs::SlotRange recycle;
  bool made_room = false;
  for (;;) {
    using Admitted = Admission::Admitted;
    const Admitted admitted = admission_.TryAdmit(in_flight, made_room, &recycle);
    if (admitted == Admitted::kYes) break;
    // (Its log may close the store: who starts the batch tells it afterwards.)
    const Admission::Alone alone(admission_, Admission::Telling::kLater,
                                 admitted == Admitted::kAfterSpareCells
                                     ? Admission::Scopes::kYield
                                     : Admission::Scopes::kAwait);
    if (!alone.holds()) continue;
    health_.Check();
    if (admitted == Admitted::kAfterSlots) space_.MakeRoomForErases(demand);
    MakeRoom(demand);
    made_room = true;
  }
  if (keeper_ != nullptr && demand.kind != Op::kFind) keeper_->NoteChange();
  try {
    task->Start(recycle, in_flight->grant, in_flight->drain);
  } catch (...) {
    admission_.Withdraw(*in_flight, task->Touched(), recycle);
    throw;
  }
  admission_.SetStarted(*in_flight, std::move(task));
  return in_flight;
}

void StoreImpl::Wait(const std::shared_ptr<InFlight>& in_flight) {
  const Log::TellsAtEnd tells(log_);
  Await(in_flight);
  const bool may_leave_fewer = in_flight->items_added < 0 || in_flight->evicted;
  if (compact_below_ > 0 && may_leave_fewer) CompactIfSparse();
}

void StoreImpl::Await(const std::shared_ptr<InFlight>& in_flight) {
  admission_.End(in_flight);
  if (admission_.IsUnfinished(*in_flight)) {
    try {
      const Admission::Alone alone(admission_, Admission::Telling::kLater);
      if (admission_.IsUnfinished(*in_flight)) FinishAfterGrowth(in_flight);  // else Close did
    } catch (...) {
      if (admission_.EraseUnfinished(*in_flight)) {  // the caller has a scope open
        in_flight->task.reset();
        in_flight->watch.reset();
        in_flight->error = std::current_exception();
      }
    }
  }
  in_flight->range.End();
  if (in_flight->error) std::rethrow_exception(in_flight->error);
}

bool StoreImpl::TryMakeRoom(const Demand& demand) {
  bool enough = space_.MakeRoomFor(demand);
  while (demand.inserts && enough && space_.IsFull()) enough = Grow(demand);
  return enough;
}

void StoreImpl::MakeRoom(const Demand& demand) {
  if (draining_.IsOver() || demand.scope || !resizer_.CanDrain(demand.most.cells)) {
    resizer_.EndDraining();
  }
  space_.AddSpareCells();
  if (space_.HasRoomFor(demand, false)) return;
  bool enough = TryMakeRoom(demand);
  if (!enough && AwaitHeldCells()) enough = TryMakeRoom(demand);
  space_.SetAtLimit(!enough);
  LogWantOfSpace();
  space_.LookAhead();
}

std::uint64_t StoreImpl::MissingCellBytes(std::uint64_t more) const {
  return space_.MissingCells(more) * CellBytes(value_size_);
}

bool StoreImpl::Grow(const Demand& waiting, std::uint64_t lacking) {
  if (draining_.active()) return resizer_.Grow(waiting);
  space_.CountFull();
  const double slots = static_cast<double>(space_.items() + lacking) / LoadBeforeGrowth();
  const bool much = slots > kGrowthAtOnce * static_cast<double>(space_.Capacity());
  return (much && resizer_.GrowTo(slots, MissingCellBytes(lacking))) || resizer_.Grow(waiting);
}

void StoreImpl::LogWantOfSpace() {
  const std::string& why = pool_->mapping().want_of_space();
  if (!why.empty() && !logged_want_of_space_) log_.Add(LogLevel::kWarning, [&] { return why; });
  logged_want_of_space_ = !why.empty();
}

void StoreImpl::FinishAfterGrowth(std::shared_ptr<InFlight> in_flight) {
  try {
    CarryOutRest(*in_flight);
    in_flight->task.reset();
    space_.Reclaim();
    space_.LookAhead();
    if (in_flight->watch != nullptr) in_flight->watch->Ended();
    in_flight->watch.reset();
  } catch (...) {
    in_flight->task.reset();
    in_flight->watch.reset();
    in_flight->error = std::current_exception();
    admission_.EraseUnfinished(*in_flight);
    throw;
  }
  admission_.EraseUnfinished(*in_flight);
}

bool StoreImpl::MakeSlots(InFlight& in_flight, std::uint64_t room, bool again) {
  const Clock::time_point start = Clock::now();
  const std::uint64_t most =
      std::max(kFewSlots, in_flight.demand.operations / kOperationsPerFreedSlot);
  SlotsMade slots;
  try {
    slots = in_flight.task->MakeSlots(most, room);
  } catch (...) {
    admission_.SetLeftBehind();
    throw;
  }
  displaced_items_ += slots.made;
  displacing_seconds_ += SecondsSince(start);
  return slots.made == slots.lacking && (slots.lacking > 0 || !again);
}

bool StoreImpl::MakeSlotsOrGrow(InFlight& in_flight, unsigned* attempts) {
  const std::uint64_t lacking = in_flight.progress.short_of_slots;
  const auto room = [&](double load) GPM_REQUIRES(store_state) {
    const auto most = static_cast<std::uint64_t>(load * static_cast<double>(space_.Capacity()));
    return most - std::min(most, space_.items());
  };
  const std::uint64_t without = room(grow_above_);
  if (*attempts < kAttemptsBeforeGrowth && lacking <= without &&
      MakeSlots(in_flight, without, *attempts > 0)) {
    ++*attempts;
    return true;
  }
  // Where there is no room for the cells that the slots need, larger levels would take it from
  // those.
  const auto wants_more = [&]() GPM_REQUIRES(store_state) {
    const std::uint64_t slots = room(LoadBeforeGrowth());
    return lacking > slots && resizer_.HasRoomToGrow(0, MissingCellBytes(slots));
  };
  bool grown = false;
  do {
    if (!Grow(in_flight.demand, lacking)) break;
    grown = true;
    *attempts = 0;
  } while (wants_more());
  return grown;
}

std::uint64_t StoreImpl::CellsToAdd(const InFlight& in_flight) const {
  const std::uint64_t lacking = in_flight.progress.short_of_cells;
  const std::uint64_t cells = space_.MissingCells(lacking);
  const double most = static_cast<double>(space_.items() + lacking) / LoadBeforeGrowth();
  if (!in_flight.demand.inserts || resizer_.HasRoomToGrow(most, MissingCellBytes(lacking))) {
    return cells;
  }
  const std::uint64_t slots = space_.Capacity() - std::min(space_.Capacity(), space_.items());
  // (Operations that found no slot have given back the cells that others were short of.)
  return std::min(cells, space_.MissingCells(std::max(slots, pool_->growth_cells())));
}

void StoreImpl::CarryOutRest(InFlight& in_flight) {
  const Progress& now = in_flight.progress;
  bool advanced = true;
  // Space that erases and updates gave back may do; only then the pool grows. At first it is enough
  // that another batch may have given it back, after this one found none.
  bool try_again = true;
  unsigned attempts = 0;
  while (now.shortages() > 0) {
    health_.Check();
    const Progress before = now;
    bool room = space_.Reclaim();
    if (before.short_of_slots > 0 && !room) {
      room = MakeSlotsOrGrow(in_flight, &attempts) ||
             (advanced && MakeSlots(in_flight, ~std::uint64_t{0}, true));  // all that there is
    }
    room |= try_again;
    try_again = false;
    if (const std::uint64_t cells = CellsToAdd(in_flight); cells > 0) {
      if (!resizer_.CanDrain(cells)) resizer_.EndDraining();
      room |= space_.AddCells(cells);
    }
    LogWantOfSpace();
    if (!room && !advanced) room = AwaitHeldCells();
    space_.MakeRoomForSlots(in_flight.demand.most.slots);  // the table may have grown
    const bool final_attempt = !room && !advanced;
    Resume(in_flight, final_attempt);
    if (final_attempt) space_.SetAtLimit(true);
    advanced = now.carried_out > 0 || now.shortages() < before.shortages();
  }
}

void StoreImpl::Resume(InFlight& in_flight, bool final_attempt) {
  Epochs& epochs = space_.epochs();
  const CellGrant grant = epochs.GrantCells(in_flight.demand.most.cells);
  try {
    in_flight.progress = in_flight.task->Resume(final_attempt, grant);
  } catch (...) {
    if (in_flight.task->Touched()) {
      admission_.SetLeftBehind();
    } else {
      epochs.TakeBack(grant, grant.count);
    }
    throw;
  }
  epochs.TakeBack(grant, in_flight.progress.cells_left);  // nothing runs beside it
  admission_.Count(in_flight);
  if (in_flight.progress.copy_failure) std::rethrow_exception(in_flight.progress.copy_failure);
}
}  // namespace gpm
