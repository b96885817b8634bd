#include "pm/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "pm/pause_cpu.h"

namespace gpm {
namespace {

/// Rounds an idle thread looks for work before it sleeps: some 20 microseconds, which is what a
/// wake-up costs. A batch is often followed by the next at once.
constexpr int kIdleRounds = 2000;

}  // namespace

unsigned ThreadsOf(unsigned asked) {
  return asked > 0 ? asked : std::max(1u, std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(unsigned threads) {
  try {
    for (unsigned i = 1; i < std::max(threads, 1u); ++i) {
      workers_.emplace_back([this] { Work(); });
    }
  } catch (const std::system_error&) {  // as many as there are
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::WorkOn(Job& job) {
  for (;;) {
    const std::size_t index = job.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= job.parts) return;
    try {
      (*job.part)(index);
    } catch (...) {
      if (!job.failed.exchange(true)) job.failure = std::current_exception();
    }
    job.done.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::Run(std::size_t parts, const std::function<void(std::size_t)>& part) {
  if (parts == 0) return;
  Job job;
  job.part = &part;
  job.parts = parts;
  const bool shared = parts > 1 && !workers_.empty();
  if (shared) {
    {
      const std::lock_guard lock(mutex_);
      Job** end = &jobs_;
      while (*end != nullptr) end = &(*end)->next_job;
      *end = &job;
      submitted_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  WorkOn(job);
  if (shared) {
    const std::lock_guard lock(mutex_);
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->next_job;
    *link = job.next_job;
  }
  for (int round = 0; job.done.load(std::memory_order_acquire) != parts ||
                      job.users.load(std::memory_order_acquire) != 0;
       ++round) {
    if (round < kIdleRounds) {
      PauseCpu();
    } else {
      std::this_thread::yield();
    }
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

void ThreadPool::Work() {
  for (;;) {
    Job* job = nullptr;
    const std::uint64_t seen = submitted_.load(std::memory_order_acquire);
    {
      std::unique_lock lock(mutex_);
      for (Job* candidate = jobs_; candidate != nullptr; candidate = candidate->next_job) {
        if (candidate->next.load(std::memory_order_relaxed) < candidate->parts) {
          job = candidate;
          job->users.fetch_add(1, std::memory_order_relaxed);
          break;
        }
      }
      if (job == nullptr && stop_) return;
    }
    if (job != nullptr) {
      WorkOn(*job);
      job->users.fetch_sub(1, std::memory_order_release);
      continue;
    }
    int round = 0;
    while (round < kIdleRounds && submitted_.load(std::memory_order_acquire) == seen) {
      PauseCpu();
      ++round;
    }
    if (round == kIdleRounds) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || submitted_.load(std::memory_order_relaxed) != seen; });
    }
  }
}

}  // namespace gpm
