#include "gpmstore/mpi_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>
#include <type_traits>

#include "gpmstore/error.h"
#include "shard/deadline.h"

namespace gpm {
namespace {

/// Bytes of one message: MPI counts with an int.
constexpr std::size_t kMessageBytes = std::size_t{1} << 30;
/// Parts of so many bytes have left the sender's memory when they are sent, with any MPI.
constexpr std::size_t kEagerBytes = 1024;
/// What a message is: a part, or that those parts which are larger than kEagerBytes were sent.
enum Tag : int { kPart, kSent };

std::string Text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  return MPI_Error_string(code, text, &length) == MPI_SUCCESS
             ? std::string(text, static_cast<std::size_t>(length))
             : fmt::format("error {}", code);
}

class MpiExchange final : public Exchange {
 public:
  MpiExchange(MPI_Comm communicator, std::chrono::milliseconds timeout) : timeout_(timeout) {
    int rank = 0;
    int ranks = 0;
    Check(MPI_Comm_dup(communicator, &communicator_));
    Check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
    Check(MPI_Comm_rank(communicator_, &rank));
    Check(MPI_Comm_size(communicator_, &ranks));
    rank_ = static_cast<std::uint32_t>(rank);
    ranks_ = static_cast<std::uint32_t>(ranks);
  }
  /// A communicator with a rank that is gone can't be freed: all ranks would have to.
  ~MpiExchange() override {
    if (failure_.empty()) MPI_Comm_free(&communicator_);
  }

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return ranks_; }
  bool AnyThread() const override {
    int level = MPI_THREAD_SINGLE;
    return MPI_Query_thread(&level) == MPI_SUCCESS && level >= MPI_THREAD_SERIALIZED;
  }

  void AllToAll(Send send, Receive receive) override {
    if (!failure_.empty()) throw Error(ErrorCode::kIo, "exchange: " + failure_);
    if (send[rank_].size() != receive[rank_].size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("exchange: rank {} sends itself {} bytes and expects {}", rank_,
                              send[rank_].size(), receive[rank_].size()));
    }
    try {
      std::copy(send[rank_].begin(), send[rank_].end(), receive[rank_].begin());
      ForgetMessages();
      for (std::uint32_t i = 1; i < ranks_; ++i) {  // each begins with another one
        Begin((rank_ + ranks_ - i) % ranks_, receive, MPI_Irecv);
      }
      for (std::uint32_t i = 1; i < ranks_; ++i) Begin((rank_ + i) % ranks_, send, MPI_Isend);
      Await();
      Confirm(send, receive);
    } catch (const Error& error) {
      failure_ = error.what();
      GiveUp();
      throw Error(ErrorCode::kIo, "exchange: " + failure_);
    }
  }

  /// (The others see that it does not come.)
  void Leave(const std::string& why) override { failure_ = "this rank has left: " + why; }

 private:
  static void Check(int code) {
    if (code != MPI_SUCCESS) throw Error(ErrorCode::kIo, "MPI: " + Text(code));
  }

  template <class Parts, class Call>
  void Begin(std::uint32_t peer, const Parts& parts, Call call) {
    const auto part = parts[peer];
    for (std::size_t at = 0; at < part.size(); at += kMessageBytes) {
      BeginMessage(peer, part.subspan(at, std::min(kMessageBytes, part.size() - at)), kPart, call);
    }
  }
  template <class Bytes, class Call>
  void BeginMessage(std::uint32_t peer, Bytes bytes, Tag tag, Call call) {
    requests_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(peer);
    constexpr bool kReceives = !std::is_const_v<typename Bytes::element_type>;
    expected_.push_back(kReceives ? static_cast<int>(bytes.size()) : -1);
    Check(call(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, static_cast<int>(peer), tag,
               communicator_, &requests_.back()));
  }

  /// Requires those who send a large part to say that they have sent it. One who gave up before
  /// does not: MPI goes on with what it has begun to send, whatever is in that memory by then.
  void Confirm(Send send, Receive receive) {
    ForgetMessages();
    for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const std::span<std::byte> nothing;
      if (receive[peer].size() > kEagerBytes) BeginMessage(peer, nothing, kSent, MPI_Irecv);
      if (send[peer].size() > kEagerBytes) {
        BeginMessage(peer, std::span<const std::byte>(), kSent, MPI_Isend);
      }
    }
    Await();
  }

  void ForgetMessages() {
    requests_.clear();
    peers_.clear();
    expected_.clear();
  }

  void Await() {
    statuses_.resize(requests_.size());
    const auto deadline = DeadlineIn(timeout_);
    for (int tries = 0;; ++tries) {
      int done = 0;
      Check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                        statuses_.data()));
      if (done != 0) return RequireWhole();
      if (tries < 1000) continue;
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Error(ErrorCode::kIo,
                  fmt::format("rank {} has not come for {} ms", Missing(), timeout_.count()));
    }
  }
  /// MPI takes a message that is shorter than its place for one that fits.
  void RequireWhole() const {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      int bytes = 0;
      if (expected_[i] < 0) continue;
      Check(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
      if (bytes == expected_[i]) continue;
      throw Error(ErrorCode::kIo, fmt::format("rank {} sends {} bytes to rank {}, which expects {}",
                                              peers_[i], bytes, rank_, expected_[i]));
    }
  }
  /// The peer of the first request that is not done.
  std::uint32_t Missing() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) {
        return peers_[i];
      }
    }
    return rank_;
  }
  void GiveUp() {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  const std::chrono::milliseconds timeout_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 0;
  std::string failure_;  ///< why it is of no use any more, or empty
  std::vector<MPI_Request> requests_;
  std::vector<std::uint32_t> peers_;  ///< of each request
  std::vector<int> expected_;         ///< bytes of each; -1: it sends
  std::vector<MPI_Status> statuses_;  ///< of each, when all are done
};

}  // namespace

std::unique_ptr<Exchange> MakeMpiExchange(MPI_Comm communicator,
                                          std::chrono::milliseconds timeout) {
  return std::make_unique<MpiExchange>(communicator, timeout);
}

}  // namespace gpm
