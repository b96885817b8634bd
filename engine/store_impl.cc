#include "engine/store_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <random>

#include "engine/profiler_range.h"
#include "pm/attributes.h"
#include "pm/gpu_host.h"
#include "pm/tracer.h"
#include "recovery/check.h"
#include "recovery/recover.h"
#include "snapshot/new_file.h"
#include "table/geometry.h"
#include "table/operation.h"

namespace gpm {
namespace {

/// One spare cell for so many items of the initial capacity: updates need cells to write to.
constexpr std::uint64_t kSpareShare = 8;

/// A batch that lacks slots has some freed (BatchTask::MakeSlots) before the table grows: in a
/// table as full as OpenOptions::grow_above, about one operation in so many lacks one, and few lack
/// one again. Where more do, moving items would soon cost more than a larger table.
constexpr std::uint64_t kOperationsPerFreedSlot = 512;
constexpr std::uint64_t kFewSlots = 8;
constexpr unsigned kAttemptsBeforeGrowth = 4;

std::uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

/// @throws Error(kInvalidArgument) saying what of it is wrong
void CheckEvicted(Evicted* evicted, std::uint32_t key_size, std::uint32_t value_size) {
  evicted->count = 0;
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

std::unique_ptr<Executor> MakeExecutor(const OpenOptions& open, Pool& pool, Log* log) {
  Mapping& mapping = pool.mapping();
  if (mapping.persist().tracer() != nullptr) return MakeCpuExecutor(open.threads, mapping);
  if (open.executor == ExecutorKind::kAuto) {
    const auto say_why = [&](std::string_view why) {
      log->Add(LogLevel::kInfo,
               [&] { return fmt::format("{}: executor cpu: {}", mapping.path(), why); });
    };
    if (!mapping.medium().gpu_can_register) {
      say_why(fmt::format("a GPU can't map medium {}", MediumName(mapping.medium().medium)));
    } else if (GpuCount() == 0) {
      say_why(BuiltWithCuda() ? "there is no CUDA device" : "this library is built without CUDA");
    }
    if (mapping.medium().gpu_can_register && GpuCount() > 0) {
      OpenOptions cuda = open;
      cuda.executor = ExecutorKind::kCuda;
      try {
        return MakeExecutor(cuda, pool, log);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;  // it can't be registered after all
        say_why(error.what());
      }
    }
    return MakeCpuExecutor(open.threads, mapping);
  }
  if (open.executor == ExecutorKind::kCpu) return MakeCpuExecutor(open.threads, mapping);
  auto executor = MakeCudaExecutor(open, mapping);
  mapping.RegisterGpu(open.device);
  return executor;
}

}  // namespace

StoreImpl::StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open)
    : pool_(std::move(pool)),
      key_size_(pool_->superblock().key_size),
      value_size_(pool_->superblock().value_size),
      attributes_(ReadAttributes(pool_->superblock().attributes)),
      log_(open.log),
      executor_(MakeExecutor(open, *pool_, &log_)),
      cache_(open.cache, pool_->mapping().persist().tracer()),
      space_(*pool_, *executor_, health_, {pool_->superblock().geometry, open.growth}),
      resizer_(*pool_, *executor_, health_, space_, draining_, cache_, log_, open.growth,
               open.growth_pause),
      admission_(*executor_, health_, space_, draining_, log_, pool_->mapping().persist().tracer()),
      snapshots_(pool_->mapping().persist().tracer()),
      grow_above_(open.grow_above),
      compact_below_(open.compact_below),
      search_index_bytes_(open.search_index_bytes) {
  ValidateGrowth(open);
  RequireCacheCanBe(open.cache, executor_->kind());
  SetCapacity(open.capacity);
}

void StoreImpl::SetCapacity(const Capacity& given) {
  const Capacity capacity = CapacityInItems(given, key_size_, value_size_, resizer_.growth());
  if (capacity.items == 0) return;
  bound_ = std::make_unique<Bound>(capacity, *executor_, key_size_);
  const Admission::Entered entered(admission_);
  space_.SetMostItems(capacity.items);
}

std::uint64_t StoreImpl::most_items() const {
  return bound_ == nullptr ? ~std::uint64_t{0} : bound_->capacity().items;
}

StoreImpl::~StoreImpl() = default;

void StoreImpl::Destroy(StoreImpl* store) noexcept {
  if (store->process_.IsThis()) {
    delete store;
    return;
  }
  // The executor's threads, and those that waited for a lock or a condition, are not in this
  // process: nothing of that kind may be destroyed here. The list keeps it reachable.
  static std::atomic<StoreImpl*> abandoned{nullptr};
  if (store->keeper_ != nullptr) store->keeper_->LetGo();
  store->pool_.reset();
  store->next_abandoned_ = abandoned.exchange(store);
}

std::unique_ptr<StoreImpl> StoreImpl::Create(const std::string& path, const CreateOptions& create,
                                             const OpenOptions& open, PmTracer* tracer) {
  ValidateGeometry(create.geometry);
  ValidateGrowth(open);
  PoolConfig config;
  config.key_size = create.key_size;
  config.value_size = create.value_size;
  config.geometry = create.geometry;
  config.attributes = create.attributes;
  std::uint64_t seed = create.hash_seed ? *create.hash_seed : RandomWord();
  config.hash_seed[0] = Scramble(seed + 0x9E3779B97F4A7C15ull);
  config.hash_seed[1] = Scramble(seed + 2 * 0x9E3779B97F4A7C15ull) | 1;
  const Growth growth{create.geometry, open.growth};
  config.levels = growth.Reach(
      growth.Smallest(), static_cast<double>(create.initial_capacity) / Space::kComfortableLoad);
  auto pool = Pool::Create(
      path, config,
      Pool::Options{.max_bytes = open.max_bytes, .overwrite = create.overwrite, .tracer = tracer});
  pool->mapping().RemoveOnClose(true);  // until there is a store, too
  std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(pool), open));
  const Admission::Alone alone(store->admission_);
  if (!InlineValues(create.value_size) && create.initial_capacity > 0 &&
      !store->space_.AddCells(create.initial_capacity + create.initial_capacity / kSpareShare)) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: no room for the values of {} items of {} bytes; make the pool's "
                            "maximum or the initial capacity fit",
                            path, create.initial_capacity, create.value_size));
  }
  store->reserved_ = create.initial_capacity;
  store->resizer_.MakeAccelerators();
  store->pool_->SetClean(false);
  store->pool_->mapping().RemoveOnClose(false);
  return store;
}

