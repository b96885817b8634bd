#include "cli/crash/gpu.h"
#include "gpmstore/error.h"

namespace gpm::cli {
namespace {

[[noreturn]] void ThrowUnsupported() {
  throw Error(ErrorCode::kUnsupported, "crash-test --executor cuda: this build has no CUDA");
}

}  // namespace

void StartGpu() { ThrowUnsupported(); }
Stream MakeGpuStream() { ThrowUnsupported(); }
std::unique_ptr<GpuBatch> MakeGpuBatch(std::size_t, std::uint32_t, std::uint32_t) {
  ThrowUnsupported();
}

}  // namespace gpm::cli
