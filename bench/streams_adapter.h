#ifndef GPM_BENCH_STREAMS_ADAPTER_H_
#define GPM_BENCH_STREAMS_ADAPTER_H_

#include <string>

#include "bench/kv_adapter.h"
#include "bench/streams.h"
#include "pm/thread_pool.h"

namespace gpm::bench {

/// Our store, used by several threads at once: what it is asked for is divided into batches, and
/// each thread, with a stream of its own on executor cuda, starts one, waits for it, and takes the
/// next.
class StreamsAdapter : public StoreAdapter {
 public:
  /// @param batch operations of a thread's batch @param path, create, open as StoreAdapter's
  StreamsAdapter(unsigned threads, std::uint64_t batch, const std::string& path,
                 const CreateOptions& create, const OpenOptions& open);

  /// Those of the store, of batches of which nobody knows which comes first.
  static Capabilities CapabilitiesOf(ycsb::Memory memory);
  void Apply(const Batch& batch) override;

 private:
  ThreadPool threads_;
  const std::uint64_t batch_;
  const Streams streams_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_STREAMS_ADAPTER_H_