void StoreImpl::RemoveOnClose() { pool_->mapping().RemoveOnClose(true); }

std::unique_ptr<StoreImpl> StoreImpl::Open(const std::string& path, const OpenOptions& open,
                                           PmTracer* tracer) {
  auto pool = Pool::Open(path, Pool::Options{.max_bytes = open.max_bytes, .tracer = tracer});
  try {
    const Superblock& superblock = pool->superblock();
    const std::uint64_t sequence = superblock.clean != 0 ? superblock.sequence : 0;
    std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(pool), open));
    store->opened_sequence_ = sequence;
    store->Recover();
    store->log_.Tell();
    return store;
  } catch (const std::bad_alloc&) {  // as large as the file says it is, which may be a lie
    throw Error(ErrorCode::kNoSpace,
                path + ": not enough memory for what a pool of this size needs while it is open");
  }
}

void StoreImpl::Recover() {
  const ProfilerRange range("recovery");
  const auto start = std::chrono::steady_clock::now();
  const Admission::Alone alone(admission_);
  space_.Open();
  // Reads each slot, in order. What follows looks at the directory, if there is one.
  resizer_.MakeAccelerators();
  const auto scan = [&](ScanMode mode) GPM_NOT_CHECKED {
    try {
      return executor_->ScanSlots(mode, space_.CellRanges());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kGpu) throw;
    } catch (const std::bad_alloc&) {
    }
    resizer_.DropAccelerators();  // they may have taken the memory that the scan needs
    return executor_->ScanSlots(mode, space_.CellRanges());
  };
  const ScanCounters found = RecoverPool(
      *pool_,
      {.scan = scan, .finish_resize = [&]() GPM_NOT_CHECKED { return resizer_.FinishResize(); }},
      &recovery_);
  space_.FreeUnused(found.items);
  resizer_.MakeAccelerators();
  resizer_.GoOnDraining();
  recovery_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_.Add(recovery_.was_clean ? LogLevel::kInfo : LogLevel::kWarning, [&] {
    return fmt::format(
        "{}: recovered in {:.3f} s: closed {}, {} items, {} half-inserted slots cleared, {} "
        "duplicates removed{}",
        pool_->mapping().path(), recovery_.seconds,
        recovery_.was_clean ? "in order" : "not in order", found.items,
        recovery_.insert_slots_cleared, recovery_.duplicates_removed,
        recovery_.resize_continued ? ", a resize gone on with" : "");
  });
}

