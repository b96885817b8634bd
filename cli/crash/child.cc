#include "cli/crash/child.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cli/any_store.h"
#include "cli/common.h"
#include "cli/crash/answers.h"
#include "cli/crash/gpu.h"
#include "cli/crash/left_pools.h"
#include "cli/crash/snapshot_check.h"
#include "cli/crash/writer.h"
#include "cli/out_of_memory.h"
#include "gpmstore/error.h"
#include "gpmstore/store.h"
#include "pm/gpu_host.h"
#include "ycsb/generators.h"

namespace gpm::cli {

void ThrowErrno(const char* what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error)));
}

namespace {

static_assert(sizeof(CrashRecord) <= PIPE_BUF);

AnyStore CreateOrOpen(const CrashChildPlan& plan) {
  CrashRecord record;
  if (!IsStoreThere(plan.pool)) {
    Report(record);
    return AnyStore::Create(plan.pool, plan.create, plan.open, {.shards = plan.round.shards});
  }
  record.kind = CrashRecord::Kind::kOpening;
  Report(record);
  return AnyStore::Open(plan.pool, plan.open);
}

/// A thread that ends the process when its work fails: at once, as others may wait for it for ever.
template <class Work>
std::thread StartThread(Work work) {
  try {
    return std::thread([work = std::move(work)] {
      try {
        work();
      } catch (const std::exception& error) {
        std::_Exit(ReportError(error));
      }
    });
  } catch (const std::exception& error) {  // there can't be one more thread
    std::_Exit(ReportError(error));
  }
}

/// Asks for the cache to be loaded, again and again.
void LoadCaches(Store& store, const std::atomic<bool>& done) {
  constexpr std::chrono::milliseconds kPause{2};
  CrashRecord record;
  record.kind = CrashRecord::Kind::kCacheLoaded;
  while (!done) {
    store.RefreshCache().Wait();
    Report(record);
    std::this_thread::sleep_for(kPause);
  }
}

/// Compacts the store, again and again.
void Compact(AnyStore& store, const std::atomic<bool>& done) {
  constexpr std::chrono::milliseconds kPause{5};
  CrashRecord record;
  record.kind = CrashRecord::Kind::kCompacted;
  while (!done) {
    store.Compact();
    Report(record);
    std::this_thread::sleep_for(kPause);
  }
}

/// Takes snapshots, whole ones and increments, again and again, and restores some.
class Snapshots {
 public:
  explicit Snapshots(const CrashChildPlan& plan)
      : plan_(plan), random_(plan.round.seed, plan.round.number) {}

