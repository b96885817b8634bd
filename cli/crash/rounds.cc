#include "cli/crash/rounds.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>

#include "cli/common.h"
#include "cli/crash/left_pools.h"
#include "gpmstore/error.h"

namespace gpm::cli {
namespace {

using Clock = CrashProcess::Clock;
using Kind = CrashRecord::Kind;

/// For a child to open the pool, or a dead one's to be released.
constexpr std::chrono::seconds kPatience{120};
constexpr std::size_t kLargeBatch = std::size_t{1} << 16;
/// So long after its beginning, most resizes have ended.
constexpr std::chrono::milliseconds kLongResize{1};

template <class... Arguments>
void Require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (!holds) throw CrashViolation{{fmt::format(text, std::forward<Arguments>(arguments)...)}};
}

void RequireNone(const std::vector<std::string>& defects) {
  if (!defects.empty()) throw CrashViolation{defects};
}

/// @throws Error(kNoSpace) when the child ended for lack of memory, or by the kernel's killer
void RequireMemory(const CrashProcess& child, int status) {
  const bool says_so = WIFEXITED(status) && WEXITSTATUS(status) == kExitNoMemory;
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && child.ended_by_itself();
  if (!says_so && !killed) return;
  throw Error(ErrorCode::kNoSpace,
              fmt::format("a child {}: no promise of the store is tested like this; use fewer "
                          "--jobs, --threads or --tickets, or a smaller --max-batch",
                          says_so ? "ran out of memory, or of room for its pool"
                                  : "was killed by another process, or for lack of memory"));
}

}  // namespace

CrashTotals& CrashTotals::operator+=(const CrashTotals& other) {
  for (int phase = 0; phase < kPhases; ++phase) kills[phase] += other.kills[phase];
  rounds += other.rounds;
  pools += other.pools;
  unfinished_pools += other.unfinished_pools;
  half_inserted_pools += other.half_inserted_pools;
  resizing_pools += other.resizing_pools;
  batches += other.batches;
  operations += other.operations;
  large_batches += other.large_batches;
  scope_batches += other.scope_batches;
  scope_answers += other.scope_answers;
  cache_loadings += other.cache_loadings;
  compactions += other.compactions;
  snapshots += other.snapshots;
  snapshots_restored += other.snapshots_restored;
  kills_in_snapshots += other.kills_in_snapshots;
  kills_in_restores += other.kills_in_restores;
  batches_in_flight += other.batches_in_flight;
  keys_compared += other.keys_compared;
  slots_cleared += other.slots_cleared;
  resizes_continued += other.resizes_continued;
  resizes += other.resizes;
  return *this;
}

CrashRounds::CrashRounds(const CrashOptions& options)
    : options_(options),
      items_(options.create.key_size, options.create.value_size),
      oracle_(items_),
      random_(options.seed),
      name_(options.pool) {
  round_.seed = options.seed;
  round_.threads = options.threads;
  round_.tickets = options.tickets;
  round_.max_batch = options.max_batch;
  round_.key_size = options.create.key_size;
  round_.value_size = options.create.value_size;
  round_.shards = options.shards;
  round_.scopes = HasScopes(options.executor, options.shards);
  operations_.resize(round_.writers());
  std::filesystem::create_directory(CrashSnapshotFolder(options.pool));
  if (round_.scopes) answers_.emplace(CrashAnswersFile(options.pool));
}

CrashRounds::~CrashRounds() {
  std::error_code ignored;
  if (keep_pool_) return;
  std::filesystem::remove_all(options_.pool, ignored);
  std::filesystem::remove_all(CrashSnapshotFolder(options_.pool), ignored);
}

void CrashRounds::Run() {
  try {
    RunRound();
  } catch (const CrashViolation&) {
    name_.reset();
    keep_pool_ = true;
    throw;
  }
}

