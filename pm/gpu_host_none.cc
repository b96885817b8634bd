#include "gpmstore/error.h"
#include "pm/gpu_host.h"

namespace gpm {

bool BuiltWithCuda() { return false; }

int GpuCount() { return 0; }

std::string GpuName(int) { return "none"; }

std::string GpuBusId(int) { return {}; }

void UseGpu(int) {}

void RegisterHostMemory(void*, std::size_t) {
  throw Error(ErrorCode::kUnsupported,
              "this build has no CUDA, so no memory can be mapped into a GPU; use executor cpu, or "
              "build where a CUDA toolkit is found");
}

bool IsGpuMemory(const void*) noexcept { return false; }
int GpuOf(const void*) noexcept { return -1; }
void ConnectGpus(int, int) noexcept {}
bool ReachesAllGpus(int) noexcept { return false; }

void CopyByGpu(void*, const void*, std::size_t, CUstream_st*) {
  throw Error(ErrorCode::kUnsupported, "this build has no CUDA, so no GPU copies");
}
void AwaitGpu(CUstream_st*) {}

void UnregisterHostMemory(void*) noexcept {}

}  // namespace gpm
