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

/// Waits until a word is there that was loaded: a branch on it does, and the clock is read behind
/// the branch.
__device__ inline void AwaitForCount(std::uint64_t word) {
  constexpr std::uint32_t kNever = 0x9d3a'6f0b;  // any will do
  if (static_cast<std::uint32_t>(word) == kNever) atomicAdd(&count_pm::of_file.seen_never, 1ull);
}

/// By the threads of a warp that do the same: one alone adds what they all have.
/// @param what tells apart what threads do
template <class Add>
__device__ inline void CountByWarp(unsigned what, const Add& add) {
  const unsigned alike = __match_any_sync(__activemask(), what);
  if (threadIdx.x % 32 == static_cast<unsigned>(__ffs(static_cast<int>(alike))) - 1) {
    add(static_cast<unsigned long long>(__popc(alike)));
  }
}

/// A thread accesses so many bytes, in persistent memory or elsewhere, from here to End. A warp
/// waits there for what it reads, so what it would have had underway besides comes later: times of
/// reads are those of one after the other. Writes are on their way when they end; the next fence
/// waits for them.
class CountedAccess {
 public:
  __device__ CountedAccess(PmPlace place, PmAccess access, const void* address, std::size_t bytes)
      : at_(reinterpret_cast<std::uintptr_t>(address)),
        bytes_(bytes),
        place_(place),
        access_(access) {
    begin_ = clock64();
  }

  /// It is over.
  __device__ void End() const {
    const auto cycles = static_cast<unsigned long long>(clock64() - begin_);
    count_pm::Counters& counters = count_pm::of_file;
    if (at_ < counters.begin || at_ >= counters.end) return;
    const bool logs = at_ >= counters.log_begin && at_ < counters.log_end;
    const auto p = static_cast<unsigned>(logs ? PmPlace::kLog : place_);
    const auto a = static_cast<unsigned>(access_);
    CountByWarp(4 * p + a, [&](unsigned long long threads) {
      atomicAdd(&counters.counts.count[p][a], threads);
      atomicAdd(&counters.counts.bytes[p][a], threads * bytes_);
      atomicAdd(&counters.counts.cycles[p][a], cycles);
    });
  }
  /// It is over as soon as what it read is there.
  __device__ void End(std::uint64_t word) const {
    AwaitForCount(word);
    End();
  }

 private:
  std::uintptr_t at_;
  std::size_t bytes_;
  PmPlace place_;
  PmAccess access_;
  long long begin_;
};
__device__ inline CountedAccess CountPm(PmPlace place, PmAccess access, const void* address,
                                        std::size_t bytes) {
  return {place, access, address, bytes};
}

/// The same of a fence.
class CountedFence {
 public:
  __device__ CountedFence() { begin_ = clock64(); }
  __device__ void End() const {
    const auto cycles = static_cast<unsigned long long>(clock64() - begin_);
    PmCounts& counts = count_pm::of_file.counts;
    CountByWarp(0, [&](unsigned long long threads) {
      atomicAdd(&counts.fences, threads);
      atomicAdd(&counts.fence_cycles, cycles);
    });
  }

 private:
  long long begin_;
};
__device__ inline CountedFence CountPmFence() { return {}; }

#else

__device__ inline void AwaitForCount(std::uint64_t) {}
struct CountedAccess {
  __device__ void End() const {}
  __device__ void End(std::uint64_t) const {}
};
__device__ inline CountedAccess CountPm(PmPlace, PmAccess, const void*, std::size_t) { return {}; }
__device__ inline CountedAccess CountPmFence() { return {}; }

#endif

}  // namespace gpm

#endif  // GPM_PM_COUNT_PM_CUH_
