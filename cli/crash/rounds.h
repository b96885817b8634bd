#ifndef GPM_CLI_CRASH_ROUNDS_H_
#define GPM_CLI_CRASH_ROUNDS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/any_store.h"
#include "cli/crash/answers.h"
#include "cli/crash/oracle.h"
#include "cli/crash/process.h"
#include "cli/crash/snapshot_check.h"
#include "cli/crash/workload.h"
#include "gpmstore/options.h"
#include "support/signals.h"
#include "ycsb/generators.h"

namespace gpm::cli {

struct CrashOptions {
  std::string pool;  ///< no file is there yet; with shards, their folder
  CreateOptions create;
  std::uint32_t shards = 0;  ///< 0: one pool
  ExecutorKind executor = ExecutorKind::kCpu;
  std::uint64_t seed = 0;
  std::uint64_t rounds = 0;
  unsigned threads = 1;                   ///< of the child that start batches, as in CrashRound;
  unsigned tickets = 1;                   ///< likewise
  std::size_t max_batch = 4096;           ///< likewise
  std::chrono::milliseconds longest{0};   ///< from opening the pool to the kill
  std::uint64_t rounds_per_pool = 0;      ///< then a new pool takes its place
  std::uint64_t first_level_buckets = 0;  ///< of a new pool: of its newest level
  /// Command line of a child that runs RunCrashChild.
  std::function<std::vector<std::string>(const CrashOptions& options, const CrashRound& round,
                                         std::uint64_t session_batches)>
      child_arguments;
  const std::atomic<bool>* stop = nullptr;  ///< when set, the rounds end early
};

/// What the rounds came to.
struct CrashTotals {
  enum Phase { kCreation, kOpening, kRunning, kClosing, kPhases };
  std::uint64_t rounds = 0;  ///< begun
  std::uint64_t kills[kPhases] = {};
  std::uint64_t pools = 0;                ///< begun; with shards, folders, as the next
  std::uint64_t unfinished_pools = 0;     ///< left by a kill inside their creation, and refused
  std::uint64_t half_inserted_pools = 0;  ///< crashed with slots in state INSERT; of all shards
  std::uint64_t resizing_pools = 0;       ///< crashed in the middle of a resize; likewise
  std::uint64_t batches = 0;              ///< acknowledged
  std::uint64_t operations = 0;           ///< of these
  std::uint64_t large_batches = 0;        ///< acknowledged, of 2^16 operations or more
  std::uint64_t scope_batches = 0;        ///< acknowledged, carried out on a DeviceScope
  std::uint64_t scope_answers = 0;        ///< in the others: of operations by themselves
  std::uint64_t cache_loadings = 0;       ///< asked for, and ended
  std::uint64_t compactions = 0;          ///< likewise
  std::uint64_t snapshots = 0;            ///< taken
  std::uint64_t snapshots_restored = 0;   ///< after a kill, and compared
  std::uint64_t kills_in_snapshots = 0;
  std::uint64_t kills_in_restores = 0;
  std::uint64_t batches_in_flight = 0;  ///< at a kill
  std::uint64_t keys_compared = 0;
  std::uint64_t slots_cleared = 0;  ///< by recovery, like the next
  std::uint64_t resizes_continued = 0;
  std::uint64_t resizes = 0;

  CrashTotals& operator+=(const CrashTotals& other);
};

/// A broken promise.
struct CrashViolation {
  std::vector<std::string> texts;
};

/// Whether a thread of the child has kernels of its own: a store over several shards has no scope.
inline bool HasScopes(ExecutorKind executor, std::uint32_t shards) {
  return executor == ExecutorKind::kCuda && shards == 0;
}

/// The rounds of `gpmstore crash-test`, seen from the parent: each starts a child on the pool,
/// kills it at a random moment, and checks what it left. Destroying it removes the pool, unless it
/// breaks a promise. Thread safety: none; it is used on the thread that made it.
class CrashRounds {
 public:
  explicit CrashRounds(const CrashOptions& options);
  ~CrashRounds();
  CrashRounds(const CrashRounds&) = delete;
  CrashRounds& operator=(const CrashRounds&) = delete;

  /// The next round. @throws CrashViolation, after which the pool is kept; CrashStopped;
  /// Error(kIo) when there can't be a child, Error(kNoSpace) or std::bad_alloc when memory or room
  /// on the medium ran out
  void Run();

  const CrashTotals& totals() const { return totals_; }
  std::uint64_t number() const { return round_.number; }  ///< of the last round, from 0

 private:
  using Milliseconds = std::chrono::duration<double, std::milli>;

  /// When to kill: so long after opening (or creating) the pool has begun, after so many resizes
  /// have begun (at the latest, options_.longest after it was opened), after so many snapshots have
  /// begun, or one is being restored (likewise), after it was opened, or
  /// after all batches have ended and closing it has begun.
  struct KillTime {
    enum { kOpening, kResize, kSnapshot, kRestore, kBatches, kClosing } aim = kBatches;
    unsigned times = 0;
    Milliseconds after{0};
  };

  void Renew();
  KillTime DrawKillTime();
  void RunRound();
  CrashTotals::Phase RunAndKill();
  CrashTotals::Phase TakeRecords(const std::vector<CrashRecord>& records);
  void CheckSnapshots();
  bool IsUnfinished();
  void CheckCrashed();
  OpenOptions DrawOpening();
  void Reopen();
  void FindEveryKey(AnyStore& store);
  void RequireNoDefects() const;

  const CrashOptions options_;
  const CrashItems items_;
  CrashOracle oracle_;
  ycsb::Random random_;
  CrashRound round_;
  std::uint64_t newest_level_ = 0;  ///< its buckets, when the pool was opened last
  bool pool_exists_ = false;
  bool recovering_ = false;  ///< the next child has a crashed pool to recover, and does only that
  std::optional<RemovedOnSignal> name_;          ///< of the pool, unless it is kept
  std::optional<CrashSnapshotCheck> snapshots_;  ///< of this round
  Milliseconds snapshot_time_{5};                ///< about
  Milliseconds restore_time_{5};
  std::optional<CrashAnswers> answers_;  ///< of the child, if it has scopes
  bool keep_pool_ = false;
  std::vector<std::size_t> operations_;  ///< of each writer's last batch
  Milliseconds opening_time_{20};        ///< as last seen
  Milliseconds creation_time_{5};
  CrashTotals totals_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_ROUNDS_H_