void CrashRounds::RunRound() {
  if (pool_exists_ && round_.age >= options_.rounds_per_pool) {
    std::filesystem::remove_all(options_.pool);
    pool_exists_ = false;
  }
  if (!pool_exists_) Renew();
  round_.number = totals_.rounds++;
  const CrashTotals::Phase phase = RunAndKill();
  ++totals_.kills[phase];
  try {
    AwaitRelease(options_.pool, kPatience, *options_.stop);
    CheckSnapshots();
    if (phase == CrashTotals::kCreation && IsUnfinished()) {
      ++totals_.unfinished_pools;
      // What is left in a folder the next creation removes.
      if (round_.shards == 0) std::filesystem::remove(options_.pool);
      return;
    }
    pool_exists_ = true;
    CheckCrashed();
    ++round_.age;
    // Sometimes the next child recovers the pool, and is killed while it does.
    recovering_ = totals_.rounds < options_.rounds && round_.age < options_.rounds_per_pool &&
                  random_.NextBelow(4) == 0;
    if (!recovering_) Reopen();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNoSpace) throw;  // of this machine: the pool has no maximum
    throw CrashViolation{{fmt::format("the pool can't be used: {}", error.what())}};
  }
}

void CrashRounds::Renew() {
  oracle_.Renew();
  ++totals_.pools;
  newest_level_ = options_.first_level_buckets;
  round_.age = 0;
  recovering_ = false;
}

CrashRounds::KillTime CrashRounds::DrawKillTime() {
  KillTime time;
  double share = random_.NextDouble();
  if (recovering_ || random_.NextBelow(pool_exists_ ? 8 : 3) == 0) {
    time.aim = KillTime::kOpening;
    // A pool is written towards the end of opening it; one that is just open is at risk, too.
    share = 1.2 * std::max(share, random_.NextDouble());
    time.after = share * (pool_exists_ ? opening_time_ : creation_time_);
  } else if (random_.NextBelow(10) == 0) {
    time.aim = KillTime::kClosing;
    time.after = share * opening_time_;
  } else if (round_.snapshots() && random_.NextBelow(2) == 0) {
    const bool restore = random_.NextBelow(3) == 0;
    time.aim = restore ? KillTime::kRestore : KillTime::kSnapshot;
    time.times = restore ? 1 : 1 + static_cast<unsigned>(random_.NextBelow(6));
    time.after = share * (restore ? restore_time_ : snapshot_time_);
  } else if (random_.NextBelow(2) == 0) {
    time.aim = KillTime::kResize;
    const unsigned most = random_.NextBelow(2) == 0 ? 1 : 4;
    time.times = 1 + static_cast<unsigned>(random_.NextBelow(most));
    time.after = share * share * kLongResize;
  } else {
    time.aim = KillTime::kBatches;
    if (random_.NextBelow(4) == 0) share /= 16;
    time.after = share * Milliseconds(options_.longest);
  }
  return time;
}

/// Lets a child run until it is killed, and tells the oracle what it reported.
/// @return the phase in which it was killed
CrashTotals::Phase CrashRounds::RunAndKill() {
  const KillTime time = DrawKillTime();
  // Short sessions are closed and opened again; in long ones the pool's keys all come.
  const std::uint64_t most = time.aim == KillTime::kClosing ? 6
                             : random_.NextBelow(2) == 0    ? 20
                                                            : 500;
  const std::uint64_t session_batches = recovering_ ? 0 : 2 + random_.NextBelow(most);
  CrashProcess child(options_.child_arguments(options_, round_, session_batches),
                     answers_ ? &*answers_ : nullptr, *options_.stop);
  bool alive = child.WatchUntil(Clock::now() + kPatience, [](const CrashRecord&) { return true; });
  const Clock::time_point begun = Clock::now();
  if (alive && time.aim != KillTime::kOpening) {
    alive = child.WatchUntil(
        begun + kPatience, [](const CrashRecord& record) { return record.kind == Kind::kOpened; });
    (pool_exists_ ? opening_time_ : creation_time_) = Clock::now() - begun;
  }
  const auto watch_for = [&](Milliseconds duration) {
    child.WatchUntil(Clock::now() + std::chrono::duration_cast<Clock::duration>(duration),
                     [](const CrashRecord&) { return false; });
  };
  if (alive && time.aim == KillTime::kResize) {
    ResizeWatch watch(options_.pool);
    const Clock::time_point enough = Clock::now() + options_.longest;
    bool before = false;
    for (unsigned resizes = 0; resizes < time.times && Clock::now() < enough;) {
      watch_for(Milliseconds(0.02));
      if (child.ended_by_itself()) break;
      const bool now = watch.ResizeUnderWay();
      if (now && !before) ++resizes;
      before = now;
    }
  }
  const bool copies = time.aim == KillTime::kSnapshot || time.aim == KillTime::kRestore;
  if (alive && copies) {
    const Kind begun_kind =
        time.aim == KillTime::kSnapshot ? Kind::kSnapshotBegun : Kind::kRestoring;
    unsigned times = 0;
    child.WatchUntil(Clock::now() + 4 * options_.longest, [&](const CrashRecord& record) {
      return record.kind == begun_kind && ++times == time.times;
    });
  }
  const auto closes = [](const CrashRecord& record) { return record.kind == Kind::kClosing; };
  const bool hangs = alive && time.aim == KillTime::kClosing &&
                     !child.WatchUntil(Clock::now() + kPatience, closes);
  if (alive) watch_for(time.after);
  const int status = child.Kill();
  RequireMemory(child, status);
  Require(!WIFEXITED(status), "the child ended by itself, with status {}", WEXITSTATUS(status));
  Require(WTERMSIG(status) == SIGKILL, "the child was ended by signal {}", WTERMSIG(status));
  Require(alive, "the child did not open the pool within {} s", kPatience.count());
  Require(!hangs, "the child's batches did not end within {} s", kPatience.count());
  const CrashTotals::Phase phase = TakeRecords(child.records());
  // So that some kills come too early and some too late.
  const auto learn = [](Milliseconds* duration, bool early) { *duration *= early ? 1.3 : 0.8; };
  if (time.aim == KillTime::kSnapshot) learn(&snapshot_time_, snapshots_->in_snapshot());
  if (time.aim == KillTime::kRestore) learn(&restore_time_, snapshots_->in_restore());
  return phase;
}

