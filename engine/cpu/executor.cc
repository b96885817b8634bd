#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "engine/cpu/batch_runs.h"
#include "pm/thread_pool.h"
#include "table/media/direct.h"
#include "table/media/traced.h"

namespace gpm {
namespace {

/// The threads and the memory of this machine.
struct DirectSetup {
  using Media = DirectMedia;
  class Threads : public ThreadPool {
   public:
    Threads(unsigned threads, const Persist&) : ThreadPool(threads) {}
  };
  static constexpr std::uint64_t kKeyLocks = 1 << 14;
  static constexpr std::uint64_t kBucketsAtATime = 1024;
  static constexpr std::size_t kMinPerThread = 64;
  static WindowShape Windows() { return WindowsOfThisCpu(); }
};

/// Those of a pool's tracer. Parts are small, so that small tables and batches have several. A
/// schedule is the same on every CPU.
struct TracedSetup {
  using Media = TracedMedia;
  using Threads = TracerThreads;
  static constexpr std::uint64_t kKeyLocks = 1 << 10;
  static constexpr std::uint64_t kBucketsAtATime = 2;
  static constexpr std::size_t kMinPerThread = 2;
  static WindowShape Windows() { return kSmallWindows; }
};

constexpr unsigned kMaxThreads = 256;

}  // namespace

// Such as one in GPU memory: asking the kernel for a word of it costs far less than a crash. It
// reads the signal set first and then finds that there is nothing to do with it; of all calls that
// read memory, this is the cheapest. (Where the call is not allowed, nothing is refused.)
void RequireHostMemory(const void* array, std::size_t bytes, const char* name) {
  if (bytes == 0) return;
  constexpr std::uintptr_t kWord = 8;  // bytes of the kernel's signal set; in one page if aligned
  constexpr int kNothing = -1;
  const std::uintptr_t word = reinterpret_cast<std::uintptr_t>(array) / kWord * kWord;
  // (For a null pointer, the call reads nothing.)
  if (word == 0 ||
      (syscall(SYS_rt_sigprocmask, kNothing, word, nullptr, kWord) < 0 && errno == EFAULT)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name +
                    "' is not in memory that the host can read; the cpu executor takes host memory "
                    "only, the cuda executor also GPU memory");
  }
}

std::unique_ptr<Executor> MakeCpuExecutor(unsigned threads, const Mapping& mapping) {
  threads = std::min(ThreadsOf(threads), kMaxThreads);
  if (PmTracer* const tracer = mapping.persist().tracer()) {
    if (auto* const source = dynamic_cast<ExecutorSource*>(tracer)) {
      return source->MakeExecutor(threads, mapping);
    }
    return std::make_unique<CpuExecutor<TracedSetup>>(threads, mapping);
  }
  return std::make_unique<CpuExecutor<DirectSetup>>(threads, mapping);
}

}  // namespace gpm
