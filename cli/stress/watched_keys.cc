#include "cli/stress/watched_keys.h"

namespace gpm::stress {
namespace {

/// A history holds at most 64 operations; one of them is the find when all is over, and some are of
/// snapshots.
constexpr std::uint8_t kMaxReads = 3;
constexpr std::uint32_t kMaxOperations = 63 - kMaxReads;

}  // namespace

WatchedKeys::WatchedKeys(unsigned threads, std::uint64_t most)
    : share_(kMaxOperations / std::min<std::uint32_t>(threads, kThreads)),
      episodes_(most / kKeys),
      threads_(threads) {}

std::uint64_t WatchedKeys::Take(unsigned thread, std::uint64_t choice) {
  Thread& mine = threads_[thread];
  const std::uint64_t episode = episode_.load();
  if (episode >= episodes_ || (thread + episode) % threads_.size() >= kThreads) return kNone;
  if (mine.episode != episode) {
    mine.episode = episode;
    std::fill(std::begin(mine.used), std::end(mine.used), 0);
    mine.used_up = 0;
  }
  std::uint64_t key = choice % kKeys;
  for (std::uint64_t i = 0; i < kKeys && mine.used[key] == share_; ++i) key = (key + 1) % kKeys;
  if (mine.used[key] == share_) return kNone;
  if (++mine.used[key] == share_ && ++mine.used_up == kKeys) {
    // The one that makes it half of the episode's threads begins the next one.
    const std::uint64_t threads = std::min<std::uint64_t>(threads_.size(), kThreads);
    if (done_.fetch_add(1) + 1 >= (threads + 1) / 2) {
      done_ = 0;
      ++episode_;
    }
  }
  return episode * kKeys + key;
}

bool WatchedKeys::RecordRead(const crash::HistoryOp& op) {
  if (reads_of_.size() <= op.key) reads_of_.resize(op.key + kKeys);
  if (reads_of_[op.key] == kMaxReads) return false;
  ++reads_of_[op.key];
  reads_.push_back(op);
  return true;
}

crash::History WatchedKeys::Histories() const {
  crash::History all = reads_;
  for (const Thread& thread : threads_) {
    all.insert(all.end(), thread.history.begin(), thread.history.end());
  }
  return all;
}

}  // namespace gpm::stress