CrashTotals::Phase CrashRounds::TakeRecords(const std::vector<CrashRecord>& records) {
  CrashTotals::Phase phase = CrashTotals::kCreation;
  if (round_.snapshots() && !recovering_) {
    snapshots_.emplace(round_, options_.pool, records, oracle_);
  }
  for (const CrashRecord& record : records) {
    if (snapshots_ && record.kind != Kind::kStarting) snapshots_->Tell(record, nullptr);
    totals_.slots_cleared += record.slots_cleared;
    totals_.resizes_continued += record.resizes_continued;
    switch (record.kind) {
      case Kind::kCreating:
        phase = CrashTotals::kCreation;
        break;
      case Kind::kOpening:
        phase = CrashTotals::kOpening;
        break;
      case Kind::kOpened:
        phase = CrashTotals::kRunning;
        break;
      case Kind::kClosing:
        phase = CrashTotals::kClosing;
        break;
      case Kind::kStarting: {
        CrashBatch batch = MakeCrashBatch(round_, record.writer, record.batch);
        operations_.at(record.writer) = batch.operations.size();
        if (snapshots_) snapshots_->Tell(record, &batch);
        oracle_.Start(record.writer, record.batch, std::move(batch));
        break;
      }
      case Kind::kAcknowledged: {
        oracle_.Acknowledge(record.writer, CrashDigest(record.digest[0], record.digest[1]));
        const std::size_t operations = operations_.at(record.writer);
        ++totals_.batches;
        totals_.operations += operations;
        if (operations >= kLargeBatch) ++totals_.large_batches;
        if (round_.IsInScope(record.writer)) ++totals_.scope_batches;
        break;
      }
      case Kind::kCompacted:
        ++totals_.compactions;
        break;
      case Kind::kSnapshotTaken:
        ++totals_.snapshots;
        break;
      case Kind::kSnapshotBegun:
      case Kind::kRestoring:
      case Kind::kRestored:
        break;
      case Kind::kCacheLoaded:
        ++totals_.cache_loadings;
        break;
    }
  }
  totals_.batches_in_flight += oracle_.batches_in_flight();
  RequireNoDefects();
  return phase;
}

void CrashRounds::CheckSnapshots() {
  if (!snapshots_) return;
  const std::string restored = CrashRestoredPool(options_.pool);
  if (std::filesystem::exists(restored)) AwaitRelease(restored, kPatience, *options_.stop);
  RequireNone(snapshots_->Check());
  totals_.kills_in_snapshots += snapshots_->in_snapshot() ? 1 : 0;
  totals_.kills_in_restores += snapshots_->in_restore() ? 1 : 0;
  totals_.snapshots_restored += snapshots_->has_snapshot() ? 1 : 0;
  snapshots_.reset();
  for (const auto& entry :
       std::filesystem::directory_iterator(CrashSnapshotFolder(options_.pool))) {
    std::filesystem::remove_all(entry);
  }
}

