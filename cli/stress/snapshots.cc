#include "cli/stress/snapshots.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "cli/stress/contents.h"
#include "cli/stress/random.h"
#include "gpmstore/error.h"
#include "recovery/check.h"
#include "support/signals.h"

namespace gpm::stress {
namespace {

/// As a batch in a history; no lane has this number.
constexpr std::uint64_t kFirstRead = std::uint64_t{0xFE} << 56;
constexpr std::size_t kLongestChain = 4;

/// A folder for files that goes with all that is in it.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gpmstore-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw Error(ErrorCode::kIo, pattern + ": can't make a directory for snapshots");
    }
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Snapshots {
 public:
  Snapshots(RoundState& round, std::span<const std::unique_ptr<Lane>> lanes)
      : round_(round), lanes_(lanes), random_(round.plan.seed ^ 0x54A95407) {}

  void Run() {
    constexpr std::uint64_t kLongestPause = 150;  // milliseconds
    while (!round_.ends()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random_.Below(kLongestPause)));
      if (!TakeNext()) return;
      ++round_.totals.steps;
      Compare();
      ++round_.totals.steps;
    }
  }

 private:
  /// Whether all lanes have seen that recording began or ended. @return false: some never will
  bool AwaitLanes() const {
    const std::uint64_t recording = round_.recording;
    for (const auto& lane : lanes_) {
      while (!lane->Follows(recording)) {
        if (round_.unusable || round_.findings.failed()) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }

  /// @return false: the round ended
  bool TakeNext() {
    const bool increment =
        !chain_.empty() && chain_.size() < kLongestChain && random_.Below(3) != 0;
    SnapshotOptions options;
    if (increment) {
      options.base = chain_.back();
    } else {
      for (const std::string& file : chain_) std::filesystem::remove(file);
      chain_.clear();
      options.track_changes = !random_.OneIn(4);
    }
    options.threads = static_cast<unsigned>(random_.Below(3));
    const std::string file = folder_.File(fmt::format("{}.snap", taken_++));
    ++round_.recording;
    // (When the round ends, lanes leave, and their logs may be of another time.)
    if (!AwaitLanes() || round_.ends()) return false;
    taken_at_.invoked_at = Now();
    round_.store.Snapshot(file, options);
    taken_at_.returned_at = Now();
    ++round_.recording;
    if (!AwaitLanes()) return false;
    chain_.push_back(file);
    tracked_ = options.track_changes;
    return true;
  }

  void Fail(const std::string& wrong) const {
    round_.findings.Fail(
        fmt::format("snapshot {}, number {} of its chain: {}", taken_, chain_.size(), wrong));
  }

  void Compare() {
    const std::string pool = folder_.File("restored");
    OpenOptions open = round_.plan.reopen;
    open.executor = ExecutorKind::kCpu;
    open.max_bytes = 0;
    Store restored = Store::Restore(chain_, pool, open);
    const Contents contents = VisitAll(restored, round_.plan.shape);
    const std::uint64_t items = restored.Stats().items;
    restored.Close();
    const CheckReport report = CheckPool(pool);
    std::filesystem::remove(pool);
    if (!contents.defect.empty()) return Fail(contents.defect);
    if (!report.defects.empty()) return Fail("check: " + report.defects.front());
    if (items != contents.items.size() || report.items != items) {
      return Fail(fmt::format("{} items, and {} are counted", contents.items.size(), items));
    }
    std::vector<const cli::KeyLog*> logs;
    for (const auto& lane : lanes_) logs.push_back(&lane->log());
    std::string wrong;
    const std::optional<Interval> instant = InstantOf(contents, logs, taken_at_, &wrong);
    if (!instant) return Fail(wrong);
    ReadWatchedKeys(contents, *instant);
    ++round_.totals.snapshots;
    if (chain_.size() > 1) ++round_.totals.increments;
    if (!tracked_) {
      std::filesystem::remove(chain_.front());
      chain_.clear();
    }
  }

  void ReadWatchedKeys(const Contents& contents, const Interval& instant) {
    std::map<std::uint64_t, std::uint64_t> held;
    for (const auto& [id, token] : contents.items) {
      if (OwnerOf(id) == kWatched) held.emplace(NumberOf(id), token);
    }
    const std::uint64_t keys = round_.watched.keys();
    for (std::uint64_t key = keys - std::min(keys, 2 * WatchedKeys::kKeys); key < keys; ++key) {
      const auto item = held.find(key);
      crash::HistoryOp read;
      read.key = key;
      read.result = item == held.end() ? Result::kNotFound : Result::kOk;
      read.found = item == held.end() ? 0 : item->second;
      read.invoked_at = instant.invoked_at;
      read.returned_at = instant.returned_at;
      read.batch = kFirstRead + reads_;
      if (round_.watched.RecordRead(read)) ++reads_;
    }
  }

  RoundState& round_;
  const std::span<const std::unique_ptr<Lane>> lanes_;
  Random random_;
  const Folder folder_;
  std::vector<std::string> chain_;
  bool tracked_ = true;
  std::uint64_t taken_ = 0;
  Interval taken_at_{};
  std::uint64_t reads_ = 0;
};

}  // namespace

std::optional<Interval> InstantOf(const Contents& contents,
                                  std::span<const cli::KeyLog* const> logs,
                                  const Interval& taken_at, std::string* wrong) {
  std::vector<std::vector<cli::KeyState>> held;
  for (const cli::KeyLog* log : logs) held.emplace_back(log->before.size());
  for (const auto& [id, token] : contents.items) {
    if (OwnerOf(id) < kFirstLane) continue;
    const std::uint64_t lane = OwnerOf(id) - kFirstLane;
    if (lane >= held.size() || NumberOf(id) >= held[lane].size()) {
      *wrong = KeyName(id) + " is in it, which nobody inserted";
      return {};
    }
    held[lane][NumberOf(id)] = {true, token};
  }
  cli::Moments moments{taken_at};
  for (std::size_t lane = 0; lane < logs.size(); ++lane) {
    std::string wrong_keys;
    moments = cli::Common(moments, cli::MomentsOf(*logs[lane], held[lane], &wrong_keys));
    if (!wrong_keys.empty()) {
      *wrong = fmt::format("of lane {}, {}", lane, wrong_keys);
      return {};
    }
    if (moments.empty()) {
      *wrong = fmt::format(
          "there is no moment, while it was taken, at which lanes 0 to {} can have been as they "
          "are in it",
          lane);
      return {};
    }
  }
  return Interval{moments.front().invoked_at, moments.back().returned_at};
}

void RunSnapshots(RoundState& round, std::span<const std::unique_ptr<Lane>> lanes) {
  Snapshots(round, lanes).Run();
}

}  // namespace gpm::stress
