#include "cli/crash/snapshot_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "cli/crash/left_pools.h"
#include "gpmstore/error.h"

namespace gpm::cli {
namespace {

using Kind = CrashRecord::Kind;

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::string CrashSnapshotFolder(const std::string& pool) { return pool + ".snapshots"; }

std::string CrashSnapshotFile(const std::string& pool, std::uint64_t chain, std::uint64_t place) {
  return fmt::format("{}/{}-{}.snap", CrashSnapshotFolder(pool), chain, place);
}

std::string CrashRestoredPool(const std::string& pool) {
  return CrashSnapshotFolder(pool) + "/restored";
}

CrashSnapshotCheck::CrashSnapshotCheck(const CrashRound& round, const std::string& pool,
                                       const std::vector<CrashRecord>& records,
                                       const CrashOracle& oracle)
    : round_(round), values_(oracle.values()), pool_(pool) {
  std::optional<std::size_t> begun;
  std::optional<std::size_t> complete;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const CrashRecord& record = records[i];
    if (record.kind == Kind::kSnapshotBegun) {
      begun = i;
      in_snapshot_ = true;
    } else if (record.kind == Kind::kSnapshotTaken) {
      complete = begun;
      taken_at_ = {*begun, i};
      in_snapshot_ = false;
    } else if (record.kind == Kind::kRestoring || record.kind == Kind::kRestored) {
      in_restore_ = record.kind == Kind::kRestoring;
    }
  }
  if (in_snapshot_) {  // it may be complete
    const CrashRecord& last = records[*begun];
    if (IsStoreThere(CrashSnapshotFile(pool_, last.batch, last.digest[0]))) {
      complete = begun;
      taken_at_ = {*begun, kNever};
    }
  }
  if (!complete) return;
  const CrashRecord& newest = records[*complete];
  for (std::uint64_t place = 0; place <= newest.digest[0]; ++place) {
    chain_.push_back(CrashSnapshotFile(pool_, newest.batch, place));
  }
  versions_ = oracle.versions();
  const std::uint64_t writers = round_.writers();
  logs_.resize(writers);
  begun_later_.resize(writers);
  for (std::uint64_t writer = 0; writer < writers; ++writer) {
    std::vector<KeyState>& before = logs_[writer].before;
    for (std::uint64_t key = writer; key < kCrashKeys; key += writers) {
      before.push_back(StateOf(key, versions_[key]));
    }
  }
}

KeyState CrashSnapshotCheck::StateOf(std::uint64_t key, std::uint64_t version) {
  if (version == 0) return {};
  return {true, CrashToken(values_.ValueOf(key, version))};
}

void CrashSnapshotCheck::Tell(const CrashRecord& record, const CrashBatch* batch) {
  const std::uint64_t now = told_++;
  if (chain_.empty() || (record.kind != Kind::kStarting && record.kind != Kind::kAcknowledged)) {
    return;
  }
  KeyLog& log = logs_.at(record.writer);
  const std::uint64_t writers = round_.writers();
  if (record.kind == Kind::kStarting) {
    if (now > taken_at_.returned_at) begun_later_[record.writer] = true;
    if (begun_later_[record.writer]) return;
    for (const CrashOperation& operation : batch->operations) {
      std::uint64_t& version = versions_[operation.key];
      const std::uint64_t after = values_.Apply(operation, batch->element, version).second;
      if (after == version) continue;
      version = after;
      log.changes.push_back({operation.key / writers, StateOf(operation.key, after)});
    }
    log.batches.push_back({{now, kNever}, log.changes.size()});
  } else if (!begun_later_[record.writer] && !log.batches.empty()) {
    log.batches.back().interval.returned_at = now;
    if (now > taken_at_.invoked_at) return;
    for (const auto& [number, state] : log.changes) log.before[number] = state;
    log.changes.clear();
    log.batches.clear();
  }
}

CrashSnapshotCheck::Held CrashSnapshotCheck::Visit(AnyStore& store) {
  Held held;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    const std::optional<std::uint64_t> number = values_.items().KeyNumber(key);
    if (!number) {
      Defect("a key is in the snapshot that no operation has");
    } else if (!held.emplace(*number, CrashToken(value)).second) {
      Defect(fmt::format("key {} is in the snapshot twice", *number));
    }
  });
  return held;
}

/// The operations of a writer in a scope are carried out each by itself.
void CrashSnapshotCheck::CompareScope(unsigned writer, const std::vector<KeyState>& held) {
  const KeyLog& log = logs_[writer];
  const auto same = [](const KeyState& left, const KeyState& right) {
    return left.present == right.present && (!left.present || left.token == right.token);
  };
  std::vector<bool> right(held.size());
  for (std::size_t i = 0; i < held.size(); ++i) right[i] = same(held[i], log.before[i]);
  for (const auto& [number, state] : log.changes) {
    if (same(held[number], state)) right[number] = true;
  }
  const auto wrong = std::find(right.begin(), right.end(), false);
  if (wrong == right.end()) return;
  Defect(
      fmt::format("key {}, of kernels, is in the snapshot as it never was",
                  static_cast<std::uint64_t>(wrong - right.begin()) * round_.writers() + writer));
}

void CrashSnapshotCheck::Compare(const Held& held) {
  const std::uint64_t writers = round_.writers();
  Moments moments{taken_at_};
  for (unsigned writer = 0; writer < writers; ++writer) {
    std::vector<KeyState> of_writer(logs_[writer].before.size());
    for (std::size_t i = 0; i < of_writer.size(); ++i) {
      const auto item = held.find(i * writers + writer);
      if (item != held.end()) of_writer[i] = {true, item->second};
    }
    if (round_.IsInScope(writer)) {
      CompareScope(writer, of_writer);
      continue;
    }
    std::string wrong;
    moments = Common(moments, MomentsOf(logs_[writer], of_writer, &wrong));
    if (!wrong.empty()) return Defect(fmt::format("snapshot, writer {}: {}", writer, wrong));
    if (moments.empty()) {
      return Defect(
          fmt::format("there is no moment, while the snapshot was taken, at which the "
                      "keys of writers 0 to {} can have been as they are in it",
                      writer));
    }
  }
}

std::vector<std::string> CrashSnapshotCheck::Check() {
  const std::string restored = CrashRestoredPool(pool_);
  if (chain_.empty()) {
    if (IsStoreThere(restored)) Defect("a pool was restored of nothing");
    return defects_;
  }
  try {
    OpenOptions open;
    open.executor = ExecutorKind::kCpu;
    const std::string again = restored + "-again";
    AnyStore store = AnyStore::Restore(chain_, again, open);
    const Held held = Visit(store);
    store.Close();
    for (const std::string& defect : CheckPools(again).defects) Defect("restored: " + defect);
    std::filesystem::remove_all(again);
    Compare(held);
    if (!IsStoreThere(restored)) return defects_;
    // What the child restored has its name: so it is whole.
    for (const std::string& defect : CheckPools(restored).defects) {
      Defect("restored by the child: " + defect);
    }
    AnyStore whole = AnyStore::Open(restored, open);
    if (Visit(whole) != held) Defect("what the child restored is not what the snapshots hold");
    whole.Close();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNoSpace) throw;
    Defect(fmt::format("a snapshot that was complete can't be restored: {}", error.what()));
  }
  return defects_;
}

}  // namespace gpm::cli
