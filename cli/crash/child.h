#ifndef GPM_CLI_CRASH_CHILD_H_
#define GPM_CLI_CRASH_CHILD_H_

#include <cstdint>
#include <string>

#include "cli/crash/workload.h"
#include "gpmstore/options.h"

namespace gpm::cli {

/// The process of `gpmstore crash-test` that is killed.

/// What it reports over its standard output, one record a write(): as records are shorter than
/// PIPE_BUF, those of several threads do not mix, and a kill leaves none half-written. A batch is
/// named by its number, from which the parent makes it again, so two short writes tell of any size.
struct CrashRecord {
  enum class Kind : std::uint32_t {
    kCreating,       ///< about to create the pool
    kOpening,        ///< about to open it
    kOpened,         ///< created or opened; has what recovery did
    kStarting,       ///< a batch is about to start
    kAcknowledged,   ///< a batch is complete; has the digest of its answers
    kCacheLoaded,    ///< the cache was loaded, because it was asked for
    kCompacted,      ///< the store gave back what it did not need
    kSnapshotBegun,  ///< number `batch` of chains, and place digest[0] in it; likewise the next
    kSnapshotTaken,
    kRestoring,  ///< of the snapshot that was taken last
    kRestored,
    kClosing,  ///< about to close the pool; kOpening follows
  };
  Kind kind = Kind::kCreating;
  std::uint32_t writer = 0;
  std::uint64_t batch = 0;
  std::uint64_t digest[2] = {0, 0};
  std::uint64_t slots_cleared = 0;
  std::uint64_t resizes_continued = 0;
};

/// Tells the parent. @throws Error(kIo)
void Report(const CrashRecord& record);

/// What the child does.
struct CrashChildPlan {
  std::string pool;
  CrashRound round;
  /// Batches of each writer between opening the pool and closing it, after which it is opened
  /// again; 0: it is opened and closed only.
  std::uint64_t session_batches = 0;
  CreateOptions create;
  OpenOptions open;
};

/// Runs the plan until the process is killed, which it is at the latest when its parent ends. When
/// a batch fails it says why on the standard error and exits, with status kExitNoMemory where
/// memory or room on the medium ran out.
/// @throws Error as the store
[[noreturn]] void RunCrashChild(const CrashChildPlan& plan);

/// @param error an errno @throws Error(kIo): "WHAT: ..."
[[noreturn]] void ThrowErrno(const char* what, int error);

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_CHILD_H_
