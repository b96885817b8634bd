#ifndef GPM_BENCH_STREAMS_H_
#define GPM_BENCH_STREAMS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "gpmstore/options.h"
#include "gpmstore/store.h"
#ifdef GPM_HAVE_CUDA
#include "engine/cuda/memory.h"
#endif

namespace gpm::bench {

/// Streams of the current device, for executor cuda; for executor cpu there are none.
class Streams {
 public:
  Streams([[maybe_unused]] std::size_t count, [[maybe_unused]] ExecutorKind executor) {
#ifdef GPM_HAVE_CUDA
    if (executor != ExecutorKind::kCuda) return;
    for (std::size_t i = 0; i < count; ++i) streams_.push_back(std::make_unique<CudaStream>());
#endif
  }
  Stream Of([[maybe_unused]] std::size_t number) const {
#ifdef GPM_HAVE_CUDA
    if (!streams_.empty()) return *streams_[number];
#endif
    return nullptr;
  }

#ifdef GPM_HAVE_CUDA
 private:
  std::vector<std::unique_ptr<CudaStream>> streams_;
#endif
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_STREAMS_H_
