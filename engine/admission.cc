#include "engine/admission.h"

#include <algorithm>
#include <utility>

#include "engine/wait_until.h"
#include "gpmstore/error.h"

namespace gpm {
bool InFlight::IsOpenScope() const {
  return demand.scope && (task == nullptr || !task->Complete());
}

class GPM_SCOPED_CAPABILITY Admission::InFlightLock {
 public:
  explicit InFlightLock(Admission& admission) GPM_ACQUIRE(admission.mutex_, store_state)
      : lock_(admission.mutex_) {}
  ~InFlightLock() GPM_RELEASE() {}

 private:
  MutexLock lock_;
};

Admission::Alone::Alone(Admission& admission, Telling telling, Scopes scopes)
    : admission_(admission), telling_(telling), counts_(scopes == Scopes::kAwait) {
  MutexLock lock(admission_.mutex_);
  if (counts_) {
    admission_.RefuseCallersScope();
    ++admission_.alone_asked_;
  }
  WaitUntil(lock, admission_.changed_, admission_.tracer_, [&]() GPM_REQUIRES(admission_.mutex_) {
    const bool open = admission_.HasOpenScope();
    holds_ = !open || counts_;
    return !holds_ || (!open && !admission_.exclusive_ && admission_.first_in_ == 0);
  });
  if (!holds_) return;
  admission_.exclusive_ = true;
  while (!admission_.active_.empty()) {
    // Batches that were started and not waited for are ended here: their owner may be this thread.
    const std::shared_ptr<InFlight> started = admission_.Started();
    if (started == nullptr) {
      WaitUntil(lock, admission_.changed_, admission_.tracer_,
                [&]() GPM_REQUIRES(admission_.mutex_) {
                  return admission_.active_.empty() || admission_.Started() != nullptr;
                });
      continue;
    }
    lock.Unlock();
    admission_.End(started);
    lock.Lock();
  }
}

Admission::Alone::~Alone() {
  if (!holds_) return;
  {
    const MutexLock lock(admission_.mutex_);
    admission_.exclusive_ = false;
    admission_.first_in_ = admission_.entering_;
    if (counts_) ++admission_.alone_ended_;
    admission_.changed_.notify_all();
  }
  if (telling_ == Telling::kAtEnd) admission_.log_.Tell();
}

bool Admission::Alone::IsAwaited() const {
  const MutexLock lock(admission_.mutex_);
  return admission_.entering_ > 0 ||
         admission_.alone_asked_ - admission_.alone_ended_ > (counts_ ? 1u : 0u);
}

Admission::Entered::Entered(Admission& admission) : admission_(admission), lock_(admission.mutex_) {
  admission.Enter(lock_);
}

void Admission::Enter(MutexLock& lock) {
  if (!exclusive_) return;
  ++entering_;
  WaitUntil(lock, changed_, tracer_, [&]() GPM_REQUIRES(mutex_) { return !exclusive_; });
  --entering_;
  if (first_in_ > 0 && --first_in_ == 0) changed_.notify_all();
}

/// A batch in flight that was started, if there is one.
std::shared_ptr<InFlight> Admission::Started() const {
  for (const auto& [id, in_flight] : active_) {
    if (in_flight->task != nullptr) return in_flight;
  }
  return nullptr;
}

/// Whether a DeviceScope is open, or being opened, which is for its owner to close.
bool Admission::HasOpenScope() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const auto& entry) { return entry.second->IsOpenScope(); });
}

bool Admission::CallerHasOpenScope() const {
  return std::any_of(active_.begin(), active_.end(), [](const auto& entry) {
    return entry.second->IsOpenScope() && entry.second->opener == ThreadNumber();
  });
}

void Admission::RefuseCallersScope() const {
  if (!CallerHasOpenScope()) return;
  throw Error(ErrorCode::kBusy,
              "the store has to run no batch for this, such as to make room, but the calling "
              "thread has a device scope open, and would wait for itself; close it first");
}

void Admission::RefuseScope() {
  const MutexLock lock(mutex_);
  RefuseCallersScope();
}

