#ifndef GPM_PM_COUNT_PM_CUH_
#define GPM_PM_COUNT_PM_CUH_

#include "pm/pm_counts.h"

#ifdef GPM_COUNT_PM
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#endif

namespace gpm {

#ifdef GPM_COUNT_PM

namespace count_pm {
namespace {

struct Counters {
  PmCounts counts;
  std::uintptr_t begin, end, log_begin, log_end;
  unsigned long long seen_never;
};
__device__ Counters of_file;

void Require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "counting PM accesses: %s\n", cudaGetErrorString(status));
  std::abort();
}

[[maybe_unused]] const bool registered = [] {
  AllPmCounters().push_back({.start =
                                 [](const CountedMemory& memory) {
                                   Counters zero{};
                                   zero.begin = reinterpret_cast<std::uintptr_t>(memory.all.data());
                                   zero.end = zero.begin + memory.all.size();
                                   zero.log_begin =
                                       reinterpret_cast<std::uintptr_t>(memory.log.data());
                                   zero.log_end = zero.log_begin + memory.log.size();
                                   Require(cudaDeviceSynchronize());
                                   Require(cudaMemcpyToSymbol(of_file, &zero, sizeof zero));
                                 },
                             .read =
                                 [] {
                                   Counters now{};
                                   Require(cudaDeviceSynchronize());
                                   Require(cudaMemcpyFromSymbol(&now, of_file, sizeof now));
                                   return now.counts;
                                 }});
  return true;
}();

}  // namespace
}  // namespace count_pm

/// From an access's beginning to its end. A warp waits for it meanwhile, so what it would have had
/// underway besides comes later: the times of accesses are those of one after the other.
class CountedAccess {
 public:
  /// @param cycles what it took is added there; null: it is not counted
  __device__ explicit CountedAccess(unsigned long long* cycles) : cycles_(cycles) {
    begin_ = clock64();
  }

  /// It is over.
  __device__ void End() const {
    const long long end = clock64();
    const unsigned active = __activemask();
    if (cycles_ == nullptr || threadIdx.x % 32 != static_cast<unsigned>(__ffs(active)) - 1) return;
    atomicAdd(cycles_, static_cast<unsigned long long>(end - begin_));
  }
  /// It is over as soon as what it read is there.
  __device__ void End(std::uint64_t word) const {
    // A branch on the word waits for it, and the clock is read behind the branch.
    if (word == kNever) atomicAdd(&count_pm::of_file.seen_never, 1ull);
    End();
  }

 private:
  static constexpr std::uint64_t kNever = 0x9d3a'6f0b'71c2'e845;  ///< any word will do

  unsigned long long* cycles_;
  long long begin_;
};

/// A thread accesses so many bytes, in persistent memory or elsewhere.
__device__ inline CountedAccess CountPm(PmPlace place, PmAccess access, const void* address,
                                        std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  count_pm::Counters& counters = count_pm::of_file;
  if (at < counters.begin || at >= counters.end) return CountedAccess(nullptr);
  if (at >= counters.log_begin && at < counters.log_end) place = PmPlace::kLog;
  const auto p = static_cast<unsigned>(place);
  const auto a = static_cast<unsigned>(access);
  atomicAdd(&counters.counts.count[p][a], 1ull);
  atomicAdd(&counters.counts.bytes[p][a], static_cast<unsigned long long>(bytes));
  return CountedAccess(&counters.counts.cycles[p][a]);
}
__device__ inline CountedAccess CountPmFence() {
  atomicAdd(&count_pm::of_file.counts.fences, 1ull);
  return CountedAccess(&count_pm::of_file.counts.fence_cycles);
}

#else

struct CountedAccess {
  __device__ void End() const {}
  __device__ void End(std::uint64_t) const {}
};
__device__ inline CountedAccess CountPm(PmPlace, PmAccess, const void*, std::size_t) { return {}; }
__device__ inline CountedAccess CountPmFence() { return {}; }

#endif

}  // namespace gpm

#endif  // GPM_PM_COUNT_PM_CUH_
