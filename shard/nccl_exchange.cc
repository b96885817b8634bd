#include "gpmstore/nccl_exchange.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cuda/launch.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "shard/deadline.h"
#include "shard/together.h"

namespace gpm {
namespace {

/// How long a rank that leaves waits for what is still under way on others.
constexpr std::chrono::milliseconds kLeaveTime{2000};

class NcclExchange final : public Exchange {
 public:
  NcclExchange(std::unique_ptr<Exchange> host, int device, std::chrono::milliseconds timeout)
      : host_(std::move(host)), device_(device), timeout_(timeout) {
    ncclUniqueId id{};
    Together(*host_, [&] {
      if (device < 0 || device >= GpuCount()) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("NCCL: there is no CUDA device {}", device));
      }
      if (host_->rank() == 0) Check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    std::vector<ncclUniqueId> ids(host_->ranks());
    host_->AllGather(std::as_bytes(std::span(&id, 1)), std::as_writable_bytes(std::span(ids)));
    const CurrentDevice current(device_, false);
    try {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;  // so that it can be given up
      Check(ncclCommInitRankConfig(&communicator_, static_cast<int>(ranks()), ids.front(),
                                   static_cast<int>(rank()), &config),
            "ncclCommInitRankConfig");
      Await("joining the ranks", timeout_, [] { return true; });
    } catch (...) {
      Abort();
      throw;
    }
  }

  /// Where all is well the others may still read what this rank has sent them: NCCL waits for that.
  ~NcclExchange() override {
    if (communicator_ == nullptr) return;
    try {
      const CurrentDevice current(device_, false);
      Check(ncclCommFinalize(communicator_), "ncclCommFinalize");
      Await("leaving", std::min(kLeaveTime, timeout_), [] { return true; });
      ncclCommDestroy(std::exchange(communicator_, nullptr));
    } catch (const Error&) {
      Abort();
    }
  }

  std::uint32_t rank() const override { return host_->rank(); }
  std::uint32_t ranks() const override { return host_->ranks(); }
  bool AnyThread() const override { return host_->AnyThread(); }

  void AllToAll(Send send, Receive receive) override {
    RequireUse();
    host_->AllToAll(send, receive);
  }

  bool Lends(int memory) const override { return memory < 0 && host_->Lends(memory); }
  void Lend(Receive mine, CUstream_st* stream, const Use& use) override {
    RequireUse();
    host_->Lend(mine, stream, use);
  }

  void Leave(const std::string& why) override {
    failure_ = "this rank has left: " + why;
    Abort();
    host_->Leave(why);
  }

  bool TakesGpuMemory(int device) const override { return device == device_; }

  void AllToAllOnGpu(Send send, Receive receive, CUstream_st* stream) override {
    RequireUse();
    try {
      const CurrentDevice current(device_, false);
      Check(ncclGroupStart(), "ncclGroupStart");
      const ncclResult_t begun = Enqueue(send, receive, stream);
      const ncclResult_t ended = ncclGroupEnd();  // also when it failed
      Check(begun, "ncclSend");
      Check(ended, "ncclGroupEnd");
      Await("exchanging", timeout_, [] { return true; });  // until all is on the stream
      for (std::size_t at = rank(); at < send.size(); at += ranks()) {
        if (send[at].empty()) continue;
        CopyByGpu(receive[at].data(), send[at].data(), send[at].size(), stream);
      }
      Await("exchanging", timeout_, [&] {
        const cudaError_t status = cudaStreamQuery(stream);
        if (status == cudaErrorNotReady) return false;
        CheckCuda(status, "cudaStreamQuery");
        return true;
      });
    } catch (const Error& error) {
      failure_ = error.what();
      Abort();
      throw Error(ErrorCode::kIo, "exchange: " + failure_);
    }
  }

 private:
  void Check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* const last = ncclGetLastError(communicator_);
    throw Error(ErrorCode::kIo, fmt::format("NCCL: {}: {}{}{}", call, ncclGetErrorString(result),
                                            last != nullptr && *last != '\0' ? ", " : "",
                                            last != nullptr ? last : ""));
  }
  void RequireUse() const {
    if (!failure_.empty()) throw Error(ErrorCode::kIo, "exchange: " + failure_);
  }

  /// @return the first failure
  ncclResult_t Enqueue(Send send, Receive receive, cudaStream_t stream) {
    const auto failed = [](ncclResult_t result) {
      return result != ncclSuccess && result != ncclInProgress;
    };
    for (std::size_t at = 0; at < send.size(); ++at) {
      const std::size_t peer = at % ranks();
      if (peer == rank()) continue;
      const int to = static_cast<int>(peer);
      ncclResult_t result = ncclSuccess;
      if (!send[at].empty()) {
        result = ncclSend(send[at].data(), send[at].size(), ncclUint8, to, communicator_, stream);
      }
      if (failed(result)) return result;
      if (!receive[at].empty()) {
        result =
            ncclRecv(receive[at].data(), receive[at].size(), ncclUint8, to, communicator_, stream);
      }
      if (failed(result)) return result;
    }
    return ncclSuccess;
  }

  /// Waits until NCCL has done what it was asked for, and `done`. @throws Error(kIo)
  void Await(const char* what, std::chrono::milliseconds time, const std::function<bool()>& done) {
    const auto deadline = DeadlineIn(time);
    for (std::uint64_t looks = 1;; ++looks) {
      ncclResult_t state = ncclInternalError;
      Check(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
      Check(state, what);
      if (state == ncclSuccess && done()) return;
      if (looks < 1000) continue;
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Error(ErrorCode::kIo,
                  fmt::format("NCCL: {}: some rank has not come for {} ms", what, time.count()));
    }
  }

  void Abort() noexcept {
    if (communicator_ == nullptr) return;
    ncclCommAbort(std::exchange(communicator_, nullptr));
  }

  const std::unique_ptr<Exchange> host_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  ncclComm_t communicator_ = nullptr;
  std::string failure_;  ///< why it is of no use any more, or empty
};

}  // namespace

std::unique_ptr<Exchange> MakeNcclExchange(std::unique_ptr<Exchange> host, int device,
                                           std::chrono::milliseconds timeout) {
  if (host == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "NCCL: it needs an exchange of its ranks to begin");
  }
  return std::make_unique<NcclExchange>(std::move(host), device, timeout);
}

}  // namespace gpm
