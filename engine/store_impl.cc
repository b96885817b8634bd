#include "engine/store_impl.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <random>

#include "pm/gpu_host.h"
#include "pm/tracer.h"
#include "recovery/check.h"
#include "table/geometry.h"

namespace gpm {
namespace {

/// One spare cell for so many items of the initial capacity: updates need cells to write to.
constexpr std::uint64_t kSpareShare = 8;

std::uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

/// Forks that made this process out of the one that first asked: a load, where asking the system
/// for the process's number would take as long as a launch's arguments do.
std::uint32_t Forks() {
  static std::atomic<std::uint32_t> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  if (registered != 0) return static_cast<std::uint32_t>(getpid());  // no memory for it
  return forks.load(std::memory_order_relaxed);
}

std::unique_ptr<Executor> MakeExecutor(const OpenOptions& open, Pool& pool, Log* log) {
  Mapping& mapping = pool.mapping();
  if (mapping.persist().tracer() != nullptr) return MakeCpuExecutor(open.threads, mapping);
  if (open.executor == ExecutorKind::kAuto) {
    const auto say_why = [&](std::string_view why) {
      log->Add(LogLevel::kInfo, [&] {
        return fmt::format("{}: executor cpu: {}", mapping.path(), why);
      });
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
  mapping.RegisterGpu();
  return executor;
}

}  // namespace

StoreImpl::StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open)
    : pool_(std::move(pool)),
      tracer_(pool_->mapping().persist().tracer()),
      key_size_(pool_->superblock().key_size),
      value_size_(pool_->superblock().value_size),
      log_(open.log),
      executor_(MakeExecutor(open, *pool_, &log_)),
      cache_(open.cache, tracer_),
      process_(getpid()),
      forks_(Forks()) {
  RefreshTable();
}

StoreImpl::~StoreImpl() = default;

bool StoreImpl::InItsProcess() const { return Forks() == forks_; }

void StoreImpl::CheckProcess() const {
  if (InItsProcess()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the store was opened by process {}, of which this one is a fork; use it "
                          "there, or open the pool here when it is closed there",
                          process_));
}

void StoreImpl::Destroy(StoreImpl* store) noexcept {
  if (store->InItsProcess()) {
    delete store;
    return;
  }
  // The executor's threads, and those that waited for a lock or a condition, are not in this
  // process: nothing of that kind may be destroyed here. The list keeps it reachable.
  static std::atomic<StoreImpl*> abandoned{nullptr};
  store->pool_.reset();
  store->next_abandoned_ = abandoned.exchange(store);
}

std::unique_ptr<StoreImpl> StoreImpl::Create(const std::string& path, const CreateOptions& create,
                                             const OpenOptions& open, PmTracer* tracer) {
  ValidateGeometry(create.geometry);
  PoolConfig config;
  config.key_size = create.key_size;
  config.value_size = create.value_size;
  config.geometry = create.geometry;
  std::uint64_t seed = create.hash_seed ? *create.hash_seed : RandomWord();
  config.hash_seed[0] = Scramble(seed + 0x9E3779B97F4A7C15ull);
  config.hash_seed[1] = Scramble(seed + 2 * 0x9E3779B97F4A7C15ull) | 1;
  // A small store starts with some 64 buckets in its top level.
  const auto wanted =
      static_cast<std::uint64_t>(static_cast<double>(create.initial_capacity) / kComfortableLoad);
  config.top_level = std::max<std::uint32_t>(create.geometry.levels - 1u, 6);
  while (config.top_level + 1 < kMaxLevels &&
         CapacityAt(create.geometry, config.top_level) < wanted) {
    ++config.top_level;
  }
  auto pool =
      Pool::Create(path, config, Pool::Options{.max_bytes = open.max_bytes, .tracer = tracer});
  try {
    std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(pool), open));
    store->recovery_.was_clean = true;
    if (!InlineValues(create.value_size) && create.initial_capacity > 0 &&
        !store->AddCells(create.initial_capacity + create.initial_capacity / kSpareShare)) {
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("{}: no room for the values of {} items of {} bytes; make the pool's "
                              "maximum or the initial capacity fit",
                              path, create.initial_capacity, create.value_size));
    }
    store->MakeAccelerators();
    store->pool_->SetClean(false);
    store->log_.Tell();
    return store;
  } catch (...) {
    if (path != Mapping::kPinnedPath) std::remove(path.c_str());
    throw;
  }
}