Admission::Admitted Admission::TryAdmit(const std::shared_ptr<InFlight>& in_flight, bool made_room,
                                        Epochs::SlotRange* recycle) {
  Entered entered(*this);
  if (in_flight->demand.scope && !CallerHasOpenScope()) {
    if (!in_flight->goes_after) in_flight->goes_after = alone_asked_;
    WaitUntil(entered.lock_, changed_, tracer_, [&]() GPM_REQUIRES(mutex_) {
      return !exclusive_ && alone_ended_ >= *in_flight->goes_after;
    });
  }
  health_.Check();
  // (The kernels of a scope look at addressable levels alone.)
  if (draining_.IsOver() || (draining_.active() && in_flight->demand.scope)) {
    return Admitted::kAfterRoom;
  }
  if (!space_.HasSlotsFor(in_flight->demand)) return Admitted::kAfterSlots;
  if (!space_.HasRoomFor(in_flight->demand, made_room)) return Admitted::kAfterRoom;
  if (!made_room && in_flight->demand.most.cells > 0 && space_.CanAddSpareCells() &&
      !HasOpenScope()) {
    return Admitted::kAfterSpareCells;  // those in flight end soon
  }
  in_flight->id = space_.epochs().next_id();
  const auto place = active_.emplace(in_flight->id, in_flight).first;
  try {
    space_.Begin(in_flight->demand, recycle, &in_flight->grant);
  } catch (...) {
    active_.erase(place);
    throw;
  }
  in_flight->drain = draining_.Take(in_flight->demand);
  if (in_flight->demand.scope || in_flight->demand.writes) ++changers_;
  for (const auto& [id, other] : active_) {
    if (other == in_flight) continue;
    in_flight->beside_writes |= other->demand.writes;
    other->beside_writes |= in_flight->demand.writes;
  }
  return Admitted::kYes;
}

void Admission::SetStarted(InFlight& in_flight, std::shared_ptr<BatchTask> task) {
  const MutexLock lock(mutex_);
  in_flight.task = std::move(task);
  changed_.notify_all();
}

/// Where the queues have come to when a batch has failed, which may have used them.
ReclaimPositions Admission::PositionsAfterFailure() noexcept {
  try {
    return executor_.Positions();
  } catch (...) {
    health_.SetUnusable("a batch was carried out");  // nobody knows how much room the queues have
    return {};
  }
}

void Admission::Withdraw(InFlight& in_flight, bool touched,
                         const Epochs::SlotRange& recycle) noexcept {
  ReclaimPositions positions;
  const CellGrant& grant = in_flight.grant;
  if (!touched) {
    try {
      bool taken_back = false;
      {
        const InFlightLock lock(*this);
        taken_back = space_.epochs().TakeBack(grant, grant.count);
      }
      if (!taken_back && grant.count > 0) executor_.ReturnCells(grant);
      executor_.RecycleSlots(recycle);
      positions = executor_.Positions();
    } catch (...) {
      touched = true;
    }
  }
  if (touched) positions = PositionsAfterFailure();
  const InFlightLock lock(*this);
  if (touched) SetLeftBehind();  // what it was given is found again when the pool is opened next
  draining_.Done(in_flight.drain, false);
  space_.epochs().End(in_flight.id, positions);
  active_.erase(in_flight.id);
  changed_.notify_all();
}

