#ifndef GPM_CLI_CRASH_SNAPSHOT_CHECK_H_
#define GPM_CLI_CRASH_SNAPSHOT_CHECK_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/any_store.h"
#include "cli/crash/child.h"
#include "cli/crash/oracle.h"
#include "cli/crash/workload.h"
#include "cli/key_log.h"

namespace gpm::cli {

/// Files and folders of a child's snapshots; one that is being restored, too.
std::string CrashSnapshotFolder(const std::string& pool);
/// @param chain, place of the snapshot in it, both from 0
std::string CrashSnapshotFile(const std::string& pool, std::uint64_t chain, std::uint64_t place);
std::string CrashRestoredPool(const std::string& pool);

/// What a killed child must have left of its snapshots: each that it reported as complete is there,
/// but for chains that a later one took the place of, and one that it was taking is complete or is
/// not there. The newest one has of every writer a number of whole batches: those that had been
/// acknowledged before it was begun, and none that began later. Moments are places in the child's
/// records.
///
/// Thread safety: none.
class CrashSnapshotCheck {
 public:
  /// @param oracle before it is told of these records
  CrashSnapshotCheck(const CrashRound& round, const std::string& pool,
                     const std::vector<CrashRecord>& records, const CrashOracle& oracle);

  /// The next record, and the batch that it starts, if it does.
  void Tell(const CrashRecord& record, const CrashBatch* batch);
  /// Restores what is there. @return what is wrong, or nothing @throws Error
  std::vector<std::string> Check();

  bool has_snapshot() const { return !chain_.empty(); }
  /// It was killed while it took a snapshot, or restored one.
  bool in_snapshot() const { return in_snapshot_; }
  bool in_restore() const { return in_restore_; }

 private:
  /// What stands for values, by number of the key.
  using Held = std::unordered_map<std::uint64_t, std::uint64_t>;

  KeyState StateOf(std::uint64_t key, std::uint64_t version);
  Held Visit(AnyStore& store);
  void Compare(const Held& held);
  void CompareScope(unsigned writer, const std::vector<KeyState>& held);
  void Defect(std::string text) { defects_.push_back(std::move(text)); }

  const CrashRound round_;
  CrashValues values_;
  const std::string pool_;
  bool in_snapshot_ = false;
  bool in_restore_ = false;
  std::vector<std::string> chain_;  ///< files of the newest snapshot; none: there is none
  Interval taken_at_{};             ///< of that
  std::uint64_t told_ = 0;          ///< records
  std::vector<std::uint64_t> versions_;
  std::vector<KeyLog> logs_;       ///< by writer; keys by their place among the writer's
  std::vector<bool> begun_later_;  ///< by writer: batches that are not in the log
  std::vector<std::string> defects_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_SNAPSHOT_CHECK_H_
