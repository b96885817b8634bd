#ifndef GPM_ENGINE_CUDA_IO_HOST_CREW_H_
#define GPM_ENGINE_CUDA_IO_HOST_CREW_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "engine/cuda/driver.h"
#include "engine/cuda/memory.h"
#include "pm/thread_pool.h"

namespace gpm {

/// Threads of the host that do some of a batch's work with persistent memory, beside the GPU. It is
/// cut in parts, which are done in order, and for each of which kernels can wait. One batch at a
/// time has the turn; one that gets none has the GPU do all, as where the driver has no stream wait
/// for a word.
///
/// Thread safety: any thread, and whoever has the turn for what it is for.
class HostCrew {
 public:
  static constexpr std::uint32_t kMostParts = 16;

  HostCrew(const HostCrew&) = delete;
  HostCrew& operator=(const HostCrew&) = delete;

 protected:
  HostCrew() = default;
  /// REQUIRES: EndMaking was called.
  virtual ~HostCrew() = default;

  /// Makes what is needed, in the background: of this class, and what `make` makes. Nobody gets a
  /// turn before it is there; if it can't be made, nobody ever does.
  void BeginMaking(int device, std::function<void()> make);
  void EndMaking();
  bool TryTake() { return ready_ && !has_turn_.exchange(true); }
  void GiveBack() noexcept;

  // Of the batch that has the turn:
  /// A stream of its own; the work is done behind what it has.
  cudaStream_t stream() const { return tools_->stream; }
  /// Has Do called. @throws Error(kGpu)
  void BeginParts(std::uint32_t parts);
  /// Waits for whatever a batch has had done.
  virtual void AwaitAll() noexcept;
  /// Recorded when that part was done.
  cudaEvent_t Done(std::uint32_t part) const { return tools_->done[part]; }

  // In Do:
  /// Calls work(part, piece) for all pieces of all parts, in order, on the threads.
  /// @param pieces_of pieces_of(part) is the number of its pieces
  void Run(const std::function<std::uint64_t(std::uint32_t)>& pieces_of,
           const std::function<void(std::uint32_t, std::uint64_t)>& work);

 private:
  struct Tools {
    using AwaitWord = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);

    Tools();
    /// Has what `telling` gets next wait until a part of a batch was done. (With a host function
    /// for each part, the threads would wait for the driver in between, and fall asleep.)
    void Await(std::uint32_t part, std::uint32_t batch) const;

    ThreadPool threads;
    AwaitWord* await_word;
    CudaStream stream, telling;
    std::array<CudaEvent, kMostParts> done;
    PinnedBox<std::array<std::uint32_t, kMostParts>> told;  ///< of each part, the last batch
  };
  /// Does all parts, by Run. By a thread of the driver's, which can't call it.
  virtual void Do() noexcept = 0;
  std::optional<Tools> tools_;
  std::uint32_t batch_ = 0;  ///< that has, or had, the turn
  std::uint32_t part_count_ = 0;
  std::atomic<bool> has_turn_{false};
  std::atomic<bool> ready_{false};
  std::jthread maker_;

  template <class Crew>
  friend class HostTurn;
};

/// The right to a crew, of one batch; it is given back when this goes, when what was enqueued has
/// ended.
template <class Crew>
class HostTurn {
 public:
  HostTurn() = default;
  /// None is had while another batch has it, or it is not ready.
  explicit HostTurn(Crew* crew) : crew_(crew != nullptr && crew->TryTake() ? crew : nullptr) {}
  HostTurn(HostTurn&& other) noexcept : crew_(std::exchange(other.crew_, nullptr)) {}
  HostTurn& operator=(HostTurn&& other) noexcept {
    std::swap(crew_, other.crew_);
    return *this;
  }
  ~HostTurn() {
    if (crew_ != nullptr) crew_->GiveBack();
  }
  explicit operator bool() const { return crew_ != nullptr; }
  Crew* operator->() const { return crew_; }

 private:
  Crew* crew_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_CREW_H_