std::unique_ptr<StoreImpl> StoreImpl::Open(const std::string& path, const OpenOptions& open,
                                           PmTracer* tracer) {
  auto pool = Pool::Open(path, Pool::Options{.max_bytes = open.max_bytes, .tracer = tracer});
  try {
    std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(pool), open));
    store->Recover();
    store->log_.Tell();
    return store;
  } catch (const std::bad_alloc&) {  // as large as the file says it is, which may be a lie
    throw Error(ErrorCode::kNoSpace,
                path + ": not enough memory for what a pool of this size needs while it is open");
  }
}

void StoreImpl::Recover() {
  const auto start = std::chrono::steady_clock::now();
  const Superblock& superblock = pool_->superblock();
  const bool resizing = superblock.top - superblock.bottom + 1 > superblock.geometry.levels;
  recovery_.was_clean = superblock.clean != 0;
  const std::vector<CellRange> ranges = CellRanges();
  CountCells();
  executor_->GrowQueues(cells_, kMinSlotQueue, 0);
  // Reads each slot, in order. What follows looks at the directory, if there is one.
  MakeAccelerators();
  const auto pass = [&](ScanMode mode) {
    try {
      return executor_->ScanSlots(mode, ranges);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kGpu) throw;
    } catch (const std::bad_alloc&) {
    }
    DropAccelerators();  // they may have taken the memory that the pass needs
    return executor_->ScanSlots(mode, ranges);
  };
  const bool trusted = recovery_.was_clean && !resizing;
  ScanCounters found = pass(trusted ? ScanMode::kTrust : ScanMode::kInspect);
  // It was not closed in order, whatever it says: second copies have to be looked for too.
  if (trusted && found.insert_slots > 0) found = pass(ScanMode::kInspect);
  if (found.bad_references + found.shared_cells > 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: {} items name no value cell of the pool and {} share one; nothing "
                            "was changed; `gpmstore check` names the first",
                            pool_->mapping().path(), found.bad_references, found.shared_cells));
  }
  recovery_.insert_slots_cleared = found.insert_slots;
  recovery_.duplicates_removed = found.duplicates;
  if (recovery_.was_clean) pool_->SetClean(false);
  if (found.insert_slots + found.duplicates > 0) pass(ScanMode::kRepair);
  if (resizing) {
    recovery_.resize_continued = true;
    Drain();
    // Counted anew: a damaged pool can have had copies of an item in the levels that were drained.
    found = pass(ScanMode::kTrust);
  }
  items_ = static_cast<std::int64_t>(found.items);
  executor_->FreeUnused(ranges);
  epochs_.Quiesced(executor_->Positions());
  MakeAccelerators();
  recovery_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_.Add(recovery_.was_clean ? LogLevel::kInfo : LogLevel::kWarning, [&] {
    return fmt::format(
        "{}: recovered in {:.3f} s: closed {}, {} items, {} half-inserted slots cleared, {} "
        "duplicates removed{}",
        pool_->mapping().path(), recovery_.seconds, recovery_.was_clean ? "in order" : "not in order",
        items_, recovery_.insert_slots_cleared, recovery_.duplicates_removed,
        recovery_.resize_continued ? ", a resize finished" : "");
  });
}

void StoreImpl::RefreshTable() {
  cache_.SetTable(*executor_, MakeTableView(pool_->base(), pool_->superblock()));
  accelerated_ = false;
}

void StoreImpl::MakeAccelerators(std::uint32_t new_levels) {
  if (accelerated_) return;
  cache_.Reset(*executor_, MakeTableView(pool_->base(), pool_->superblock()), new_levels);
  accelerated_ = true;
}

void StoreImpl::DropAccelerators() {
  cache_.Drop(*executor_);
  accelerated_ = false;
}

