#ifndef GPM_SHARD_BATCH_QUEUE_H_
#define GPM_SHARD_BATCH_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "engine/home_process.h"
#include "engine/log.h"
#include "gpmstore/store.h"
#include "pm/mutex.h"

namespace gpm {

/// Batches in flight over several shards, or ranks. They are numbered, and threads of the queue
/// carry them out, while who begins the next one prepares it.
///
/// Thread safety: any thread, but for destruction. A ticket may outlive the queue.
///
/// Invariants:
///  1. Batches have their numbers in the order in which Begin returned their tickets. Thread i of n
///     carries out, one after the other, those whose number mod n is i: so with one thread an
///     operation sees all of those before it on its key; with several it is up to the batches.
///  2. From the first batch that has not ended to the last that has begun there is at most one more
///     than there are threads, which bounds the memory that they take.
///  3. When a batch has ended, nothing reads or writes the caller's arrays any more.
class BatchQueue {
 public:
  /// Carries out a batch, which it holds.
  using CarryOut = std::function<void(std::uint64_t number)>;
  /// @param log who waits for a batch tells it what was added
  /// @param threads 0: batches are carried out before Begin returns
  BatchQueue(const HomeProcess& process, std::shared_ptr<Log> log, unsigned threads = 1);
  ~BatchQueue();  ///< carries out what has begun. REQUIRES: not in a child of the process
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  /// Prepares a batch, and leaves it to its thread; waits before where as many as may be are in
  /// flight. Where the threads can't be had, the batch is carried out before this returns.
  /// @param prepare what it returns is destroyed when it was carried out
  /// @throws what `prepare` throws, and std::bad_alloc, with nothing applied; what carrying out
  ///         throws, the ticket does
  Ticket Begin(const std::function<CarryOut()>& prepare);

  /// Waits until the batches that began before have ended.
  void Await();
  /// The number of a batch that the caller carries out. REQUIRES: none is in flight.
  std::uint64_t Count();

 private:
  struct Flight {
    std::uint64_t number;
    bool taken;  ///< by its thread
    CarryOut carry_out;
    std::promise<void> ended;
  };
  class FlightTicket;
  class Place;  ///< of a batch that is being prepared

  bool StartsThreads() GPM_REQUIRES(mutex_);  ///< that are not there yet; whether all are
  void Work(unsigned thread);
  static void Finish(Flight& flight) noexcept;

  const HomeProcess process_;
  const std::shared_ptr<Log> log_;
  const unsigned most_threads_;
  Mutex mutex_;
  std::condition_variable changed_;  ///< when what follows does
  /// Which have begun and not ended, by number.
  std::list<Flight> flights_ GPM_GUARDED_BY(mutex_);
  std::uint64_t beginning_ GPM_GUARDED_BY(mutex_) = 0;  ///< batches that are being prepared
  std::uint64_t next_ GPM_GUARDED_BY(mutex_) = 0;       ///< number
  bool stop_ GPM_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  ///< from the first batch on
};

}  // namespace gpm

#endif  // GPM_SHARD_BATCH_QUEUE_H_
