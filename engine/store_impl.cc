#include "engine/store_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <random>

#include "engine/geometry.h"
#include "engine/operation.h"
#include "engine/wait_until.h"
#include "pm/gpu_host.h"
#include "pm/tracer.h"
#include "recovery/check.h"

namespace gpm {
namespace {

/// Above this share of slots in use an insert is likely to find none: a batch of them resizes
/// first.
constexpr double kFullLoad = 0.95;
/// Below this share nearly every insert finds a slot; what a resize for known inserts aims at.
constexpr double kComfortableLoad = 0.85;
constexpr std::uint64_t kMinSlotQueue = 4096;
/// One spare cell for so many items of the initial capacity: updates need cells to write to.
constexpr std::uint64_t kSpareShare = 8;

CellRange RangeOf(const Extent& extent, std::uint64_t cell_bytes) {
  const std::uint64_t first = (extent.offset + cell_bytes - 1) / cell_bytes;
  const std::uint64_t last = std::min(extent.end() / cell_bytes, kMaxCellNumber);
  return CellRange{std::min(first, last), last};
}

std::uint64_t RandomWord() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

std::unique_ptr<Executor> MakeExecutor(const OpenOptions& open, Pool& pool) {
  Mapping& mapping = pool.mapping();
  if (mapping.persist().tracer() != nullptr) return MakeCpuExecutor(open.threads, mapping);
  if (open.executor == ExecutorKind::kAuto) {
    if (mapping.medium().gpu_can_register && GpuCount() > 0) {
      OpenOptions cuda = open;
      cuda.executor = ExecutorKind::kCuda;
      try {
        return MakeExecutor(cuda, pool);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;  // it can't be registered after all
      }
    }
    return MakeCpuExecutor(open.threads, mapping);
  }
  if (open.executor == ExecutorKind::kCpu) return MakeCpuExecutor(open.threads, mapping);
  auto executor = MakeCudaExecutor(open, mapping);
  mapping.RegisterGpu();
  return executor;
}

/// Whether a batch with these needs may write.
bool Writes(const Reservation& needs) { return needs.slots > 0 || needs.cells > 0; }

/// Whether an error of the pool means that it can't grow: no room, or the GPU can't map more of it.
bool MeansFull(const Error& error) {
  return error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kUnsupported;
}

}  // namespace

StoreImpl::Exclusive::Exclusive(StoreImpl& store) : store_(store) {
  std::unique_lock lock(store_.mutex_);
  for (;;) {
    WaitUntil(lock, store_.changed_, store_.tracer_, [&] {
      return !store_.exclusive_ && store_.first_in_ == 0 && !store_.HasOpenScope();
    });
    store_.exclusive_ = true;
    while (!store_.active_.empty() && !store_.HasOpenScope()) {
      // Batches that were started and not waited for are ended here: their owner may be this
      // thread.
      const std::shared_ptr<InFlight> started = store_.Started();
      if (started == nullptr) {
        WaitUntil(lock, store_.changed_, store_.tracer_, [&] {
          return store_.active_.empty() || store_.HasOpenScope() || store_.Started() != nullptr;
        });
        continue;
      }
      lock.unlock();
      store_.End(started);
      lock.lock();
    }
    if (store_.active_.empty()) return;
    // A scope was being opened: its owner may need the store before it can close it.
    store_.exclusive_ = false;
    store_.first_in_ = store_.entering_;
    store_.changed_.notify_all();
  }
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Started() const {
  for (const auto& [id, in_flight] : active_) {
    if (in_flight->run != nullptr) return in_flight;
  }
  return nullptr;
}

bool StoreImpl::HasOpenScope() const {
  return std::any_of(active_.begin(), active_.end(), [](const auto& entry) {
    return entry.second->run != nullptr && !entry.second->run->Complete();
  });
}

StoreImpl::Exclusive::~Exclusive() {
  const std::lock_guard lock(store_.mutex_);
  store_.exclusive_ = false;
  store_.first_in_ = store_.entering_;
  store_.changed_.notify_all();
}

void StoreImpl::Enter(std::unique_lock<std::mutex>& lock) {
  if (!exclusive_) return;
  ++entering_;
  WaitUntil(lock, changed_, tracer_, [&] { return !exclusive_; });
  --entering_;
  if (first_in_ > 0 && --first_in_ == 0) changed_.notify_all();
}

StoreImpl::StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open)
    : pool_(std::move(pool)),
      tracer_(pool_->mapping().persist().tracer()),
      key_size_(pool_->superblock().key_size),
      value_size_(pool_->superblock().value_size),
      executor_(MakeExecutor(open, *pool_)),
      cache_(open.cache, tracer_) {
  RefreshTable();
}

StoreImpl::~StoreImpl() = default;

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
  const auto inspect = [&] {
    // With a directory, second copies are looked for in it: slots are then read in order alone.
    MakeDirectory();
    try {
      return executor_->Pass(PassMode::kInspect, ranges);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kGpu) throw;
    } catch (const std::bad_alloc&) {
    }
    cache_.Drop(*executor_);  // it may have taken the memory that the pass needs
    return executor_->Pass(PassMode::kInspect, ranges);
  };
  PassCounters found =
      recovery_.was_clean && !resizing ? executor_->Pass(PassMode::kTrust, ranges) : inspect();
  // It was not closed in order, whatever it says: second copies have to be looked for too.
  if (recovery_.was_clean && !resizing && found.insert_slots > 0) found = inspect();
  if (found.bad_references + found.shared_cells > 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: {} items name no value cell of the pool and {} share one; nothing "
                            "was changed; `gpmstore check` names the first",
                            pool_->mapping().path(), found.bad_references, found.shared_cells));
  }
  recovery_.insert_slots_cleared = found.insert_slots;
  recovery_.duplicates_removed = found.duplicates;
  if (recovery_.was_clean) pool_->SetClean(false);
  if (found.insert_slots + found.duplicates > 0) executor_->Pass(PassMode::kRepair, ranges);
  if (resizing) {
    recovery_.resize_continued = true;
    Drain();
    // Counted anew: a damaged pool can have had copies of an item in the levels that were drained.
    found = executor_->Pass(PassMode::kTrust, ranges);
  }
  items_ = static_cast<std::int64_t>(found.items);
  for (const CellRange& range : ranges) cells_ += range.last - range.first;
  cache_.Drop(*executor_);  // queues come first
  executor_->GrowQueues(cells_, kMinSlotQueue, 0);
  executor_->FreeUnused(ranges);
  epochs_.Quiesced(executor_->Positions());
  MakeAccelerators();
  recovery_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  // The kinds may be in device memory: a batch of mixed kinds may need anything.
  const bool mixed = !batch.ops.empty();
  if (!InlineValues(value_size()) && (mixed || Writes(batch.op))) needs.cells = n;
  if (mixed || batch.op != Op::kFind) needs.slots = n;
  return needs;
}

