#include "bench/streams_adapter.h"

#include <algorithm>
#include <atomic>

namespace gpm::bench {

StreamsAdapter::StreamsAdapter(unsigned threads, std::uint64_t batch, const std::string& path,
                               const CreateOptions& create, const OpenOptions& open)
    : StoreAdapter(path, create, open),
      threads_(threads),
      batch_(batch),
      streams_(threads_.threads(), Stats().executor) {}

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
      store_.ApplyAsync(part, streams_.Of(thread)).Wait();
    }
  });
}

}  // namespace gpm::bench