Demand StoreImpl::DemandOf(const Batch& batch) const {
  const std::uint64_t n = batch.results.size();
  Demand demand;
  demand.operations = n;
  demand.mixed = !batch.ops.empty();
  if (!demand.mixed) demand.kind = batch.op;
  demand.inserts = demand.mixed || Inserts(batch.op);
  if (demand.inserts) demand.most_added = n;
  if (!InlineValues(value_size_) && (demand.mixed || Writes(batch.op))) demand.most.cells = n;
  if (demand.mixed || batch.op != Op::kFind) demand.most.slots = n;
  // On executor cuda the kinds may be in device memory: then they may be any.
  if (demand.mixed && demand.most.cells > 0 && executor_->kind() == ExecutorKind::kCpu) {
    demand.most.cells = static_cast<std::uint64_t>(
        std::count_if(batch.ops.begin(), batch.ops.end(), [](Op op) { return Writes(op); }));
  }
  return demand;
}

std::shared_ptr<InFlight> StoreImpl::Start(const Batch& batch, Stream stream, Evicted* evicted) {
  ValidateBatch(batch, key_size_, value_size_);
  if (evicted != nullptr) CheckEvicted(evicted, key_size_, value_size_);
  health_.Check();
  cache_.Advance(*executor_, batch.results.size(), admission_.Totals());
  LogRefreshes();
  if (batch.results.empty()) {
    auto nothing = std::make_shared<InFlight>(Demand{});
    nothing->ended = true;
    return nothing;
  }
  const Demand demand = DemandOf(batch);
  std::optional<Bound::Turn> turn;
  if (bound_ != nullptr && demand.inserts) TakeTurn(&turn);
  if (turn && !turn->nested()) MakeWay(&batch, demand.most_added, stream, evicted);
  auto task = executor_->Prepare(batch, stream);
  const bool results_on_host = task->ResultsOnHost();
  std::unique_ptr<BatchWatch> watch;
  if (bound_ != nullptr) watch = bound_->Watch(&batch, demand.most_added);
  auto in_flight = StartTask(std::move(task), demand, std::move(watch));
  in_flight->results_on_host = results_on_host;
  turn.reset();
  if (bound_ != nullptr) log_.Tell();
  return in_flight;
}

std::shared_ptr<InFlight> StoreImpl::StartScope(std::shared_ptr<BatchTask> task,
                                                const Demand& demand) {
  if (bound_ == nullptr || !demand.inserts) return StartTask(std::move(task), demand);
  std::optional<Bound::Turn> turn;
  TakeTurn(&turn);
  if (!turn->nested()) MakeWay(nullptr, demand.most_added, nullptr, nullptr);
  return StartTask(std::move(task), demand, bound_->Watch(nullptr, demand.most_added));
}