  void Take(AnyStore& store, const std::atomic<bool>& done) {
    constexpr std::chrono::milliseconds kPause{2};
    BeginChain();  // the store knows none from before it was opened
    while (!done) {
      TakeOne(store);
      if (random_.NextBelow(4) == 0) Restore();
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  void BeginChain() {
    ++chains_;
    old_.insert(old_.end(), chain_.begin(), chain_.end());
    chain_.clear();
  }

  void TakeOne(AnyStore& store) {
    const std::uint64_t longest = plan_.round.shards > 0 ? 1 : 5;  // of shards, no increments
    if (chain_.size() > random_.NextBelow(longest)) BeginChain();
    CrashRecord record;
    record.batch = chains_;
    record.digest[0] = chain_.size();
    const std::string file = CrashSnapshotFile(plan_.pool, chains_, chain_.size());
    record.kind = CrashRecord::Kind::kSnapshotBegun;
    Report(record);
    store.Snapshot(file, chain_.empty() ? "" : chain_.back());
    chain_.push_back(file);
    record.kind = CrashRecord::Kind::kSnapshotTaken;
    Report(record);
    for (const std::string& old : old_) std::filesystem::remove_all(old);
    old_.clear();
  }

  void Restore() {
    const std::string path = CrashRestoredPool(plan_.pool);
    CrashRecord record;
    record.kind = CrashRecord::Kind::kRestoring;
    Report(record);
    AnyStore::Restore(chain_, path, plan_.open).Close();
    record.kind = CrashRecord::Kind::kRestored;
    Report(record);
    const std::string gone = path + ".gone";
    std::filesystem::rename(path, gone);  // a kill leaves no folder from which pools are missing
    std::filesystem::remove_all(gone);
  }

  const CrashChildPlan& plan_;
  ycsb::Random random_;
  std::uint64_t chains_ = 0;
  std::vector<std::string> chain_;  ///< files
  std::vector<std::string> old_;    ///< of chains before, until one takes their place
};

/// The threads of the child and what they keep from one opening of the pool to the next.
class Session {
 public:
  explicit Session(const CrashChildPlan& plan) : plan_(plan), snapshots_(plan) {
    const CrashItems items(plan.create.key_size, plan.create.value_size);
    const bool gpu = plan.open.executor == ExecutorKind::kCuda;
    if (plan.round.scopes) {
      answers_.emplace();
      RegisterHostMemory(answers_->results().data(), answers_->results().size_bytes());
    }
    for (unsigned w = 0; w < plan.round.writers(); ++w) {
      writers_.emplace_back(plan.round, w, items, gpu,
                            answers_ ? answers_->results() : std::span<Result>());
    }
    for (unsigned t = 0; t < plan.round.threads + (plan.round.scopes ? 1 : 0); ++t) {
      streams_.push_back(gpu ? MakeGpuStream() : nullptr);
    }
  }

  /// Every writer writes its batches, while the cache is loaded and the pool shrinks.
  void Run(AnyStore& store) {
    std::atomic<bool> done{false};
    std::vector<std::thread> writing;
    std::thread loading, compacting, copying;
    if (plan_.round.IsFirstLoad(0, 0) && !loaded_) writers_[0].Start(store, streams_[0]);
    loaded_ = true;
    if (store.one() != nullptr && store.Stats().cache.frames > 0) {
      loading = StartThread([&] { LoadCaches(*store.one(), done); });
    }
    if (plan_.round.compacts()) compacting = StartThread([&] { Compact(store, done); });
    if (plan_.round.snapshots()) copying = StartThread([&] { snapshots_.Take(store, done); });
    for (std::size_t t = 0; t < streams_.size(); ++t) {
      writing.push_back(StartThread([&, t] { RunThread(store, t); }));
    }
    for (std::thread& thread : writing) thread.join();
    done = true;
    if (loading.joinable()) loading.join();
    if (compacting.joinable()) compacting.join();
    if (copying.joinable()) copying.join();
  }

 private:
  /// The writers of a thread take turns, so that each has a batch in flight.
  void RunThread(AnyStore& store, std::size_t thread) {
    const std::size_t tickets = plan_.round.tickets;
    const std::size_t first = thread * tickets;
    const std::size_t end = std::min(first + tickets, writers_.size());
    for (std::uint64_t b = 0; b < plan_.session_batches; ++b) {
      for (std::size_t w = first; w < end; ++w) {
        writers_[w].Finish(store);
        writers_[w].Start(store, streams_[thread]);
      }
    }
    for (std::size_t w = first; w < end; ++w) writers_[w].Finish(store);
  }

  const CrashChildPlan& plan_;
  Snapshots snapshots_;
  std::optional<CrashAnswers> answers_;
  std::deque<CrashWriter> writers_;
  std::vector<Stream> streams_;  ///< one a thread
  bool loaded_ = false;          ///< the first batch of a new pool was started
};

}  // namespace

void Report(const CrashRecord& record) {
  if (write(STDOUT_FILENO, &record, sizeof record) != sizeof record) {
    ThrowErrno("the record of a batch can't be written", errno);
  }
}

void RunCrashChild(const CrashChildPlan& plan) {
  // A parent that has ended already shows as a pipe that nobody reads.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ThrowErrno("prctl", errno);
  // First, so that most of the time from the first record on is the store's.
  if (plan.open.executor == ExecutorKind::kCuda) StartGpu();
  Session session(plan);
  for (;;) {
    AnyStore store = CreateOrOpen(plan);
    const RecoveryStats recovery = store.Stats().recovery;
    CrashRecord record;
    record.kind = CrashRecord::Kind::kOpened;
    record.slots_cleared = recovery.insert_slots_cleared;
    record.resizes_continued = recovery.resize_continued ? 1 : 0;
    Report(record);
    if (plan.session_batches > 0) session.Run(store);
    record = CrashRecord{};
    record.kind = CrashRecord::Kind::kClosing;
    Report(record);
    store.Close();
  }
}

}  // namespace gpm::cli
