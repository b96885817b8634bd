// How a store is written to a file while batches go on (StoreImpl::Snapshot).

#include "engine/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/store_impl.h"
#include "engine/thread_number.h"
#include "engine/wait_until.h"
#include "pm/clock.h"
#include "snapshot/reader.h"
#include "snapshot/writer.h"
#include "table/key_rows.h"

namespace gpm {
namespace {

/// Threads that copy and write, if nobody says how many: one is waiting for the medium while
/// another copies, and batches have the other cores.
constexpr unsigned kFewestThreads = 2;
constexpr unsigned kMostThreads = 8;
constexpr unsigned kCoresForThread = 2;
constexpr std::uint64_t kRangesForItem = 2;
constexpr std::uint32_t kFewestRangeBits = 10;

/// The items of a copy, with their values in the pool.
class CopiedItems : public SnapshotSource {
 public:
  CopiedItems(const TableCopy& copy, const std::byte* base, const SnapshotHeader& header)
      : copy_(copy), base_(base), key_size_(header.key_size), value_size_(header.value_size) {}

  void CopyRanges(std::uint64_t first, std::uint64_t count, std::byte* ranges) const override {
    std::memcpy(ranges, copy_.ranges.data() + first, count * sizeof(std::uint32_t));
  }
  void CopyItems(std::uint64_t first, std::uint64_t count, std::byte* keys,
                 std::byte* values) const override {
    constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
    NarrowKeys(copy_.keys + first * KeyWords(key_size_), count, key_size_, keys);
    const std::uint64_t* const references = copy_.references + first;
    for (std::uint64_t i = 0; i < count; ++i, values += value_size_) {
      if (InlineValues(value_size_)) {
        std::memcpy(values, references + i, value_size_);
        continue;
      }
      if (i + kAhead < count) Prefetch(base_ + references[i + kAhead]);
      std::memcpy(values, base_ + references[i], value_size_);
    }
  }

 private:
  void Prefetch(const std::byte* value) const {
    constexpr std::uint64_t kLineBytes = 64;
    constexpr std::uint64_t kMostBytes = 512;  // the rest is fetched as it is read
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(value_size_, kMostBytes);
         i += kLineBytes) {
      __builtin_prefetch(value + i);
    }
  }

  const TableCopy& copy_;
  const std::byte* const base_;
  const std::uint32_t key_size_;
  const std::uint64_t value_size_;
};

}  // namespace

std::uint32_t RangeBitsFor(std::uint64_t items) {
  const auto bits = static_cast<std::uint32_t>(std::bit_width(kRangesForItem * items));
  return std::clamp(bits, kFewestRangeBits, kMostRangeBits);
}

unsigned ThreadsForCopy() {
  return std::clamp(std::thread::hardware_concurrency() / kCoresForThread, kFewestThreads,
                    kMostThreads);
}

std::uint64_t RoomForCopy(std::uint64_t items) { return items + items / 16 + 1024; }

void Snapshots::RefuseExporter() {
  if (exporter_ != ThreadNumber()) return;
  throw Error(ErrorCode::kBusy,
              "this waits until the store's export has ended, and the calling thread has that "
              "open; end it first");
}

Snapshots::Turn::Turn(Snapshots& snapshots, bool exports) : snapshots_(snapshots) {
  snapshots.admission_.RefuseScope();
  MutexLock lock(snapshots.mutex_);
  snapshots.RefuseExporter();
  WaitUntil(lock, snapshots.changed_, snapshots.tracer_,
            [&]() GPM_REQUIRES(snapshots.mutex_) { return !snapshots.taken_; });
  if (snapshots.ended_) {
    throw Error(ErrorCode::kInvalidArgument, "the store was closed while this waited for its turn");
  }
  snapshots.taken_ = true;
  if (exports) snapshots.exporter_ = ThreadNumber();
}

Snapshots::Turn::~Turn() {
  const MutexLock lock(snapshots_.mutex_);
  snapshots_.taken_ = false;
  snapshots_.exporter_.reset();
  snapshots_.changed_.notify_all();
}

Snapshots::Copying::Copying(Snapshots& snapshots) : snapshots_(snapshots) {
  const MutexLock lock(snapshots.mutex_);
  snapshots.copying_ = true;
}

