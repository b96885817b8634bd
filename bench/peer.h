#ifndef GPM_BENCH_PEER_H_
#define GPM_BENCH_PEER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kv_adapter.h"

namespace gpm::bench {

/// Another container that `gpmstore_bench cpu` measures beside the store. Adding one is one file,
/// like peer_libcuckoo.cc, which the build finds: it derives from KvAdapter and registers itself,
/// with `const RegisteredPeer registered({...});`.
struct Peer {
  const char* name = "";
  std::uint32_t value_bytes = 0;  ///< that it is compiled for, with 8-byte keys
  /// @param capacity items that it holds without growing @param threads share each call's arrays
  std::unique_ptr<KvAdapter> (*make)(std::uint64_t capacity, unsigned threads) = nullptr;
};

/// Runs work(first, last) for equal parts of 0 ... n - 1, in a thread each. @return seconds that
/// they took together, without the making of the threads
double SecondsInThreads(unsigned threads, std::uint64_t n,
                        const std::function<void(std::uint64_t, std::uint64_t)>& work);

/// Makes a peer known, before main() begins.
class RegisteredPeer {
 public:
  explicit RegisteredPeer(const Peer& peer);
};

/// All that are known, by name.
std::vector<std::string> PeerNames();

/// @throws Error(kInvalidArgument), which lists the known ones, when none has the name
const Peer& FindPeer(std::string_view name);

}  // namespace gpm::bench

#endif  // GPM_BENCH_PEER_H_