/// Whether the kill left no whole pool, which opening it has to say.
bool CrashRounds::IsUnfinished() {
  const auto refuses = [](const auto& use) {
    try {
      use();
      return false;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kDamaged) throw;
      return true;
    }
  };
  if (!refuses([&] { CheckPools(options_.pool); })) return false;
  Require(refuses([&] { AnyStore::Open(options_.pool, DrawOpening()); }),
          "a store opens the pool that check refuses");
  return true;
}

/// The crashed pool is sound and holds what it must, before anything writes to it: so recovery has
/// to keep exactly that, and a failure leaves the pool as the kill did.
void CrashRounds::CheckCrashed() {
  const LeftPools left = CheckPools(options_.pool);
  RequireNone(left.defects);
  totals_.half_inserted_pools += left.half_inserted_pools;
  totals_.resizing_pools += left.resizing_pools;
  for (unsigned writer = 0; writer < round_.writers(); ++writer) {
    if (!round_.IsInScope(writer) || !oracle_.InFlight(writer)) continue;
    totals_.scope_answers += oracle_.AcknowledgeSome(writer, answers_->results());
  }
  oracle_.BeginItems();
  RequireNone(VisitPools(options_.pool, [&](auto key, auto value) { oracle_.Found(key, value); }));
  oracle_.EndItems();
  totals_.keys_compared += round_.keys();
  RequireNoDefects();
  Require(left.items == oracle_.items(), "check counts {} items where there are {}", left.items,
          oracle_.items());
}

/// A crashed pool is opened by either executor, with and without accelerators. Mostly by the cpu's,
/// which leaves the GPU to the children.
OpenOptions CrashRounds::DrawOpening() {
  OpenOptions open = MakeCrashOpening(round_);
  open.executor = random_.NextBelow(4) == 0 ? options_.executor : ExecutorKind::kCpu;
  return open;
}

/// Opening the pool changes nothing of what it holds, and closing it leaves nothing to recover.
void CrashRounds::Reopen() {
  AnyStore store = AnyStore::Open(options_.pool, DrawOpening());
  const StoreStats stats = store.Stats();
  totals_.slots_cleared += stats.recovery.insert_slots_cleared;
  totals_.resizes_continued += stats.recovery.resize_continued ? 1 : 0;
  if (std::exchange(newest_level_, stats.level_buckets[0]) != stats.level_buckets[0]) {
    ++totals_.resizes;
  }
  oracle_.BeginItems();
  store.ForEach([&](auto key, auto value) { oracle_.Found(key, value); });
  oracle_.EndItems();
  FindEveryKey(store);
  RequireNoDefects();
  const std::uint64_t items = oracle_.items();
  Require(stats.items == items, "the store counts {} items where there are {}", stats.items, items);
  Require(stats.value_cells == 0 || stats.value_cells - stats.free_cells == items,
          "{} of {} value cells are free while {} items use one each", stats.free_cells,
          stats.value_cells, items);
  store.Close();

  const LeftPools left = CheckPools(options_.pool);
  RequireNone(left.defects);
  Require(left.clean, "the pool was closed, but is not marked so");
  Require(left.items == items, "check counts {} items where there are {}", left.items, items);
  Require(left.unnamed_pools == 0, "there are {} pools that the manifest does not name",
          left.unnamed_pools);
}

void CrashRounds::FindEveryKey(AnyStore& store) {
  constexpr std::uint64_t kBatch = 8192;
  const std::size_t key_size = items_.key_size();
  const std::size_t value_size = items_.value_size();
  std::vector<std::byte> keys;
  std::vector<std::byte> found;
  std::vector<Result> results;
  for (std::uint64_t first = 0; first < round_.keys(); first += results.size()) {
    results.assign(std::min(kBatch, round_.keys() - first), Result::kInvalid);
    keys.resize(results.size() * key_size);
    found.resize(results.size() * value_size);
    for (std::size_t i = 0; i < results.size(); ++i) items_.PutKey(first + i, &keys[i * key_size]);
    store.Find(keys, found, results);
    for (std::size_t i = 0; i < results.size(); ++i) {
      oracle_.CheckFind(first + i, results[i],
                        std::span(found).subspan(i * value_size, value_size));
    }
  }
}

void CrashRounds::RequireNoDefects() const { RequireNone(oracle_.defects()); }

}  // namespace gpm::cli