bool StoreImpl::HasRoomFor(const Reservation& needs, bool inserts) const {
  if (needs.slots > 0 && epochs_.slots_pending() + needs.slots > executor_->slot_queue_room()) {
    return false;
  }
  if (at_limit_) return true;  // what finds no room will say so
  if (epochs_.available_cells() < needs.cells) return false;
  return !inserts || static_cast<double>(items_) < kFullLoad * static_cast<double>(Capacity());
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Admit(const Reservation& needs, bool inserts,
                                                      Epochs::SlotRange* give_back) {
  auto in_flight = std::make_shared<InFlight>();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      Enter(lock);
      CheckUsable();
      if (HasRoomFor(needs, inserts)) {
        if (const CellGrant cells = epochs_.ToSort(needs.cells); cells.count > 0) {
          executor_->SortCells(cells);
        }
        in_flight->id = epochs_.Begin(needs, give_back, &in_flight->grant);
        in_flight->needs = needs;
        for (const auto& [id, other] : active_) {
          in_flight->beside_writes |= Writes(other->needs);
          other->beside_writes |= Writes(needs);
        }
        active_.emplace(in_flight->id, in_flight);
        return in_flight;
      }
    }
    const Exclusive exclusive(*this);
    MakeRoom(needs, inserts);
  }
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Start(const Batch& batch, Stream stream) {
  Validate(batch);
  cache_.Advance(*executor_, batch.results.size());
  if (batch.results.empty()) {
    auto nothing = std::make_shared<InFlight>();
    nothing->ended = true;
    return nothing;
  }
  return Run(executor_->Prepare(batch, stream), NeedsOf(batch),
             !batch.ops.empty() || Inserts(batch.op));
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Run(std::shared_ptr<gpm::Run> run,
                                                    const Reservation& needs, bool inserts) {
  Epochs::SlotRange give_back;
  auto in_flight = Admit(needs, inserts, &give_back);
  try {
    run->Start(give_back, in_flight->grant);
  } catch (...) {
    // The GPU failed. What the batch was given is found again when the pool is opened next.
    const std::lock_guard lock(mutex_);
    left_behind_ = true;
    epochs_.End(in_flight->id, ReclaimPositions{});
    active_.erase(in_flight->id);
    changed_.notify_all();
    throw;
  }
  const std::lock_guard lock(mutex_);
  in_flight->run = std::move(run);
  changed_.notify_all();
  return in_flight;
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
  try {
    progress = in_flight->run->Await();
    {
      const std::lock_guard lock(mutex_);
      beside_writes = in_flight->beside_writes;
      if (epochs_.TakeBack(in_flight->grant, progress.cells_left)) progress.cells_left = 0;
    }
    if (progress.cells_left > 0) {
      const CellGrant& grant = in_flight->grant;
      progress.positions = executor_->QueueAgain(
          {grant.first + grant.count - progress.cells_left, progress.cells_left});
    }
    if (beside_writes) in_flight->run->Settle();
  } catch (...) {
    in_flight->error = std::current_exception();
    progress = Progress{};
  }
  const std::lock_guard lock(mutex_);
  if (progress.lacking() == 0) in_flight->run.reset();
  epochs_.End(in_flight->id, progress.positions);
  items_ += progress.items_added;
  found_ += progress.found;
  cache_hits_ += progress.cache_hits;
  left_behind_ |= in_flight->error != nullptr;
  active_.erase(in_flight->id);
  if (progress.lacking() > 0) lacking_.emplace(in_flight->id, in_flight);
  in_flight->ended = true;
  changed_.notify_all();
}

void StoreImpl::Wait(const std::shared_ptr<InFlight>& in_flight) {
  End(in_flight);
  bool lacking = false;
  {
    const std::lock_guard lock(mutex_);
    lacking = lacking_.contains(in_flight->id);
  }
  if (lacking) {
    const Exclusive exclusive(*this);
    if (in_flight->run != nullptr) FinishLacking(*in_flight);  // else Close did
  }
  if (in_flight->error) std::rethrow_exception(in_flight->error);
}

void StoreImpl::Reserve(std::uint64_t items) {
  const Exclusive exclusive(*this);
  CheckUsable();
  Reclaim();
  const Superblock& superblock = pool_->superblock();
  const auto there = static_cast<std::uint64_t>(std::max<std::int64_t>(items_, 0));
  const std::uint64_t more = items - std::min(items, there);
  const double slots = static_cast<double>(items) / kComfortableLoad;
  std::uint32_t levels = 0;
  double bytes = 0;
  while (static_cast<double>(CapacityAt(superblock.geometry, superblock.top + levels)) < slots) {
    ++levels;
    bytes += std::ldexp(static_cast<double>(pool_->bucket_bytes()),
                        static_cast<int>(superblock.top + levels));
    if (superblock.top + levels + 1 >= kMaxLevels) break;
  }
  std::uint64_t cells = 0;
  if (!InlineValues(value_size_)) cells = more - std::min(more, epochs_.available_cells());
  bytes += static_cast<double>(cells) * static_cast<double>(CellBytes(value_size_));
  const std::uint64_t room = pool_->mapping().max_bytes() - UsedEnd(superblock);
  const auto fail = [&] {
    throw Error(
        ErrorCode::kNoSpace,
        fmt::format("{}: no room for {} items, {} of them new: {:.0f} bytes are needed, the "
                    "pool may grow by {}",
                    pool_->mapping().path(), items, more, bytes, room));
  };
  if (bytes > static_cast<double>(room)) fail();
  const bool grown = levels == 0 || Resize(levels);
  if (!grown || (cells > 0 && !AddCells(cells))) fail();
}

void StoreImpl::MakeRoom(const Reservation& needs, bool inserts) {
  Reclaim();
  const std::uint64_t slots = needs.slots + kMinSlotQueue;
  if (slots > executor_->slot_queue_room()) executor_->GrowQueues(cells_, slots, epochs_.head());
  bool enough = true;
  if (epochs_.available_cells() < needs.cells) {
    enough = AddCells(needs.cells - epochs_.available_cells());
  }
  while (inserts && enough &&
         static_cast<double>(items_) >= kFullLoad * static_cast<double>(Capacity())) {
    enough = Resize();
  }
  at_limit_ = !enough;
}

void StoreImpl::FinishLacking(InFlight& in_flight) {
  {
    const std::lock_guard lock(mutex_);
    lacking_.erase(in_flight.id);
  }
  bool advanced = true;
  // Space that erases and updates gave back may do; only then the pool grows. At first it is enough
  // that another batch may have given it back, after this one found none.
  bool try_again = true;
  for (;;) {
    CheckUsable();
    const Progress before = in_flight.progress;
    bool room = Reclaim() || try_again;
    try_again = false;
    if (before.lack_slots > 0 && !room) {
      const double needed = static_cast<double>(items_) + static_cast<double>(before.lack_slots);
      do {
        if (!Resize()) break;
        room = true;
      } while (needed > kComfortableLoad * static_cast<double>(Capacity()));
    }
    if (before.lack_cells > epochs_.available_cells()) {
      room |= AddCells(before.lack_cells - epochs_.available_cells());
    }
    const bool give_up = !room && !advanced;
    in_flight.grant = epochs_.GrantCells(in_flight.needs.cells);
    in_flight.progress = in_flight.run->Resume(give_up, in_flight.grant);
    epochs_.TakeBack(in_flight.grant, in_flight.progress.cells_left);  // nothing runs beside it
    items_ += in_flight.progress.items_added;
    found_ += in_flight.progress.found;
    cache_hits_ += in_flight.progress.cache_hits;
    if (give_up) at_limit_ = true;
    advanced =
        in_flight.progress.carried_out > 0 || in_flight.progress.lacking() < before.lacking();
    if (in_flight.progress.lacking() == 0) break;
  }
  in_flight.run.reset();
  Reclaim();
}

bool StoreImpl::Reclaim() {
  const Epochs::SlotRange slots{epochs_.slots_given_back(), executor_->Positions().slots_tail};
  executor_->GiveBack(slots);
  epochs_.Quiesced(executor_->Positions());
  return slots.from != slots.to;
}

bool StoreImpl::AddCells(std::uint64_t cells) {
  std::uint64_t added = 0;
  while (added < cells) {
    if (UsedEnd(pool_->superblock()) / pool_->cell_bytes() >= kMaxCellNumber) break;
    Extent extent;
    try {
      extent = pool_->AddSegment(cells - added);
    } catch (const Error& error) {
      if (!MeansFull(error)) throw;
      break;
    }
    const CellRange range = RangeOf(extent, pool_->cell_bytes());
    added += range.last - range.first;
    cells_ += range.last - range.first;
    try {
      executor_->GrowQueues(cells_, kMinSlotQueue, epochs_.head());
      executor_->FreeAll(range);
    } catch (const Error& error) {
      unusable_ =
          fmt::format("value cells could not be queued: {}; open the pool again", error.what());
      throw;
    }
  }
  epochs_.Quiesced(executor_->Positions());
  return added >= cells;
}

bool StoreImpl::Resize(std::uint32_t levels) {
  std::uint32_t added = 0;
  std::exception_ptr failure;
  try {
    for (; added < levels; ++added) pool_->AddLevel();
  } catch (const Error& error) {
    if (!MeansFull(error)) failure = std::current_exception();
  }
  if (added > 0) {
    RefreshTable();
    Drain();
    MakeAccelerators();
    ++resizes_;
  }
  if (failure) std::rethrow_exception(failure);
  return added == levels;
}

void StoreImpl::Drain() {
  const Superblock& superblock = pool_->superblock();
  try {
    while (superblock.top - superblock.bottom + 1 > superblock.geometry.levels) {
      // It is made by reading the levels that items go to: not for a level far smaller.
      if (superblock.top - superblock.bottom < superblock.geometry.levels + 2u) MakeDirectory();
      if (executor_->DrainLevel(superblock.bottom) == 0) {
        pool_->DropBottomLevel();
      } else {
        pool_->AddLevel();  // even the larger top has no slot for some item: one more level
      }
      RefreshTable();
    }
  } catch (const Error& error) {
    // Items are left in a level that is not addressed any more.
    unusable_ = fmt::format(
        "a resize can't be finished: {}; opening the pool again (with a larger "
        "maximum, if that is what is short) goes on with it",
        error.what());
    throw;
  }
}

void StoreImpl::RefreshTable() {
  cache_.SetTable(*executor_, MakeTableView(pool_->base(), pool_->superblock()));
}

void StoreImpl::MakeDirectory() {
  cache_.Reset(*executor_, MakeTableView(pool_->base(), pool_->superblock()), false);
}

void StoreImpl::MakeAccelerators() {
  cache_.Reset(*executor_, MakeTableView(pool_->base(), pool_->superblock()));
}

std::uint64_t StoreImpl::LoadCache() {
  const std::uint64_t load = cache_.Request();
  cache_.Advance(*executor_, 0);
  return load;
}

void StoreImpl::AwaitCacheLoad(std::uint64_t load) {
  while (!cache_.Ended(load)) {
    cache_.Await(*executor_);
    cache_.Advance(*executor_, 0);
  }
}

std::vector<CellRange> StoreImpl::CellRanges() const {
  std::vector<CellRange> ranges;
  const Superblock& superblock = pool_->superblock();
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    ranges.push_back(RangeOf(Extent{segment.offset, segment.bytes}, pool_->cell_bytes()));
  }
  return ranges;
}

