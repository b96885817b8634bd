#include "gpmstore/error.h"
#include "shard/splitter.h"

namespace gpm {

std::unique_ptr<Splitter> MakeGpuSplitter(int, std::uint32_t) {
  throw Error(ErrorCode::kUnsupported, "this build has no CUDA; use arrays in host memory");
}

}  // namespace gpm
