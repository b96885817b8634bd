#include "shard/batch_queue.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/ticket.h"

namespace gpm {

class BatchQueue::FlightTicket final : public Ticket::State {
 public:
  FlightTicket(const HomeProcess& process, std::shared_ptr<Log> log, std::future<void> ended)
      : process_(process), log_(std::move(log)), ended_(std::move(ended)) {}
  void Wait() override {
    process_.Check();
    const Log::TellsAtEnd tells(*log_);
    ended_.get();
  }
  bool Done() override {
    process_.Check();
    return ended_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  const HomeProcess process_;
  const std::shared_ptr<Log> log_;
  const std::shared_future<void> ended_;
};

BatchQueue::BatchQueue(const HomeProcess& process, std::shared_ptr<Log> log, unsigned threads)
    : process_(process), log_(std::move(log)), most_threads_(threads) {
  threads_.reserve(threads);
}

BatchQueue::~BatchQueue() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

class BatchQueue::Place {
 public:
  explicit Place(BatchQueue& queue) : queue_(queue) {
    MutexLock lock(queue.mutex_);
    queue.changed_.wait(lock.native(), [&]() GPM_REQUIRES(queue.mutex_) {
      const std::uint64_t first =
          queue.flights_.empty() ? queue.next_ : queue.flights_.front().number;
      return queue.next_ + queue.beginning_ - first <= queue.most_threads_;
    });
    ++queue.beginning_;
  }
  ~Place() {
    const MutexLock lock(queue_.mutex_);
    --queue_.beginning_;
    queue_.changed_.notify_all();
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  BatchQueue& queue_;
};

Ticket BatchQueue::Begin(const std::function<CarryOut()>& prepare) {
  const Place place(*this);
  std::list<Flight> flight;
  flight.push_back({0, false, prepare(), {}});
  auto state = std::make_unique<FlightTicket>(process_, log_, flight.front().ended.get_future());
  MutexLock lock(mutex_);
  const bool has_threads = StartsThreads();
  flight.front().number = next_++;
  if (has_threads) {
    flights_.splice(flights_.end(), flight);
  } else {
    lock.Unlock();
    Finish(flight.front());
  }
  return Ticket(std::move(state));
}

bool BatchQueue::StartsThreads() {
  try {
    while (threads_.size() < most_threads_) {
      threads_.emplace_back(
          [this, thread = static_cast<unsigned>(threads_.size())] { Work(thread); });
    }
  } catch (const std::system_error&) {
    return false;
  }
  return most_threads_ > 0;
}

void BatchQueue::Work(unsigned thread) {
  MutexLock lock(mutex_);
  for (;;) {
    const auto next = [&]() GPM_REQUIRES(mutex_) {
      return std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) {
        return !flight.taken && flight.number % most_threads_ == thread;
      });
    };
    changed_.wait(lock.native(),
                  [&]() GPM_REQUIRES(mutex_) { return stop_ || next() != flights_.end(); });
    const auto flight = next();
    if (flight == flights_.end()) return;
    flight->taken = true;
    lock.Unlock();
    Finish(*flight);
    lock.Lock();
    flights_.erase(flight);
    changed_.notify_all();
  }
}

void BatchQueue::Finish(Flight& flight) noexcept {
  std::exception_ptr error;
  try {
    flight.carry_out(flight.number);
  } catch (...) {
    error = std::current_exception();
  }
  flight.carry_out = nullptr;  // which waits for what a GPU still does after an error
  if (error) {
    flight.ended.set_exception(error);
  } else {
    flight.ended.set_value();
  }
}

void BatchQueue::Await() {
  MutexLock lock(mutex_);
  changed_.wait(lock.native(), [&, end = next_]() GPM_REQUIRES(mutex_) {
    return flights_.empty() || flights_.front().number >= end;
  });
}

std::uint64_t BatchQueue::Count() {
  const MutexLock lock(mutex_);
  return next_++;
}

}  // namespace gpm