std::uint64_t StoreImpl::Capacity() const {
  return CapacityAt(pool_->superblock().geometry, pool_->superblock().top);
}

void StoreImpl::CheckUsable() const {
  if (!unusable_.empty()) throw Error(ErrorCode::kNoSpace, unusable_);
}

void StoreImpl::ForEach(const Store::Visitor& visit) {
  const Exclusive exclusive(*this);
  VisitPool(*pool_, visit);
}

StoreStats StoreImpl::Stats() {
  std::unique_lock lock(mutex_);
  Enter(lock);
  const Superblock& superblock = pool_->superblock();
  StoreStats stats;
  stats.items = static_cast<std::uint64_t>(std::max<std::int64_t>(items_, 0));
  stats.capacity_slots = Capacity();
  stats.load_factor = static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots);
  stats.bottom_level = superblock.bottom;
  stats.top_level = superblock.top;
  stats.resizes = resizes_;
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
  Reclaim();
  return executor_->CountMisplacedCells(CellRanges(), epochs_.head());
}

void StoreImpl::Close() {
  const Exclusive exclusive(*this);
  while (unusable_.empty() && !lacking_.empty()) {
    const std::shared_ptr<InFlight> in_flight = lacking_.begin()->second;
    FinishLacking(*in_flight);
  }
  if (unusable_.empty()) {
    Reclaim();
    if (!left_behind_) pool_->SetClean(true);
  } else {
    for (const auto& [id, in_flight] : lacking_) {
      in_flight->run.reset();
      in_flight->error = std::make_exception_ptr(Error(ErrorCode::kNoSpace, unusable_));
    }
    lacking_.clear();
  }
  cache_.Stop(*executor_);
  executor_.reset();
  pool_.reset();
}

}  // namespace gpm
