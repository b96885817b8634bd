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

/// A thread accesses so many bytes, in persistent memory or elsewhere.
__device__ inline void CountPm(PmPlace place, PmAccess access, const void* address,
                               std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  count_pm::Counters& counters = count_pm::of_file;
  if (at < counters.begin || at >= counters.end) return;
  if (at >= counters.log_begin && at < counters.log_end) place = PmPlace::kLog;
  const auto p = static_cast<unsigned>(place);
  const auto a = static_cast<unsigned>(access);
  atomicAdd(&counters.counts.count[p][a], 1ull);
  atomicAdd(&counters.counts.bytes[p][a], static_cast<unsigned long long>(bytes));
}
__device__ inline void CountPmFence() { atomicAdd(&count_pm::of_file.counts.fences, 1ull); }

#else

__device__ inline void CountPm(PmPlace, PmAccess, const void*, std::size_t) {}
__device__ inline void CountPmFence() {}

#endif

}  // namespace gpm

#endif  // GPM_PM_COUNT_PM_CUH_
