#include "shard/batch_queue.h"

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

BatchQueue::BatchQueue(const HomeProcess& process, std::shared_ptr<Log> log, bool has_thread)
    : process_(process), log_(std::move(log)), has_thread_(has_thread) {}

BatchQueue::~BatchQueue() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

class BatchQueue::Place {
 public:
  explicit Place(BatchQueue& queue) : queue_(queue) {
    MutexLock lock(queue.mutex_);
    queue.changed_.wait(lock.native(), [&]() GPM_REQUIRES(queue.mutex_) {
      return queue.beginning_ + queue.flights_.size() < kMost;
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
  Flight flight{prepare(), {}};
  auto state = std::make_unique<FlightTicket>(process_, log_, flight.ended.get_future());
  MutexLock lock(mutex_);
  if (StartsThread()) {
    flights_.push_back(std::move(flight));
  } else {
    lock.Unlock();
    Finish(flight);
  }
  return Ticket(std::move(state));
}

bool BatchQueue::StartsThread() {
  if (!has_thread_) return false;
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void BatchQueue::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return stop_ || !flights_.empty(); });
    if (flights_.empty()) return;
    Flight& first = flights_.front();
    lock.Unlock();
    Finish(first);
    lock.Lock();
    flights_.pop_front();
    ++ended_;
    changed_.notify_all();
  }
}

void BatchQueue::Finish(Flight& flight) noexcept {
  std::exception_ptr error;
  try {
    flight.carry_out();
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
  const std::uint64_t last = ended_ + flights_.size();
  changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return ended_ >= last; });
}

}  // namespace gpm
