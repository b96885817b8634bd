#ifndef GPM_SHARD_SPLITTER_POOL_H_
#define GPM_SHARD_SPLITTER_POOL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/home_process.h"
#include "pm/mutex.h"
#include "pm/thread_pool.h"
#include "shard/splitter.h"

namespace gpm {

/// Splitters for the batches that are under way at once: as many as those ever were, with their
/// memory.
///
/// Thread safety: any thread, but for destruction.
class SplitterPool {
 public:
  /// @param threads divide batches in host memory; outlive it @param lanes as MakeGpuSplitter's
  SplitterPool(ThreadPool& threads, std::uint32_t lanes) : threads_(threads), lanes_(lanes) {}
  ~SplitterPool() {
    // In a child of the process: what a splitter has on a GPU is the parent's.
    if (process_.IsThis()) return;
    for (std::unique_ptr<Splitter>& splitter : idle_) static_cast<void>(splitter.release());
  }
  SplitterPool(const SplitterPool&) = delete;
  SplitterPool& operator=(const SplitterPool&) = delete;

  /// One that nobody uses. @param device whose memory it works in; -1: the host's
  /// @throws as MakeGpuSplitter; std::bad_alloc
  std::unique_ptr<Splitter> Take(int device) {
    {
      const MutexLock lock(mutex_);
      const auto idle = std::find_if(idle_.begin(), idle_.end(), [&](const auto& splitter) {
        return splitter->device() == device;
      });
      if (idle != idle_.end()) {
        std::unique_ptr<Splitter> splitter = std::move(*idle);
        idle_.erase(idle);
        return splitter;
      }
    }
    return device < 0 ? MakeHostSplitter(threads_) : MakeGpuSplitter(device, lanes_);
  }
  /// For the next batch. REQUIRES: it has not failed.
  void GiveBack(std::unique_ptr<Splitter> splitter) {
    const MutexLock lock(mutex_);
    try {
      idle_.push_back(std::move(splitter));
    } catch (const std::bad_alloc&) {  // the next batch makes its own
    }
  }

 private:
  ThreadPool& threads_;
  const std::uint32_t lanes_;
  const HomeProcess process_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Splitter>> idle_ GPM_GUARDED_BY(mutex_);
};

}  // namespace gpm

#endif  // GPM_SHARD_SPLITTER_POOL_H_