void Admission::End(const std::shared_ptr<InFlight>& in_flight) {
  bool beside_writes = false;
  {
    MutexLock lock(mutex_);
    WaitUntil(lock, changed_, tracer_, [&] { return in_flight->ended || !in_flight->ending; });
    if (in_flight->ended) return;
    in_flight->ending = true;
  }
  Progress& progress = in_flight->progress;
  bool behind = true;
  try {
    progress = in_flight->task->Await();
    {
      const InFlightLock lock(*this);
      beside_writes = in_flight->beside_writes;
      in_flight->cells_left = progress.cells_left + progress.cells_unneeded;
      if (space_.epochs().TakeBack(in_flight->grant, progress.cells_left)) progress.cells_left = 0;
    }
    if (progress.cells_left > 0) {
      const CellGrant& grant = in_flight->grant;
      progress.positions = executor_.ReturnCells(
          {grant.first + grant.count - progress.cells_left, progress.cells_left});
    }
    behind = false;
    in_flight->error = progress.copy_failure;
    if (beside_writes) in_flight->task->PersistObserved();
  } catch (...) {
    in_flight->error = std::current_exception();
  }
  if (behind) progress.positions = PositionsAfterFailure();
  const bool unfinished = progress.shortages() > 0 && !in_flight->error;
  if (in_flight->watch != nullptr && !unfinished && !in_flight->error) in_flight->watch->Ended();
  const InFlightLock lock(*this);
  if (!unfinished) in_flight->task.reset();
  draining_.Done(in_flight->drain, !behind && progress.drained);
  space_.epochs().End(in_flight->id, progress.positions);
  if (!in_flight->error) {
    // (An insert that lacks a cell is of a key that is not there.)
    const Demand& demand = in_flight->demand;
    const bool adds = !demand.mixed && demand.kind == Op::kInsert;
    space_.CountTaken(
        demand, in_flight->grant.count - in_flight->cells_left + progress.short_of_cells,
        progress.items_added + static_cast<std::int64_t>(progress.short_of_slots +
                                                         (adds ? progress.short_of_cells : 0)));
  }
  CountOperations(*in_flight);
  Count(*in_flight);
  if (!unfinished) in_flight->watch.reset();
  if (behind) SetLeftBehind();
  auto node = active_.extract(in_flight->id);
  if (unfinished) unfinished_.insert(std::move(node));
  in_flight->ended = true;
  changed_.notify_all();
}

bool Admission::IsDone(InFlight& in_flight) {
  std::shared_ptr<BatchTask> task;
  {
    const MutexLock lock(mutex_);
    if (in_flight.ended || in_flight.ending) return in_flight.ended;
    task = in_flight.task;
    if (task == nullptr) return true;
    in_flight.ending = true;  // keeps others from ending it; they wait until it was looked at
  }
  const bool done = task->Done();
  const MutexLock lock(mutex_);
  task.reset();  // before anybody can close the store
  in_flight.ending = false;
  changed_.notify_all();
  return done;
}

bool Admission::IsUnfinished(const InFlight& in_flight) {
  const MutexLock lock(mutex_);
  return unfinished_.contains(in_flight.id);
}

std::shared_ptr<InFlight> Admission::FirstUnfinished() {
  const MutexLock lock(mutex_);
  return unfinished_.empty() ? nullptr : unfinished_.begin()->second;
}

bool Admission::EraseUnfinished(const InFlight& in_flight) {
  const MutexLock lock(mutex_);
  return unfinished_.erase(in_flight.id) > 0;
}

void Admission::FailUnfinished(const std::exception_ptr& error) noexcept {
  const MutexLock lock(mutex_);
  for (const auto& [id, in_flight] : unfinished_) {
    in_flight->task.reset();
    in_flight->watch.reset();
    in_flight->error = error;
  }
  unfinished_.clear();
}

void Admission::CountOperations(const InFlight& in_flight) {
  if (in_flight.error) return;
  const Demand& demand = in_flight.demand;
  if (demand.kind) {
    operations_[static_cast<std::size_t>(*demand.kind)] += demand.operations;
  } else {
    mixed_operations_ += demand.operations;
  }
}

void Admission::AddTo(StoreStats* stats) const {
  stats->operations = operations_;
  stats->mixed_operations = mixed_operations_;
  stats->finds_found = found_;
  stats->read_by_host = read_by_host_;
  stats->written_by_host = written_by_host_;
  if (!stats->cache.directory) return;
  stats->cache.found = found_;
  stats->cache.hits = cache_hits_;
}

void Admission::Count(InFlight& in_flight) {
  const Progress& progress = in_flight.progress;
  in_flight.items_added += progress.items_added;
  space_.AddItems(progress.items_added);
  found_ += progress.found;
  cache_hits_ += progress.cache_hits;
  read_by_host_ += progress.read_by_host;
  written_by_host_ += progress.written_by_host;
}

}  // namespace gpm
