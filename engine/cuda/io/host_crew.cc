#include "engine/cuda/io/host_crew.h"

#include <algorithm>
#include <exception>

#include "pm/gpu_host.h"
#include "pm/relaxed_capture.h"

namespace gpm {
namespace {

/// More bring little: to have 100,000 rows of 128 bytes in GPU memory takes 2.5 ms by the GPU
/// alone, with 4, 8 and 15 threads beside it 0.9, 0.8 and 0.6 (docs/TRIED.md, "Large pools").
constexpr unsigned kMostThreads = 8;

}  // namespace

HostCrew::Tools::Tools()
    : threads(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)),
      await_word(DriverFunction<AwaitWord>("cuStreamWaitValue32")) {
  Await(0, 0);  // or there is no crew
}

void HostCrew::Tools::Await(std::uint32_t part, std::uint32_t batch) const {
  const auto word = reinterpret_cast<CUdeviceptr>(told->data() + part);
  if (await_word == nullptr ||
      await_word(telling, word, batch, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
    throw Error(ErrorCode::kGpu, "cuStreamWaitValue32");
  }
}

void HostCrew::BeginMaking(int device, std::function<void()> make) {
  const auto make_all = [this, device, make = std::move(make)] {
    try {
      UseGpu(device);
      tools_.emplace();
      make();
      ready_ = true;
    } catch (const std::exception&) {
      // The GPU does everything.
    }
  };
  try {
    maker_ = std::jthread(make_all);
  } catch (const std::exception&) {  // no thread
    // Likewise.
  }
}

void HostCrew::EndMaking() {
  if (maker_.joinable()) maker_.join();
}

void HostCrew::AwaitAll() noexcept {
  cudaStreamSynchronize(tools_->stream);
  cudaStreamSynchronize(tools_->telling);
}

void HostCrew::GiveBack() noexcept {
  const RelaxedCapture relaxed;
  AwaitAll();
  has_turn_ = false;
}

void HostCrew::BeginParts(std::uint32_t parts) {
  ++batch_;
  part_count_ = parts;
  const auto work = [](void* crew) { static_cast<HostCrew*>(crew)->Do(); };
  CheckCuda(cudaLaunchHostFunc(stream(), work, this), "cudaLaunchHostFunc");
  for (std::uint32_t k = 0; k < parts; ++k) {
    tools_->Await(k, batch_);
    CheckCuda(cudaEventRecord(Done(k), tools_->telling), "cudaEventRecord");
  }
}

void HostCrew::Run(const std::function<std::uint64_t(std::uint32_t)>& pieces_of,
                   const std::function<void(std::uint32_t, std::uint64_t)>& work) {
  std::array<std::uint64_t, kMostParts + 1> first{};
  std::array<std::atomic<std::uint64_t>, kMostParts> left;
  const auto tell = [&](std::uint32_t part) {
    __atomic_store_n(tools_->told->data() + part, batch_, __ATOMIC_RELEASE);
  };
  for (std::uint32_t part = 0; part < part_count_; ++part) {
    left[part] = pieces_of(part);
    first[part + 1] = first[part] + left[part];
    if (left[part] == 0) tell(part);
  }
  const auto run = [&](std::size_t piece) {
    const auto* const behind = std::upper_bound(first.data(), first.data() + part_count_, piece);
    const auto part = static_cast<std::uint32_t>(behind - first.data() - 1);
    work(part, piece - first[part]);
    if (left[part].fetch_sub(1) == 1) tell(part);
  };
  tools_->threads.Run(first[part_count_], std::cref(run));
}

}  // namespace gpm
