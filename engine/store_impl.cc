#include "engine/store_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/geometry.h"
#include "engine/operation.h"
#include "pm/gpu_host.h"
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

/// The queues hold cell numbers of 32 bits: a pool has no use for cells beyond.
constexpr std::uint64_t kMaxCellNumber = std::uint64_t{1} << 32;

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
  const MediumInfo& medium = pool.mapping().medium();
  ExecutorKind kind = open.executor;
  if (kind == ExecutorKind::kAuto) {
    kind = GpuCount() > 0 && medium.gpu_can_register ? ExecutorKind::kCuda : ExecutorKind::kCpu;
  }
  if (kind == ExecutorKind::kCpu) return MakeCpuExecutor(open.threads, pool.mapping());
  auto executor = MakeCudaExecutor(open.device, pool.mapping());
  if (!medium.gpu_can_register) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: a GPU can't map a pool on medium '{}'; use a file on tmpfs or DAX, "
                    "or \"pinned:\", or executor cpu",
                    pool.mapping().path(), MediumName(medium.medium)));
  }
  pool.mapping().RegisterGpu();
  return executor;
}

}  // namespace

StoreImpl::Exclusive::Exclusive(StoreImpl& store) : store_(store) {
  std::unique_lock lock(store_.mutex_);
  store_.changed_.wait(lock, [&] { return !store_.exclusive_ && store_.first_in_ == 0; });
  store_.exclusive_ = true;
  while (!store_.active_.empty()) {
    // Batches that were started and not waited for are ended here: their owner may be this thread.
    std::shared_ptr<InFlight> started;
    for (const auto& [id, in_flight] : store_.active_) {
      if (in_flight->run != nullptr && in_flight->run->Complete()) started = in_flight;
    }
    if (started == nullptr) {
      store_.changed_.wait(lock);
      continue;
    }
    lock.unlock();
    store_.End(*started);
    lock.lock();
  }
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
  changed_.wait(lock, [&] { return !exclusive_; });
  --entering_;
  if (first_in_ > 0 && --first_in_ == 0) changed_.notify_all();
}

StoreImpl::StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open)
    : pool_(std::move(pool)),
      key_size_(pool_->superblock().key_size),
      value_size_(pool_->superblock().value_size),
      executor_(MakeExecutor(open, *pool_)) {
  RefreshTable();
}

StoreImpl::~StoreImpl() = default;

std::unique_ptr<StoreImpl> StoreImpl::Create(const std::string& path, const CreateOptions& create,
                                             const OpenOptions& open) {
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
  auto pool = Pool::Create(path, config, Pool::Options{.max_bytes = open.max_bytes});
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
    store->pool_->SetClean(false);
    return store;
  } catch (...) {
    if (path != Mapping::kPinnedPath) std::remove(path.c_str());
    throw;
  }
}

std::unique_ptr<StoreImpl> StoreImpl::Open(const std::string& path, const OpenOptions& open) {
  auto pool = Pool::Open(path, Pool::Options{.max_bytes = open.max_bytes});
  std::unique_ptr<StoreImpl> store(new StoreImpl(std::move(pool), open));
  store->Recover();
  return store;
}

void StoreImpl::Recover() {
  const auto start = std::chrono::steady_clock::now();
  recovery_.was_clean = pool_->superblock().clean != 0;
  const std::vector<CellRange> ranges = CellRanges();
  const PassCounters found =
      executor_->Pass(recovery_.was_clean ? PassMode::kTrust : PassMode::kInspect, ranges);
  if (found.bad_references + found.shared_cells > 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: {} items name no value cell of the pool and {} share one; nothing "
                            "was changed; `gpmstore check` names the first",
                            pool_->mapping().path(), found.bad_references, found.shared_cells));
  }
  recovery_.insert_slots_cleared = found.insert_slots;
  recovery_.duplicates_removed = found.duplicates;
  items_ = static_cast<std::int64_t>(found.items);
  if (recovery_.was_clean) pool_->SetClean(false);
  if (found.insert_slots + found.duplicates > 0) executor_->Pass(PassMode::kRepair, ranges);
  for (const CellRange& range : ranges) cells_ += range.last - range.first;
  executor_->GrowQueues(cells_, kMinSlotQueue, 0);
  executor_->FreeUnused(ranges);
  epochs_.Quiesced(executor_->Positions());
  const Superblock& superblock = pool_->superblock();
  if (superblock.top - superblock.bottom + 1 > superblock.geometry.levels) {
    recovery_.resize_continued = true;
    Drain();
  }
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

bool StoreImpl::HasRoomFor(const Reservation& needs) const {
  if (needs.slots > 0 && epochs_.slots_pending() + needs.slots > executor_->slot_queue_room()) {
    return false;
  }
  if (at_limit_) return true;  // what finds no room will say so
  if (epochs_.available_cells() < needs.cells) return false;
  return needs.slots == 0 ||
         static_cast<double>(items_) < kFullLoad * static_cast<double>(Capacity());
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Admit(const Reservation& needs, bool inserts,
                                                      Epochs::SlotRange* give_back,
                                                      CellGrant* grant) {
  auto in_flight = std::make_shared<InFlight>();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      Enter(lock);
      CheckUsable();
      if (HasRoomFor(needs)) {
        in_flight->id = epochs_.Begin(needs, give_back, grant);
        in_flight->needs = needs;
        in_flight->inserts = inserts;
        for (const auto& [id, other] : active_) {
          if (inserts && other->inserts) {
            in_flight->beside_inserts = other->beside_inserts = true;
          }
        }
        active_.emplace(in_flight->id, in_flight);
        return in_flight;
      }
    }
    const Exclusive exclusive(*this);
    MakeRoom(needs);
  }
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Start(const Batch& batch, Stream stream) {
  Validate(batch);
  if (batch.results.empty()) {
    auto nothing = std::make_shared<InFlight>();
    nothing->ended = nothing->complete = true;
    return nothing;
  }
  return Run(executor_->Prepare(batch, stream), NeedsOf(batch),
             !batch.ops.empty() || Inserts(batch.op));
}

