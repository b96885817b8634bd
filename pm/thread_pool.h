#ifndef GPM_PM_THREAD_POOL_H_
#define GPM_PM_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gpm {

/// So many threads; 0: as many as there are cores.
unsigned ThreadsOf(unsigned asked);

/// Threads that work off the parts of jobs. The thread that submits a job works on it too, so
/// `threads` threads in all work on one job, and a pool of 1 has no thread of its own.
///
/// Thread safety: Run may be called from several threads at once.
class ThreadPool {
 public:
  /// As many threads as the system has for it, where those are fewer. @throws std::bad_alloc
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  /// Calls part(0) ... part(parts - 1), each once, and returns when all have returned; allocates
  /// nothing. @throws what a part threw, the first one, when all have ended
  void Run(std::size_t parts, const std::function<void(std::size_t)>& part);

 private:
  struct Job {
    const std::function<void(std::size_t)>* part;
    std::size_t parts;
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> done{0};
    std::atomic<int> users{0};  ///< workers that hold a pointer to it
    std::atomic<bool> failed{false};
    std::exception_ptr failure;  ///< of the part that failed first
    Job* next_job = nullptr;     ///< of `jobs_`
  };
  void Work();
  static void WorkOn(Job& job);
  void Stop() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  Job* jobs_ = nullptr;  ///< with parts left to hand out, linked so that submitting can't fail
  std::atomic<std::uint64_t> submitted_{0};
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace gpm

#endif  // GPM_PM_THREAD_POOL_H_
