#ifndef GPM_SHARD_BATCH_QUEUE_H_
#define GPM_SHARD_BATCH_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "engine/home_process.h"
#include "engine/log.h"
#include "gpmstore/store.h"
#include "pm/mutex.h"

namespace gpm {

/// Batches in flight over several shards, or ranks. A thread of the queue carries them out, while
/// who begins the next one prepares it.
///
/// Thread safety: any thread, but for destruction. A ticket may outlive the queue.
///
/// Invariants:
///  1. Batches are carried out one after the other, in the order in which Begin returned
///     their tickets: an operation sees all of those before it on its key.
///  2. At most kMost batches have begun and not ended, which bounds the memory that they take.
///  3. When a batch has ended, nothing reads or writes the caller's arrays any more.
class BatchQueue {
 public:
  /// One that is carried out, and one that is prepared meanwhile.
  static constexpr std::uint64_t kMost = 2;

  /// Carries out a batch, which it holds.
  using CarryOut = std::function<void()>;
  /// @param log who waits for a batch tells it what was added
  /// @param has_thread else batches are carried out before Begin returns
  BatchQueue(const HomeProcess& process, std::shared_ptr<Log> log, bool has_thread = true);
  ~BatchQueue();  ///< carries out what has begun. REQUIRES: not in a child of the process
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  /// Prepares a batch, and leaves it to the thread; waits before where kMost are in flight. Where
  /// no thread can be had, the batch is carried out before this returns.
  /// @param prepare what it returns is destroyed when it was carried out
  /// @throws what `prepare` throws, and std::bad_alloc, with nothing applied; what carrying out
  ///         throws, the ticket does
  Ticket Begin(const std::function<CarryOut()>& prepare);

  /// Waits until the batches that began before have ended.
  void Await();

 private:
  struct Flight {
    CarryOut carry_out;
    std::promise<void> ended;
  };
  class FlightTicket;
  class Place;  ///< of a batch that is being prepared: one of kMost

  bool StartsThread() GPM_REQUIRES(mutex_);  ///< if it is not there yet; whether it is
  void Work();                               ///< the thread's
  static void Finish(Flight& flight) noexcept;

  const HomeProcess process_;
  const std::shared_ptr<Log> log_;
  const bool has_thread_;
  Mutex mutex_;
  std::condition_variable changed_;  ///< when what follows does
  /// Which the thread is to carry out; the first one stays here until it has ended.
  std::deque<Flight> flights_ GPM_GUARDED_BY(mutex_);
  std::uint64_t beginning_ GPM_GUARDED_BY(mutex_) = 0;  ///< batches that are being prepared
  std::uint64_t ended_ GPM_GUARDED_BY(mutex_) = 0;      ///< of the thread's
  bool stop_ GPM_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< from the first batch on
};

}  // namespace gpm

#endif  // GPM_SHARD_BATCH_QUEUE_H_
