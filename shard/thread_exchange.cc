#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "pm/gpu_host.h"
#include "pm/mutex.h"
#include "pm/pause_cpu.h"
#include "shard/deadline.h"

namespace gpm {
namespace {

/// Where the threads meet. Each says what it sends, and when all have, takes what is for it; the
/// next meeting begins when all have taken it.
class Hub {
 public:
  Hub(std::uint32_t ranks, std::chrono::milliseconds timeout) : timeout_(timeout), offers_(ranks) {}

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(offers_.size()); }

  /// @param offers of a rank, for each
  /// @param take what the others offer; called when all have come
  /// @throws what `take` throws; to the others Error(kIo), as all have a part in what is taken
  template <class Take>
  void Meet(std::uint32_t rank, Exchange::Send offers, const Take& take) {
    MutexLock lock(mutex_);
    const auto deadline = DeadlineIn(timeout_);
    const std::uint64_t meeting = meeting_;
    if (!failure_.empty()) throw Error(ErrorCode::kIo, "exchange: " + failure_);
    offers_[rank] = offers;
    if (++came_ == ranks()) {
      came_ = 0;
      ++meeting_;
      changed_.notify_all();
    }
    SpinWhile(lock, [&] { return meeting_ == meeting && !failed_; });
    while (meeting_ == meeting && failure_.empty()) {
      if (changed_.wait_until(lock.native(), deadline) == std::cv_status::timeout &&
          meeting_ == meeting) {
        const std::size_t missing = Missing();
        Fail([&] {
          return fmt::format("rank {} has not come for {} ms", missing, timeout_.count());
        });
      }
    }
    if (meeting_ == meeting) throw Error(ErrorCode::kIo, "exchange: " + failure_);
    // All have come, and take what is for them, whatever fails: until then nobody changes what it
    // offers.
    lock.Unlock();  // all ranks at once
    std::exception_ptr failure;
    const char* why = "it threw what is no exception";
    try {
      take();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      why = error.what();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.Lock();
    if (failure) {
      take_failed_ = true;
      Fail([&] { return fmt::format("rank {}: {}", rank, why); });
    }
    const std::uint64_t taken_by_all = taken_meetings_;
    if (++took_ == ranks()) {
      took_ = 0;
      ++taken_meetings_;
      for (auto& offer : offers_) offer.reset();
      changed_.notify_all();
    }
    SpinWhile(lock, [&] { return taken_meetings_ == taken_by_all; });
    while (taken_meetings_ == taken_by_all) changed_.wait(lock.native());
    if (failure) std::rethrow_exception(failure);
    // What that one was to write to this rank may be missing. (A rank that left since is no matter:
    // this meeting was well.)
    if (take_failed_) throw Error(ErrorCode::kIo, "exchange: " + failure_);
  }

  /// What a rank offers another, of the array with a number; empty if it has none. Within `take`.
  std::span<const std::byte> OfferOf(std::size_t from, std::size_t array, std::size_t to) const {
    const Exchange::Send& offers = *offers_[from];
    const std::size_t part = array * ranks() + to;
    return part < offers.size() ? offers[part] : std::span<const std::byte>();
  }

  /// @param why or empty
  void Leave(std::uint32_t rank, const std::string& why) {
    const MutexLock lock(mutex_);
    Fail([&] { return fmt::format("rank {} has left{}{}", rank, why.empty() ? "" : ": ", why); });
  }

 private:
  /// Whatever fails here, the others get to know of it.
  /// @param why gives the text, for which there may be no memory
  template <class Why>
  void Fail(const Why& why) noexcept GPM_REQUIRES(mutex_) {
    if (failure_.empty()) {
      try {
        failure_ = why();
      } catch (const std::exception&) {
        failure_ = "no memory";  // so short that it takes none
      }
    }
    failed_ = true;
    changed_.notify_all();
  }
  /// Looks for a while without the mutex: the others of a batch on GPUs come within microseconds,
  /// and to be woken up takes longer.
  template <class Waits>
  static void SpinWhile(MutexLock& lock, const Waits& waits) {
    constexpr std::chrono::microseconds kLooks{50};
    lock.Unlock();
    const auto end = std::chrono::steady_clock::now() + kLooks;
    while (waits() && std::chrono::steady_clock::now() < end) PauseCpu();
    lock.Lock();
  }
  /// A rank that the others wait for.
  std::size_t Missing() const GPM_REQUIRES(mutex_) {
    std::size_t rank = 0;
    while (rank < offers_.size() && offers_[rank]) ++rank;
    return rank;
  }

  const std::chrono::milliseconds timeout_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::string failure_ GPM_GUARDED_BY(mutex_);       ///< why it is of no use any more, or empty
  bool take_failed_ GPM_GUARDED_BY(mutex_) = false;  ///< some rank's `take` threw, in some meeting
  /// Of those that have come; not changed while all take.
  std::vector<std::optional<Exchange::Send>> offers_;
  std::uint32_t came_ GPM_GUARDED_BY(mutex_) = 0;  ///< ranks, to this meeting
  std::uint32_t took_ GPM_GUARDED_BY(mutex_) = 0;  ///< ranks that took what was for them
  // Written under the mutex.
  std::atomic<std::uint64_t> meeting_ = 0;
  std::atomic<std::uint64_t> taken_meetings_ = 0;
  std::atomic<bool> failed_ = false;  ///< failure_ is not empty
};

/// The hubs of exchanges that are twins.
class Hubs {
 public:
  Hubs(std::uint32_t ranks, std::chrono::milliseconds timeout) : ranks_(ranks), timeout_(timeout) {}