std::shared_ptr<StoreImpl::InFlight> StoreImpl::Run(std::shared_ptr<gpm::Run> run,
                                                    const Reservation& needs, bool inserts) {
  Epochs::SlotRange give_back;
  CellGrant grant;
  auto in_flight = Admit(needs, inserts, &give_back, &grant);
  try {
    run->Start(give_back, grant);
  } catch (...) {
    // The GPU failed. What the batch was given is found again when the pool is opened next.
    const std::lock_guard lock(mutex_);
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

void StoreImpl::End(InFlight& in_flight) {
  const std::lock_guard own(in_flight.mutex);
  if (in_flight.ended) return;
  try {
    in_flight.progress = in_flight.run->Await();
    bool beside_inserts = false;
    {
      const std::lock_guard lock(mutex_);
      beside_inserts = in_flight.beside_inserts;
    }
    if (beside_inserts) {
      const std::int64_t items_added = in_flight.progress.items_added;
      in_flight.progress = in_flight.run->RemoveDuplicates();
      in_flight.progress.items_added += items_added;
    }
  } catch (...) {
    in_flight.error = std::current_exception();
    in_flight.progress = Progress{};
  }
  const std::lock_guard lock(mutex_);
  epochs_.End(in_flight.id, in_flight.progress.positions);
  items_ += in_flight.progress.items_added;
  active_.erase(in_flight.id);
  in_flight.ended = true;
  changed_.notify_all();
}

void StoreImpl::Wait(InFlight& in_flight) {
  if (in_flight.complete) return;
  End(in_flight);
  in_flight.complete = true;
  if (in_flight.error) std::rethrow_exception(in_flight.error);
  if (in_flight.progress.lacking() > 0) {
    const Exclusive exclusive(*this);
    FinishLacking(in_flight);
  }
}

void StoreImpl::MakeRoom(const Reservation& needs) {
  Reclaim();
  const std::uint64_t slots = needs.slots + kMinSlotQueue;
  if (slots > executor_->slot_queue_room()) executor_->GrowQueues(cells_, slots, epochs_.head());
  bool enough = true;
  if (epochs_.available_cells() < needs.cells) {
    enough = AddCells(needs.cells - epochs_.available_cells());
  }
  while (enough && static_cast<double>(items_) >= kFullLoad * static_cast<double>(Capacity())) {
    enough = Resize();
  }
  at_limit_ = !enough;
}

void StoreImpl::FinishLacking(InFlight& in_flight) {
  bool advanced = true;
  for (;;) {
    CheckUsable();
    const Progress before = in_flight.progress;
    // Space that erases and updates gave back may do; only then the pool grows.
    bool room = Reclaim();
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
    in_flight.progress = in_flight.run->Resume(give_up, epochs_.GrantCells(in_flight.needs.cells));
    items_ += in_flight.progress.items_added;
    if (give_up) at_limit_ = true;
    advanced =
        in_flight.progress.carried_out > 0 || in_flight.progress.lacking() < before.lacking();
    if (in_flight.progress.lacking() == 0) break;
  }
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
      if (error.code() != ErrorCode::kNoSpace) throw;
      break;
    }
    const CellRange range = RangeOf(extent, pool_->cell_bytes());
    added += range.last - range.first;
    cells_ += range.last - range.first;
    executor_->GrowQueues(cells_, kMinSlotQueue, epochs_.head());
    executor_->FreeAll(range);
  }
  epochs_.Quiesced(executor_->Positions());
  return added >= cells;
}

bool StoreImpl::Resize() {
  try {
    pool_->AddLevel();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace) throw;
    return false;
  }
  RefreshTable();
  Drain();
  ++resizes_;
  return true;
}

void StoreImpl::Drain() {
  const Superblock& superblock = pool_->superblock();
  while (superblock.top - superblock.bottom + 1 > superblock.geometry.levels) {
    const std::uint64_t left = executor_->DrainLevel(superblock.bottom);
    if (left == 0) {
      pool_->DropBottomLevel();
    } else {
      // So unlucky that even the larger top has no slot for some item: one more level.
      try {
        pool_->AddLevel();
      } catch (const Error& error) {
        unusable_ = fmt::format(
            "a resize can't be finished: {}; open the pool with a larger "
            "maximum to go on with it",
            error.what());
        throw;
      }
    }
    RefreshTable();
  }
}

void StoreImpl::RefreshTable() {
  executor_->SetTable(MakeTableView(pool_->base(), pool_->superblock()));
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
  stats.gpu_bytes = executor_->gpu_bytes();
  stats.key_size = superblock.key_size;
  stats.value_size = superblock.value_size;
  stats.geometry = superblock.geometry;
  stats.executor = executor_->kind();
  stats.threads = executor_->threads();
  stats.medium = pool_->mapping().medium();
  stats.recovery = recovery_;
  return stats;
}

void StoreImpl::Close() {
  const Exclusive exclusive(*this);
  if (unusable_.empty()) {
    Reclaim();
    pool_->SetClean(true);
  }
  executor_.reset();
  pool_.reset();
}

}  // namespace gpm
