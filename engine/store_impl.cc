#include "engine/store_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <random>

#include "engine/profiler_range.h"
#include "pm/attributes.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"
#include "pm/memory_nodes.h"
#include "pm/tracer.h"
#include "recovery/check.h"
#include "recovery/recover.h"
#include "snapshot/new_file.h"
#include "table/geometry.h"

namespace gpm {
namespace {

/// One spare cell for so many items of the initial capacity: updates need cells to write to.
constexpr std::uint64_t kSpareShare = 8;

std::uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

std::unique_ptr<Executor> MakeExecutor(const OpenOptions& open, Pool& pool, Log* log) {
  if (open.executor < ExecutorKind::kAuto || open.executor > ExecutorKind::kCuda) {
    throw Error(ErrorCode::kInvalidArgument, "executor: it is none of ExecutorKind's");
  }
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

/// The node that a pool's pages are to be of; -1: any.
int ChooseMemoryNode(const OpenOptions& open) {
  constexpr int kAny = -1;
  if (open.memory_node == kMemoryAnywhere) return kAny;
  const MemoryNodes& nodes = MemoryNodes::Here();
  if (open.memory_node == kMemoryNearGpu) {
    return open.executor == ExecutorKind::kCpu ? kAny : nodes.NodeNear(open.device).value_or(kAny);
  }
  if (nodes.HasMemory(open.memory_node)) return open.memory_node;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("memory_node: {}; the machine's memory has the nodes {}",
                          open.memory_node, fmt::join(nodes.WithMemory(), ", ")));
}

}  // namespace

StoreImpl::StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open)
    : pool_(std::move(pool)),
      key_size_(pool_->superblock().key_size),
      value_size_(pool_->superblock().value_size),
      attributes_(ReadAttributes(pool_->superblock().attributes)),
      log_(open.log),
      executor_(MakeExecutor(open, *pool_, &log_)),
      cache_(*executor_, open.cache, pool_->mapping().persist().tracer()),
      space_(*pool_, *executor_, health_, {pool_->superblock().geometry, open.growth}),
      resizer_(*pool_, *executor_, health_, space_, draining_, cache_, log_, open.growth,
               open.growth_pause),
      admission_(*executor_, health_, space_, draining_, log_, pool_->mapping().persist().tracer()),
      snapshots_(admission_, pool_->mapping().persist().tracer()),
      grow_above_(open.grow_above),
      compact_below_(open.compact_below),
      kept_index_(open.search_index_bytes, key_size_, attributes_, open.search_indexed,
                  pool_->superblock().hash_seed) {
  ValidateGrowth(open);
  RequireCacheCanBe(open.cache, executor_->kind());
  SetCapacity(open.capacity);
}

void StoreImpl::SetCapacity(const Capacity& given) {
  const Capacity capacity =
      CapacityInItems(given, key_size_, value_size_, resizer_.growth(), grow_above_);
  if (capacity.items == 0) return;
  const std::byte* const cells = InlineValues(value_size_) ? nullptr : pool_->base();
  bound_ = std::make_unique<Bound>(RankedItems{capacity, key_size_, cells}, *executor_);
  const Admission::Entered entered(admission_);
  space_.SetMost(capacity.items, given.bytes);
  if (given.bytes > 0) pool_->mapping().SetSoftMax(given.bytes);
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
  auto pool = Pool::Create(path, config,
                           Pool::Options{.max_bytes = open.max_bytes,
                                         .overwrite = create.overwrite,
                                         .memory_node = ChooseMemoryNode(open),
                                         .tracer = tracer});
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

std::unique_ptr<StoreImpl> StoreImpl::Open(const std::string& path, const OpenOptions& open,
                                           PmTracer* tracer) {
  auto pool = Pool::Open(path, Pool::Options{.max_bytes = open.max_bytes,
                                             .memory_node = ChooseMemoryNode(open),
                                             .tracer = tracer});
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
  const Clock::time_point start = Clock::now();
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
  recovery_.seconds = SecondsSince(start);
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

void StoreImpl::Reserve(std::uint64_t items, bool keeps) {
  const Log::TellsAtEnd tells(log_);  // which may close the store
  while (!TryReserve(items, keeps)) {
  }
}

bool StoreImpl::TryReserve(std::uint64_t items, bool keeps) {
  // More than a pool's offsets reach, and few enough for the sums below.
  constexpr std::uint64_t kMostItems = std::uint64_t{1} << 48;
  if (items > kMostItems) {
    throw Error(ErrorCode::kNoSpace, fmt::format("{}: no room for {} items: no pool can have them",
                                                 pool_->mapping().path(), items));
  }
  snapshots_.AwaitCopied();
  const Admission::Alone alone(admission_, Admission::Telling::kLater);
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
  bytes += static_cast<double>(MissingCellBytes(more));
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
  const std::uint64_t cells = space_.MissingCells(more);  // a level may take the place of free ones
  if (cells > 0 && !space_.AddCells(cells)) fail();
  LogWantOfSpace();  // there is room again
  if (keeps) reserved_ = items;
  return true;
}

void StoreImpl::AdvanceRefresh() {
  while (!cache_.Advance(CacheManager::Haste::kWait, 0, admission_.Totals())) {
    { const Admission::Entered entered(admission_); }  // it is who is alone that changes the table
    health_.Check();
  }
}

std::uint64_t StoreImpl::RefreshCache() {
  health_.Check();
  const std::uint64_t refresh = cache_.Request();
  AdvanceRefresh();
  return refresh;
}

void StoreImpl::AwaitCacheRefresh(std::uint64_t refresh) {
  while (!cache_.Ended(refresh)) {
    health_.Check();
    cache_.Await();
    AdvanceRefresh();
  }
  LogRefreshes();
  log_.Tell();
}

bool StoreImpl::CacheRefreshDone(std::uint64_t refresh) {
  if (!cache_.Ended(refresh)) {
    cache_.Advance(CacheManager::Haste::kLook, 0, admission_.Totals());
  }
  return cache_.Ended(refresh) || !health_.usable();  // of which Wait tells
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
    {  // or it throws, before anything is done
      const Admission::Alone alone(admission_, Admission::Telling::kLater);
    }
    keeper_->Finish();
    log_.Tell();
    if (closed()) return;  // by the log
  }
  // (A snapshot whose values are copied has the executor's memory until its file is synced.)
  const Snapshots::Turn turn(snapshots_);
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
  attempt([&] { cache_.Stop(); });
  keeper_.reset();
  kept_index_.Drop();  // which may be in the executor's memory, as may be
  if (bound_ != nullptr) bound_->uses().Drop();
  executor_.reset();
  pool_.reset();
  snapshots_.End();
  if (usable && failure) std::rethrow_exception(failure);
}

}  // namespace gpm