Snapshots::Copying::~Copying() {
  const MutexLock lock(snapshots_.mutex_);
  snapshots_.copying_ = false;
  snapshots_.changed_.notify_all();
}

void Snapshots::AwaitCopied() {
  admission_.RefuseScope();
  MutexLock lock(mutex_);
  RefuseExporter();
  WaitUntil(lock, changed_, tracer_, [&]() GPM_REQUIRES(mutex_) { return !copying_; });
}

bool Snapshots::AwaitSnapshotCopied() {
  MutexLock lock(mutex_);
  WaitUntil(lock, changed_, tracer_,
            [&]() GPM_REQUIRES(mutex_) { return !copying_ || exporter_.has_value(); });
  return !exporter_.has_value();
}

void Snapshots::End() {
  const MutexLock lock(mutex_);
  ended_ = true;
}

bool Snapshots::exporting() {
  const MutexLock lock(mutex_);
  return exporter_.has_value();
}

void Snapshots::Count(std::uint64_t bytes, double pause_seconds) {
  const MutexLock lock(mutex_);
  ++count_;
  bytes_ += bytes;
  pause_seconds_ = pause_seconds;
}

void Snapshots::AddTo(StoreStats* stats) {
  const MutexLock lock(mutex_);
  stats->snapshots = count_;
  stats->snapshot_bytes = bytes_;
  stats->snapshot_pause_seconds = pause_seconds_;
}

bool StoreImpl::ExportHoldsCells() {
  return space_.epochs().holds_cells() && snapshots_.exporting();
}

bool StoreImpl::AwaitHeldCells() {
  if (!space_.epochs().holds_cells()) return false;
  if (ExportHoldsCells()) return false;
  snapshots_.AwaitCopied();
  space_.ReleaseCells();
  return true;
}

void StoreImpl::ReleaseCells() {
  const Admission::Entered entered(admission_);
  space_.ReleaseCells();
}

void StoreImpl::NameHeldCells(const TableCopy& copy) {
  if (InlineValues(value_size_)) return;
  try {
    space_.NameHeldCells(copy.NamedCells(CellBytes(value_size_)));
  } catch (const std::bad_alloc&) {  // all that are held stay so
  } catch (const Error& error) {
    // (Likewise where GPU memory is short. Should it not be that, what comes next says so.)
    if (error.code() != ErrorCode::kGpu) throw;
  }
}

/// The header, but for what the instant says.
SnapshotHeader StoreImpl::BeginHeader(const SnapshotOptions& options) {
  SnapshotHeader header;
  header.id = NewSnapshotId();
  if (!options.base.empty()) {
    const SnapshotFile file(options.base);
    const std::optional<Snapshots::Base>& base = snapshots_.base;
    if (!base || file.header().id != base->id) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: it can't be the base of an increment: {}; take a whole snapshot",
                              options.base,
                              base ? "changes are tracked since another snapshot of this store"
                                   : "this store has tracked no changes since it was opened"));
    }
    header.base = base->id;
    header.sequence = base->sequence + 1;
    header.range_bits = base->range_bits;
  }
  const Admission::Entered entered(admission_);
  const Superblock& superblock = pool_->superblock();
  header.pool = PoolId();
  header.key_size = key_size_;
  header.value_size = value_size_;
  header.geometry = superblock.geometry;
  std::copy(std::begin(superblock.hash_seed), std::end(superblock.hash_seed), header.hash_seed);
  std::copy(std::begin(superblock.attributes), std::end(superblock.attributes), header.attributes);
  header.total_items = space_.items();
  return header;
}

void StoreImpl::FinishBatches() {
  while (const auto in_flight = admission_.FirstUnfinished()) {
    try {
      FinishAfterGrowth(in_flight);
    } catch (...) {
      health_.Check();  // else its ticket says so, and nobody else need know
    }
  }
}

void StoreImpl::TakeWholeCopy(CopyShape shape, std::unique_ptr<TableCopy>* copy) {
  while (!executor_->TakeCopy(copy->get())) {
    shape.room = (*copy)->items;
    copy->reset();
    *copy = executor_->MakeCopy(shape);
  }
}