std::shared_ptr<InFlight> StoreImpl::Run(const Batch& batch, Stream stream) {
  Demand demand = DemandOf(batch);
  demand.inserts = false;
  demand.most.cells = 0;
  const bool erases = !batch.ops.empty() || batch.op == Op::kErase;
  return StartTask(executor_->Prepare(batch, stream), demand,
                   erases ? bound_->Watch(&batch, 0) : nullptr);
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
  for (bool made_room = false; !admission_.TryAdmit(in_flight, made_room, &recycle);
       made_room = true) {
    const Admission::Alone alone(admission_);
    health_.Check();
    MakeRoom(demand);
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
  admission_.End(in_flight);
  if (admission_.IsUnfinished(*in_flight)) {
    try {
      const Admission::Alone alone(admission_);
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
  if (compact_below_ > 0 && in_flight->progress.items_added < 0) CompactIfSparse();
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
  if (space_.HasRoomFor(demand, false)) return;
  bool enough = TryMakeRoom(demand);
  if (!enough && AwaitHeldCells()) enough = TryMakeRoom(demand);
  space_.SetAtLimit(!enough);
  LogWantOfSpace();
  space_.LookAhead();
}

bool StoreImpl::Grow(const Demand& waiting) {
  if (!draining_.active()) space_.CountFull();
  return resizer_.Grow(waiting);
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
  const auto start = std::chrono::steady_clock::now();
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
  displacing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  bool grown = false;
  do {
    if (!Grow(in_flight.demand)) break;
    grown = true;
    *attempts = 0;
  } while (lacking > room(std::max(grow_above_, Space::kComfortableLoad)));
  return grown;
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
    if (const std::uint64_t cells = space_.MissingCells(before.short_of_cells); cells > 0) {
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
  admission_.Count(in_flight.progress);
  if (in_flight.progress.copy_failure) std::rethrow_exception(in_flight.progress.copy_failure);
}

void StoreImpl::Reserve(std::uint64_t items) {
  while (!TryReserve(items)) {
  }
}

bool StoreImpl::TryReserve(std::uint64_t items) {
  snapshots_.AwaitCopied();
  const Admission::Alone alone(admission_);
  health_.Check();
  if (ExportHoldsCells()) return false;
  AwaitHeldCells();
  space_.Reclaim();
  resizer_.EndDraining();
  const Superblock& superblock = pool_->superblock();
  const std::uint64_t more = items - std::min(items, space_.items());
  const double slots = static_cast<double>(items) / Space::kComfortableLoad;
  const LevelSizes sizes = resizer_.growth().Reach(SizesOf(superblock), slots);
  const auto end_of_new = sizes.begin() + static_cast<std::ptrdiff_t>(resizer_.CountNew(sizes));
  const bool grows = end_of_new != sizes.begin();
  auto bytes = static_cast<double>(LevelsBytes(superblock, {sizes.begin(), end_of_new}));
  std::uint64_t cells = space_.MissingCells(more);
  bytes += static_cast<double>(cells) * static_cast<double>(CellBytes(value_size_));
  const Mapping& mapping = pool_->mapping();
  const std::uint64_t used = UsedEnd(superblock);
  const std::uint64_t room = mapping.max_bytes() - used;
  const std::uint64_t medium_room =
      std::max(mapping.PossibleFileBytes(), mapping.mapped_bytes()) - used;
  const auto fail = [&]() GPM_NOT_CHECKED {
    LogWantOfSpace();
    throw Error(
        ErrorCode::kNoSpace,
        fmt::format("{}: no room for {} items, {} of them new: {:.0f} bytes are needed, the {}",
                    mapping.path(), items, more, bytes,
                    room <= medium_room
                        ? fmt::format("pool may grow by {}", room)
                        : fmt::format("medium has room for {} (and the pool may grow by {})",
                                      medium_room, room)));
  };
  if (bytes > static_cast<double>(room) ||
      static_cast<double>(SlotsOf(superblock.geometry, sizes)) < slots) {
    fail();
  }
  if (grows && !resizer_.Resize(sizes)) fail();
  cells = space_.MissingCells(more);  // again: a level may have taken the place of free ones
  if (cells > 0 && !space_.AddCells(cells)) fail();
  LogWantOfSpace();  // there is room again
  return true;
}

std::uint64_t StoreImpl::RefreshCache() {
  health_.Check();
  const std::uint64_t refresh = cache_.Request();
  cache_.Advance(*executor_, 0, admission_.Totals());
  return refresh;
}

void StoreImpl::AwaitCacheRefresh(std::uint64_t refresh) {
  while (!cache_.Ended(refresh)) {
    health_.Check();
    cache_.Await(*executor_);
    cache_.Advance(*executor_, 0, admission_.Totals());
  }
  LogRefreshes();
}

bool StoreImpl::CacheRefreshDone(std::uint64_t refresh) {
  if (!closed() && !cache_.Ended(refresh)) cache_.Advance(*executor_, 0, admission_.Totals());
  return cache_.Ended(refresh);
}

void StoreImpl::LogRefreshes() {
  if (!log_.enabled()) return;
  const CacheStats stats = cache_.Stats();
  std::uint64_t logged = logged_refreshes_;
  do {
    if (logged >= stats.refreshes) return;
  } while (!logged_refreshes_.compare_exchange_weak(logged, stats.refreshes));
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("cache refreshed in {:.3f} s, {} times by now", stats.refresh_seconds,
                       stats.refreshes);
  });
  log_.Tell();
}

void StoreImpl::ForEach(const Store::Visitor& visit) {
  const Admission::Alone alone(admission_);
  health_.Check();
  VisitPool(*pool_, visit);
}

bool StoreImpl::ForEachUntil(const Store::StoppableVisitor& visit) {
  const Admission::Alone alone(admission_);
  health_.Check();
  return VisitPoolUntil(*pool_, visit);
}

SnapshotId StoreImpl::PoolId() const {
  SnapshotId id;
  const Superblock& superblock = pool_->superblock();
  std::copy(std::begin(superblock.uuid), std::end(superblock.uuid), id.begin());
  return id;
}

void StoreImpl::GiveName(const std::string& path) {
  const Admission::Alone alone(admission_);
  Mapping& mapping = pool_->mapping();
  SyncFile(mapping.path());
  gpm::GiveName(mapping.path(), path);
  mapping.SetPath(path);
}

void StoreImpl::KeepSnapshots(std::unique_ptr<SnapshotFolder> folder,
                              const SnapshotSchedule& schedule, std::optional<bool> changed) {
  const SnapshotId id = PoolId();
  if (!folder->chains().empty() && !folder->IsOf(id)) {
    throw Error(ErrorCode::kInvalidArgument,
                folder->path() +
                    ": has the snapshots of another pool; name a folder of its own, "
                    "or restore from this one where the pool is gone");
  }
  folder->Admit(id);
  for (const std::string& warning : folder->warnings()) {
    log_.Add(LogLevel::kWarning, [&] { return warning; });
  }
  if (!changed) changed = SnapshotFolder::Saved{id, opened_sequence_} != folder->saved();
  const auto take = [this](const std::string& file, const std::string& base) {
    return Snapshot(file, {.base = base});
  };
  keeper_ = std::make_unique<SnapshotKeeper>(std::move(folder), schedule, *changed, take, log_);
  keeper_->Start();
  log_.Tell();
}

StoreStats StoreImpl::Stats() {
  const Admission::Entered entered(admission_);
  health_.Check();
  const Superblock& superblock = pool_->superblock();
  StoreStats stats;
  stats.items = space_.items();
  stats.capacity_slots = space_.Capacity();
  stats.load_factor = static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots);
  stats.level_buckets = SizesOf(superblock);
  stats.buckets_to_drain = draining_.active() ? draining_.buckets_left() : 0;
  resizer_.AddTo(&stats);
  stats.value_cells = space_.cells();
  stats.free_cells = space_.free_cells();
  stats.pm_bytes = pool_->mapping().pool_bytes();
  stats.pm_bytes_ready = stats.pm_bytes - pool_->mapping().mapped_bytes();
  stats.pm_bytes_free = pool_->mapping().mapped_bytes() - UsedBytes(superblock);
  const GrowthTimes& growth = pool_->mapping().growth_times();
  stats.pool_growths = growth.growths;
  stats.pool_growth_waits = growth.waits;
  stats.pool_growth_wait_seconds = growth.wait_seconds;
  stats.displaced_items = displaced_items_;
  stats.displacing_seconds = displacing_seconds_;
  stats.pm_bytes_given_back = given_back_;
  stats.queue_bytes = executor_->queue_bytes();
  stats.gpu_bytes = executor_->gpu_bytes() + executor_->workspace_bytes();
  stats.gpu_bytes_kept = executor_->kept_gpu_bytes();
  stats.key_size = superblock.key_size;
  stats.value_size = superblock.value_size;
  stats.geometry = superblock.geometry;
  stats.attributes = attributes_;
  AddSearchesTo(&stats);
  stats.executor = executor_->kind();
  stats.threads = executor_->threads();
  stats.medium = pool_->mapping().medium();
  // Lines that a GPU wrote are flushed when their batch ends; until then the CPU's cache may write
  // them back in any order.
  if (stats.executor == ExecutorKind::kCuda && stats.medium.needs_flush) {
    stats.medium.survives_power_loss = false;
  }
  stats.recovery = recovery_;
  stats.cache = cache_.Stats();
  snapshots_.AddTo(&stats);
  if (bound_ != nullptr) bound_->AddTo(&stats);
  if (keeper_ != nullptr) keeper_->AddTo(&stats);
  admission_.AddTo(&stats);
  return stats;
}

void StoreImpl::AwaitReadyRoom() {
  const Admission::Alone alone(admission_);
  pool_->mapping().AwaitReady();
}

std::uint64_t StoreImpl::CountMisplacedCells() {
  const Admission::Alone alone(admission_);
  return space_.CountMisplacedCells();
}

void StoreImpl::Close() {
  snapshots_.AwaitCopied();
  if (keeper_ != nullptr) {
    { const Admission::Alone alone(admission_); }  // or it throws, before anything is done
    keeper_->Finish();
  }
  const Admission::Alone alone(admission_);
  AwaitHeldCells();
  snapshots_.AwaitCopied();
  const bool usable = health_.usable();
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) GPM_NOT_CHECKED {
    try {
      action();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  if (usable) {
    attempt([&]() GPM_NOT_CHECKED {
      while (const auto in_flight = admission_.FirstUnfinished()) FinishAfterGrowth(in_flight);
      space_.Reclaim();
      resizer_.EndDraining();
      if (admission_.left_behind()) return;
      pool_->SetClean(true);
      if (keeper_ != nullptr) keeper_->NoteClosed({PoolId(), pool_->superblock().sequence});
    });
  }
  if (!usable) attempt([&] { health_.Check(); });  // which every ticket says, and Close need not
  admission_.FailUnfinished(failure);
  attempt([&] { cache_.Stop(*executor_); });
  keeper_.reset();
  executor_.reset();
  pool_.reset();
  if (usable && failure) std::rethrow_exception(failure);
}

}  // namespace gpm