  /// Made when the first rank asks for it.
  std::shared_ptr<Hub> At(std::size_t number) {
    const MutexLock lock(mutex_);
    while (hubs_.size() <= number) {
      hubs_.push_back(std::make_shared<Hub>(ranks_, timeout_));
      if (left_) hubs_.back()->Leave(left_->rank, left_->why);
    }
    return hubs_[number];
  }
  void Leave(std::uint32_t rank, const std::string& why) {
    const MutexLock lock(mutex_);
    for (const auto& hub : hubs_) hub->Leave(rank, why);
    if (!left_) left_ = {rank, why};
  }

 private:
  struct Left {
    std::uint32_t rank;
    std::string why;
  };
  const std::uint32_t ranks_;
  const std::chrono::milliseconds timeout_;
  Mutex mutex_;
  std::vector<std::shared_ptr<Hub>> hubs_ GPM_GUARDED_BY(mutex_);
  std::optional<Left> left_ GPM_GUARDED_BY(mutex_);
};

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(std::shared_ptr<Hubs> hubs, std::size_t number, std::uint32_t rank)
      : hubs_(std::move(hubs)), number_(number), hub_(hubs_->At(number)), rank_(rank) {}
  ~ThreadExchange() override { hub_->Leave(rank_, ""); }

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return hub_->ranks(); }
  void AllToAll(Send send, Receive receive) override {
    hub_->Meet(rank_, send, [&] {
      Take(receive, [](std::byte* to, const std::byte* from, std::size_t bytes) {
        std::memcpy(to, from, bytes);
      });
    });
  }
  /// (A twin has none of its own: two threads of a rank would have to ask in the same order.)
  std::unique_ptr<Exchange> Twin() override {
    if (number_ > 0) return nullptr;
    return std::make_unique<ThreadExchange>(hubs_, ++twins_, rank_);
  }
  void Leave(const std::string& why) override { hubs_->Leave(rank_, why); }
  bool TakesGpuMemory(int device) const override { return device < GpuCount(); }
  /// Each copies what is for it, from the others' GPUs.
  void AllToAllOnGpu(Send send, Receive receive, CUstream_st* stream) override {
    AwaitGpu(stream);
    hub_->Meet(rank_, send, [&] {
      try {
        Take(receive, [&](std::byte* to, const std::byte* from, std::size_t bytes) {
          Connect(GpuOf(to), GpuOf(from));
          CopyByGpu(to, from, bytes, stream);
        });
      } catch (...) {
        AwaitGpu(stream);  // what is copied from is another rank's again
        throw;
      }
      AwaitGpu(stream);
    });
  }
  bool Lends(int device) const override { return device < 0 || ReachesAllGpus(device); }
  void Lend(Receive mine, CUstream_st* stream, const Use& use) override {
    if (stream != nullptr) AwaitGpu(stream);
    const std::vector<std::span<const std::byte>> offers(mine.begin(), mine.end());
    hub_->Meet(rank_, offers, [&] {
      std::vector<std::span<std::byte>> lent;
      for (std::size_t part = 0; part < mine.size(); ++part) {
        const auto offer = hub_->OfferOf(part % ranks(), part / ranks(), rank_);
        lent.emplace_back(const_cast<std::byte*>(offer.data()), offer.size());  // it was no const
      }
      use(lent);
    });
  }

 private:
  /// Takes what the others send to this rank. @throws Error(kIo) when that is of another size
  template <class Copy>
  void Take(Receive receive, const Copy& copy) const {
    const auto sent = [&](std::size_t part) {
      return hub_->OfferOf(part % ranks(), part / ranks(), rank_);
    };
    for (std::size_t part = 0; part < receive.size(); ++part) {
      if (sent(part).size() == receive[part].size()) continue;
      throw Error(ErrorCode::kIo,
                  fmt::format("exchange: rank {} sends {} bytes to rank {}, which expects {}",
                              part % ranks(), sent(part).size(), rank_, receive[part].size()));
    }
    for (std::size_t part = 0; part < receive.size(); ++part) {
      const std::span<const std::byte> rows = sent(part);
      if (!rows.empty()) copy(receive[part].data(), rows.data(), rows.size());
    }
  }
  void Connect(int device, int other) {
    if (device != other && connected_.insert(other).second) ConnectGpus(device, other);
  }

  const std::shared_ptr<Hubs> hubs_;
  const std::size_t number_;  ///< of its hub; 0: the one that was made first
  const std::shared_ptr<Hub> hub_;
  const std::uint32_t rank_;
  std::size_t twins_ = 0;    ///< that this rank has asked for
  std::set<int> connected_;  ///< devices of the others
};

}  // namespace

void Exchange::Lend(Receive, CUstream_st*, const Use&) {
  throw Error(ErrorCode::kUnsupported, "exchange: its ranks do not reach each other's memory");
}

void Exchange::AllToAllOnGpu(Send, Receive, CUstream_st*) {
  throw Error(ErrorCode::kUnsupported, "exchange: it takes no arrays in GPU memory");
}

void Exchange::AllGather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const std::vector<std::span<const std::byte>> send(ranks(), mine);
  std::vector<std::span<std::byte>> receive(ranks());
  for (std::uint32_t i = 0; i < ranks(); ++i) {
    receive[i] = all.subspan(i * mine.size(), mine.size());
  }
  AllToAll(send, receive);
}

std::vector<std::unique_ptr<Exchange>> MakeThreadExchanges(std::uint32_t ranks,
                                                           std::chrono::milliseconds timeout) {
  if (ranks == 0) throw Error(ErrorCode::kInvalidArgument, "exchange: it needs at least one rank");
  const auto hubs = std::make_shared<Hubs>(ranks, timeout);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    exchanges.push_back(std::make_unique<ThreadExchange>(hubs, 0, rank));
  }
  return exchanges;
}

}  // namespace gpm