double StoreImpl::TakeInstant(const CopyShape& shape, std::unique_ptr<TableCopy>* copy,
                              std::optional<Snapshots::Copying>* copying, std::uint64_t* version) {
  // (The log is told when the values are copied: it may call what waits for that.)
  const Admission::Alone alone(admission_, Admission::Telling::kLater);
  const auto start = Clock::now();
  health_.Check();
  FinishBatches();       // so that all of each is in the snapshot
  space_.ReclaimMany();  // which then hold no cells that it does not name
  if (version != nullptr) *version = admission_.changers();
  const bool has_cells = !InlineValues(value_size_);
  const std::uint64_t tail = has_cells ? executor_->Positions().cells_tail : 0;
  TakeWholeCopy(shape, copy);
  copying->emplace(snapshots_);
  if (has_cells) space_.epochs().HoldCells(tail);
  return SecondsSince(start);
}

SnapshotResult StoreImpl::Snapshot(const std::string& path, const SnapshotOptions& options) {
  SnapshotOptions absolute = options;  // another thread may change the directory meanwhile
  absolute.base = AbsolutePath(options.base);
  for (std::string& file : absolute.chain) file = AbsolutePath(file);
  const SnapshotResult result = SnapshotUntold(AbsolutePath(path), absolute);
  log_.Tell();
  return result;
}

SnapshotResult StoreImpl::SnapshotUntold(const std::string& path, const SnapshotOptions& options) {
  const Snapshots::Turn turn(snapshots_);
  SnapshotOptions of_base = options;
  if (!options.chain.empty()) {
    RequireNoFile(path);
    TrackSince(options.chain);
    of_base.base = options.chain.back();
  }
  return TakeSnapshot(path, of_base);
}

SnapshotResult StoreImpl::TakeSnapshot(const std::string& path, const SnapshotOptions& options) {
  const ProfilerRange range("snapshot");
  const auto start = Clock::now();
  health_.Check();
  SnapshotHeader header = BeginHeader(options);
  SnapshotWriter writer(path);
  ThreadPool threads(options.threads > 0 ? options.threads : ThreadsForCopy());
  CopyShape shape{.room = RoomForCopy(header.total_items),
                  .key_words = KeyWords(key_size_),
                  .changes_only = header.is_increment(),
                  .range_bits = 0};
  const std::optional<Snapshots::Base> before = snapshots_.base;
  if (options.track_changes || shape.changes_only) {
    shape.range_bits = std::max(RangeBitsFor(header.total_items), before ? before->range_bits : 0);
  }
  std::unique_ptr<TableCopy> copy = executor_->MakeCopy(shape);
  std::optional<Snapshots::Copying> copying;
  SnapshotResult result;
  result.pause_seconds = TakeInstant(shape, &copy, &copying);
  if (shape.range_bits > 0) snapshots_.base.reset();
  // What changed since the base has changed since then still, if this is not to be the base.
  const auto keep_base = [&] {
    if (shape.range_bits == 0 || !before) return;
    executor_->MarkAgain(*copy);
    snapshots_.base = {before->id, before->sequence, shape.range_bits};
  };
  try {
    copy->Fetch();
    NameHeldCells(*copy);
    header.total_items = copy->total;
    header.items = copy->items;
    header.ranges = copy->ranges.size();
    writer.Write(header, CopiedItems(*copy, pool_->base(), header), threads);
    if (!options.track_changes) keep_base();  // before Close may go on, which waits for the values
    copying.reset();
    ReleaseCells();
    result.bytes = writer.Finish();
  } catch (...) {
    try {
      keep_base();
    } catch (const std::exception&) {  // then the next increment is refused
    }
    copying.reset();
    ReleaseCells();
    throw;
  }
  if (options.track_changes) {
    snapshots_.base = {header.id, header.sequence, shape.range_bits};
  }
  result.items = header.total_items;
  result.written = header.items;
  result.seconds = SecondsSince(start);
  snapshots_.Count(result.bytes, result.pause_seconds);
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format(
        "{}: snapshot of {} items, {} of them written, {} bytes, in {:.3f} s, "
        "batches excluded for {:.6f} s",
        path, result.items, result.written, result.bytes, result.seconds, result.pause_seconds);
  });
  return result;
}

}  // namespace gpm
