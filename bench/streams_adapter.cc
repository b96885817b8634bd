#include "bench/streams_adapter.h"

#include <algorithm>
#include <atomic>
#include <vector>

#ifdef GPM_HAVE_CUDA
#include "engine/cuda/memory.h"
#endif

namespace gpm::bench {

/// One for each thread; on executor cpu there are none.
class StreamsAdapter::Streams {
 public:
  Streams(unsigned threads, ExecutorKind executor) {
    if (executor != ExecutorKind::kCuda) return;
#ifdef GPM_HAVE_CUDA
    for (unsigned i = 0; i < threads; ++i) streams_.push_back(std::make_unique<CudaStream>());
#else
    static_cast<void>(threads);  // a store with this executor can't be open
#endif
  }
  Stream Of([[maybe_unused]] std::size_t thread) const {
#ifdef GPM_HAVE_CUDA
    if (!streams_.empty()) return *streams_[thread];
#endif
    return nullptr;
  }

#ifdef GPM_HAVE_CUDA
 private:
  std::vector<std::unique_ptr<CudaStream>> streams_;
#endif
};

StreamsAdapter::StreamsAdapter(unsigned threads, std::uint64_t batch, const std::string& path,
                               const CreateOptions& create, const OpenOptions& open)
    : StoreAdapter(path, create, open),
      threads_(threads),
      batch_(batch),
      streams_(std::make_unique<Streams>(threads_.threads(), Stats().executor)) {}

StreamsAdapter::~StreamsAdapter() = default;

Capabilities StreamsAdapter::CapabilitiesOf(ycsb::Memory memory) {
  Capabilities can = StoreAdapter::CapabilitiesOf(memory);
  can.sequential = false;
  return can;
}

void StreamsAdapter::Apply(const Batch& batch) {
  const std::uint64_t n = batch.results.size();
  if (n == 0) return;
  const std::uint64_t key_bytes = batch.keys.size() / n;
  const std::uint64_t value_bytes = std::max(batch.values.size(), batch.found.size()) / n;
  std::atomic<std::uint64_t> next{0};
  threads_.Run(threads_.threads(), [&](std::size_t thread) {
    for (;;) {
      const std::uint64_t first = next.fetch_add(batch_);
      if (first >= n) return;
      const Batch part = PartOf(batch, first, std::min(batch_, n - first), key_bytes, value_bytes);
      store_.ApplyAsync(part, streams_->Of(thread)).Wait();
    }
  });
}

}  // namespace gpm::bench
