#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/store_impl.h"
#include "engine/wait_until.h"
#include "table/operation.h"

namespace gpm {

/// Batches of a store: who may run beside whom, what each is granted, how it begins and ends.

namespace {

/// Whether a batch with these needs may write.
bool Writes(const Reservation& needs) { return needs.slots > 0 || needs.cells > 0; }

}  // namespace

StoreImpl::Exclusive::Exclusive(StoreImpl& store) : store_(store) {
  std::unique_lock lock(store_.mutex_);
  if (store_.CallerHasOpenScope()) {
    throw Error(ErrorCode::kBusy,
                "the store has to run no batch for this, such as to make room, but the calling "
                "thread has a device scope open, and would wait for itself; close it first");
  }
  ++store_.alone_asked_;
  WaitUntil(lock, store_.changed_, store_.tracer_,
            [&] { return !store_.exclusive_ && store_.first_in_ == 0 && !store_.HasOpenScope(); });
  store_.exclusive_ = true;
  while (!store_.active_.empty()) {
    // Batches that were started and not waited for are ended here: their owner may be this thread.
    const std::shared_ptr<InFlight> started = store_.Started();
    if (started == nullptr) {
      WaitUntil(lock, store_.changed_, store_.tracer_,
                [&] { return store_.active_.empty() || store_.Started() != nullptr; });
      continue;
    }
    lock.unlock();
    store_.End(started);
    lock.lock();
  }
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Started() const {
  for (const auto& [id, in_flight] : active_) {
    if (in_flight->task != nullptr) return in_flight;
  }
  return nullptr;
}

bool StoreImpl::InFlight::IsOpenScope() const {
  return scope && (task == nullptr || !task->Complete());
}

bool StoreImpl::HasOpenScope() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const auto& entry) { return entry.second->IsOpenScope(); });
}

bool StoreImpl::CallerHasOpenScope() const {
  return std::any_of(active_.begin(), active_.end(), [](const auto& entry) {
    return entry.second->IsOpenScope() && entry.second->opener == std::this_thread::get_id();
  });
}

StoreImpl::Exclusive::~Exclusive() {
  {
    const std::lock_guard lock(store_.mutex_);
    store_.exclusive_ = false;
    store_.first_in_ = store_.entering_;
    ++store_.alone_ended_;
    store_.changed_.notify_all();
  }
  store_.log_.Tell();
}

void StoreImpl::Enter(std::unique_lock<std::mutex>& lock) {
  if (!exclusive_) return;
  ++entering_;
  WaitUntil(lock, changed_, tracer_, [&] { return !exclusive_; });
  --entering_;
  if (first_in_ > 0 && --first_in_ == 0) changed_.notify_all();
}

void StoreImpl::Validate(const Batch& batch) const {
  const std::size_t n = batch.results.size();
  const auto expect = [&](const char* name, std::size_t bytes, std::size_t row) {
    if (bytes != n * row) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("batch of {} operations: '{}' has {} bytes, it must have {} ({} for "
                              "each operation)",
                              n, name, bytes, n * row, row));
    }
  };
  const auto expect_address = [&](const char* name, const void* array, std::size_t bytes) {
    if (bytes > 0 && array == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("batch of {} operations: '{}' is a null pointer", n, name));
    }
  };
  expect_address("results", batch.results.data(), n);
  expect_address("keys", batch.keys.data(), batch.keys.size());
  expect_address("ops", batch.ops.data(), batch.ops.size());
  expect_address("values", batch.values.data(), batch.values.size());
  expect_address("found", batch.found.data(), batch.found.size());
  if (n > (std::size_t{1} << 31) - 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch of {} operations: at most 2^31 - 1 fit in one batch", n));
  }
  expect("keys", batch.keys.size(), key_size());
  if (!batch.ops.empty()) expect("ops", batch.ops.size(), 1);
  if (!batch.values.empty()) expect("values", batch.values.size(), value_size());
  if (!batch.found.empty()) expect("found", batch.found.size(), value_size());
  if (batch.ops.empty() && static_cast<std::uint8_t>(batch.op) >= kOpKinds) {
    throw Error(ErrorCode::kInvalidArgument, "batch: its kind is not one of Op's");
  }
  if (n > 0 && batch.ops.empty() && Writes(batch.op) && batch.values.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch of {}s: 'values' is missing", OpName(batch.op)));
  }
}

Reservation StoreImpl::NeedsOf(const Batch& batch) const {
  const std::uint64_t n = batch.results.size();
  Reservation needs;
  const bool mixed = !batch.ops.empty();
  if (!InlineValues(value_size()) && (mixed || Writes(batch.op))) needs.cells = n;
  if (mixed || batch.op != Op::kFind) needs.slots = n;
  // On executor cuda the kinds may be in device memory: then they may be any.
  if (mixed && needs.cells > 0 && executor_->kind() == ExecutorKind::kCpu) {
    needs.cells = static_cast<std::uint64_t>(
        std::count_if(batch.ops.begin(), batch.ops.end(), [](Op op) { return Writes(op); }));
  }
  return needs;
}