std::uint64_t StoreImpl::RefreshCache() {
  CheckUsable();
  const std::uint64_t load = cache_.Request();
  cache_.Advance(*executor_, 0);
  return load;
}

void StoreImpl::AwaitCacheRefresh(std::uint64_t load) {
  while (!cache_.Ended(load)) {
    CheckUsable();
    cache_.Await(*executor_);
    cache_.Advance(*executor_, 0);
  }
  LogRefreshes();
}

void StoreImpl::LogRefreshes() {
  if (!log_.enabled()) return;
  const CacheStats stats = cache_.Stats();
  if (logged_refreshes_.exchange(stats.refreshes) == stats.refreshes) return;
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("cache refreshed in {:.3f} s, {} times by now", stats.refresh_seconds,
                       stats.refreshes);
  });
  log_.Tell();
}

void StoreImpl::SetUnusable(const char* what) noexcept {
  if (unusable_set_.exchange(true)) return;
  unusable_cause_ = std::current_exception();
  unusable_ = what;
}

void StoreImpl::CheckUsable() const {
  const char* const what = unusable_.load();
  if (what == nullptr) return;
  const auto fail = [&](ErrorCode code, const char* why) {
    throw Error(code, fmt::format("{} half-way: {}; opening the pool again (with a larger maximum, "
                                  "if that is what is short) goes on with it, and finds every item",
                                  what, why));
  };
  try {
    std::rethrow_exception(unusable_cause_);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kNoSpace, "not enough memory");
  } catch (const std::exception& error) {
    fail(ErrorCode::kIo, error.what());
  }
}

void StoreImpl::ForEach(const Store::Visitor& visit) {
  const Exclusive exclusive(*this);
  CheckUsable();
  VisitPool(*pool_, visit);
}

bool StoreImpl::ForEachUntil(const Store::StoppableVisitor& visit) {
  const Exclusive exclusive(*this);
  CheckUsable();
  return VisitPoolUntil(*pool_, visit);
}

StoreStats StoreImpl::Stats() {
  std::unique_lock lock(mutex_);
  Enter(lock);
  CheckUsable();
  const Superblock& superblock = pool_->superblock();
  StoreStats stats;
  stats.items = static_cast<std::uint64_t>(std::max<std::int64_t>(items_, 0));
  stats.capacity_slots = Capacity();
  stats.load_factor = static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots);
  stats.bottom_level = superblock.bottom;
  stats.top_level = superblock.top;
  stats.resizes = resizes_;
  stats.resize_seconds = resize_seconds_;
  stats.growth_seconds = growth_seconds_;
  stats.operations = operations_;
  stats.mixed_operations = mixed_operations_;
  stats.finds_found = found_;
  stats.value_cells = cells_;
  stats.free_cells = InlineValues(value_size_) ? 0 : epochs_.queued();
  stats.pm_bytes = pool_->mapping().mapped_bytes();
  stats.gpu_bytes = executor_->gpu_bytes() + executor_->workspace_bytes();
  stats.key_size = superblock.key_size;
  stats.value_size = superblock.value_size;
  stats.geometry = superblock.geometry;
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
  if (stats.cache.directory) {
    stats.cache.found = found_;
    stats.cache.hits = cache_hits_;
  }
  return stats;
}

std::uint64_t StoreImpl::CountMisplacedCells() {
  const Exclusive exclusive(*this);
  if (unqueued_) QueueAdded();
  Reclaim();
  return executor_->CountMisplacedCells(CellRanges(), epochs_.head());
}

void StoreImpl::Close() {
  const Exclusive exclusive(*this);
  const bool usable = unusable_.load() == nullptr;
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  if (usable) {
    attempt([&] {
      while (!unfinished_.empty()) FinishAfterGrowth(unfinished_.begin()->second);
      Reclaim();
      if (!left_behind_) pool_->SetClean(true);
    });
  }
  if (!usable) attempt([&] { CheckUsable(); });  // which every ticket says, and Close need not
  FailUnfinished(failure);
  attempt([&] { cache_.Stop(*executor_); });
  executor_.reset();
  pool_.reset();
  if (usable && failure) std::rethrow_exception(failure);
}

}  // namespace gpm