Reservation StoreImpl::WantsOf(const InFlight& in_flight) const {
  // A mixed batch that takes somewhat more than others did need not wait for growth.
  constexpr double kMargin = 1.25;
  constexpr double kSpare = 32;
  Reservation wants = in_flight.needs;
  if (in_flight.mixed) {
    const double expected = static_cast<double>(wants.cells) * taken_share_ * kMargin + kSpare;
    wants.cells = std::min(wants.cells, static_cast<std::uint64_t>(expected));
  }
  // A slot is erased once before it is given back, which it is not while the batch runs.
  wants.slots = std::min(wants.slots, MostErasedSlots());
  return wants;
}

std::uint64_t StoreImpl::CellsToBegin(const InFlight& in_flight) const {
  const std::uint64_t wanted = WantsOf(in_flight).cells;
  if (wanted == 0) return 0;
  // (Half a step: one step is then enough, for which there is more of everything.)
  const std::uint64_t step = pool_->growth_cells();
  const std::uint64_t most = in_flight.scope ? wanted : std::min(wanted, step / 2);
  return most + epochs_.kept_cells();
}

bool StoreImpl::HasRoomFor(const InFlight& in_flight, bool inserts, bool made_room) const {
  const std::uint64_t slots = WantsOf(in_flight).slots;
  if (slots > 0 && epochs_.slots_pending() + slots > executor_->slot_queue_room()) return false;
  // What finds no room will say so; a scope can't be given more afterwards.
  if (at_limit_ && (made_room || !in_flight.scope)) return true;
  if (epochs_.available_cells() < CellsToBegin(in_flight)) return false;
  return !inserts || static_cast<double>(items_) < kFullLoad * static_cast<double>(Capacity());
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Admit(const Reservation& needs, Admission how,
                                                      bool scope, Epochs::SlotRange* recycle) {
  auto in_flight = std::make_shared<InFlight>();
  in_flight->needs = needs;
  in_flight->mixed = how.mixed;
  in_flight->kind = how.kind;
  in_flight->operations = how.operations;
  in_flight->scope = scope;
  in_flight->opener = std::this_thread::get_id();
  bool made_room = false;
  std::optional<std::uint64_t> after;  // so many Exclusives a scope goes in
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      Enter(lock);
      if (scope && !CallerHasOpenScope()) {
        if (!after) after = alone_asked_;
        WaitUntil(lock, changed_, tracer_, [&] { return !exclusive_ && alone_ended_ >= *after; });
      }
      CheckUsable();
      if (HasRoomFor(*in_flight, how.inserts, made_room)) {
        const Reservation wants = WantsOf(*in_flight);
        if (const CellGrant cells = epochs_.ToSort(wants.cells); cells.count > 0) {
          executor_->SortCells(cells);
        }
        in_flight->id = epochs_.next_id();
        const auto place = active_.emplace(in_flight->id, in_flight).first;
        try {
          epochs_.Begin(wants, recycle, &in_flight->grant);
        } catch (...) {
          active_.erase(place);
          throw;
        }
        for (const auto& [id, other] : active_) {
          if (other == in_flight) continue;
          in_flight->beside_writes |= Writes(other->needs);
          other->beside_writes |= Writes(needs);
        }
        return in_flight;
      }
    }
    const Exclusive exclusive(*this);
    CheckUsable();
    MakeRoom(*in_flight, how.inserts);
    made_room = true;
  }
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Start(const Batch& batch, Stream stream) {
  Validate(batch);
  CheckUsable();
  cache_.Advance(*executor_, batch.results.size());
  LogRefreshes();
  if (batch.results.empty()) {
    auto nothing = std::make_shared<InFlight>();
    nothing->ended = true;
    return nothing;
  }
  auto task = executor_->Prepare(batch, stream);
  const bool results_on_host = task->ResultsOnHost();
  auto in_flight =
      StartTask(std::move(task), NeedsOf(batch),
                {.inserts = !batch.ops.empty() || Inserts(batch.op),
                 .mixed = !batch.ops.empty(),
                 .kind = batch.ops.empty() ? std::optional(batch.op) : std::nullopt,
                 .operations = batch.results.size()});
  in_flight->results_on_host = results_on_host;
  return in_flight;
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::StartTask(std::shared_ptr<BatchTask> task,
                                                    const Reservation& needs, Admission how) {
  Epochs::SlotRange recycle;
  auto in_flight = Admit(needs, how, !task->Complete(), &recycle);
  try {
    task->Start(recycle, in_flight->grant);
  } catch (...) {
    TakeBack(*in_flight, task->Touched(), recycle);
    throw;
  }
  const std::lock_guard lock(mutex_);
  in_flight->task = std::move(task);
  changed_.notify_all();
  return in_flight;
}

ReclaimPositions StoreImpl::PositionsAfterFailure() noexcept {
  try {
    return executor_->Positions();
  } catch (...) {
    SetUnusable("a batch was carried out");  // nobody knows how much room the queues have
    return {};
  }
}

void StoreImpl::TakeBack(InFlight& in_flight, bool touched,
                         const Epochs::SlotRange& recycle) noexcept {
  ReclaimPositions positions;
  const CellGrant& grant = in_flight.grant;
  if (!touched) {
    try {
      bool taken_back = false;
      {
        const std::lock_guard lock(mutex_);
        taken_back = epochs_.TakeBack(grant, grant.count);
      }
      if (!taken_back && grant.count > 0) executor_->ReturnCells(grant);
      executor_->RecycleSlots(recycle);
      positions = executor_->Positions();
    } catch (...) {
      touched = true;
    }
  }
  if (touched) positions = PositionsAfterFailure();
  const std::lock_guard lock(mutex_);
  left_behind_ |= touched;  // what it was given is found again when the pool is opened next
  epochs_.End(in_flight.id, positions);
  active_.erase(in_flight.id);
  changed_.notify_all();
}

void StoreImpl::End(const std::shared_ptr<InFlight>& in_flight) {
  bool beside_writes = false;
  {
    std::unique_lock lock(mutex_);
    WaitUntil(lock, changed_, tracer_, [&] { return in_flight->ended || !in_flight->ending; });
    if (in_flight->ended) return;
    in_flight->ending = true;
  }
  Progress& progress = in_flight->progress;
  bool behind = true;
  try {
    progress = in_flight->task->Await();
    {
      const std::lock_guard lock(mutex_);
      beside_writes = in_flight->beside_writes;
      in_flight->cells_left = progress.cells_left;
      if (epochs_.TakeBack(in_flight->grant, progress.cells_left)) progress.cells_left = 0;
    }
    if (progress.cells_left > 0) {
      const CellGrant& grant = in_flight->grant;
      progress.positions = executor_->ReturnCells(
          {grant.first + grant.count - progress.cells_left, progress.cells_left});
    }
    behind = false;
    if (beside_writes) in_flight->task->PersistObserved();
  } catch (...) {
    in_flight->error = std::current_exception();
  }
  if (behind) progress.positions = PositionsAfterFailure();
  const std::lock_guard lock(mutex_);
  const bool unfinished = progress.shortages() > 0 && !in_flight->error;
  if (!unfinished) in_flight->task.reset();
  epochs_.End(in_flight->id, progress.positions);
  CountTaken(*in_flight);
  CountOperations(*in_flight);
  items_ += progress.items_added;
  found_ += progress.found;
  cache_hits_ += progress.cache_hits;
  left_behind_ |= behind;
  auto node = active_.extract(in_flight->id);
  if (unfinished) unfinished_.insert(std::move(node));
  in_flight->ended = true;
  changed_.notify_all();
}

void StoreImpl::CountOperations(const InFlight& in_flight) {
  if (in_flight.error) return;
  if (in_flight.kind) {
    operations_[static_cast<std::size_t>(*in_flight.kind)] += in_flight.operations;
  } else {
    mixed_operations_ += in_flight.operations;
  }
}

void StoreImpl::CountTaken(const InFlight& in_flight) {
  constexpr std::uint64_t kFew = 256;  // of which nothing follows for others
  constexpr double kForget = 0.95;
  if (!in_flight.mixed || in_flight.error || in_flight.needs.cells < kFew) return;
  const double taken = static_cast<double>(in_flight.grant.count - in_flight.cells_left) +
                       static_cast<double>(in_flight.progress.short_of_cells);
  taken_share_ = std::max(taken_share_ * kForget,
                          std::min(taken / static_cast<double>(in_flight.needs.cells), 1.0));
}

void StoreImpl::Wait(const std::shared_ptr<InFlight>& in_flight) {
  End(in_flight);
  const auto is_unfinished = [&] {
    const std::lock_guard lock(mutex_);
    return unfinished_.contains(in_flight->id);
  };
  if (is_unfinished()) {
    try {
      const Exclusive exclusive(*this);
      if (is_unfinished()) FinishAfterGrowth(in_flight);  // else Close did
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (unfinished_.erase(in_flight->id) > 0) {  // the caller has a scope open
        in_flight->task.reset();
        in_flight->error = std::current_exception();
      }
    }
  }
  if (in_flight->error) std::rethrow_exception(in_flight->error);
}

}  // namespace gpm
