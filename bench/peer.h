#ifndef GPM_BENCH_PEER_H_
#define GPM_BENCH_PEER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kv_adapter.h"

namespace gpm::bench {

/// What a peer is made for.
struct PeerSpec {
  std::uint64_t items = 0;        ///< that it holds
  std::uint64_t max_batch = 0;    ///< operations of its largest batch
  std::uint32_t key_bytes = 8;    ///< as its capabilities allow, as well as
  std::uint32_t value_bytes = 0;  ///< these
  /// Share of the slots that the items take, of a table in GPU memory or on PM that does not grow.
  double fill = 0.8;
  /// Load factors below and above which a table that resizes itself does; 0: as published.
  double shrink_below = 0;
  double grow_above = 0;
  unsigned threads = 1;  ///< share a batch in host memory
  /// That a table that grows may come to hold; 0: twice `items`. Memory of their values may be
  /// taken beforehand.
  std::uint64_t most_items = 0;
  /// What it is searched by: fields of values, of 4 bytes; none for a peer that has no searches.
  std::vector<Attribute> attributes{};
};

/// Another container that is measured beside the store. Adding one is one file in bench/peers/,
/// like libcuckoo.cc, which the build finds: it derives from KvAdapter and registers itself, with
/// `const RegisteredPeer registered({...});`. tests/peers_test.cc then tests it.
struct Peer {
  std::string name;
  Capabilities can{};
  bool by_default = true;  ///< `gpmstore_bench peers` measures it without being told
  /// @throws Error when there is not the memory for it
  std::unique_ptr<KvAdapter> (*make)(const PeerSpec& spec) = nullptr;
};

/// Peer::make of an adapter that is constructed from a PeerSpec.
template <class Adapter>
std::unique_ptr<KvAdapter> MakePeer(const PeerSpec& spec) {
  return std::make_unique<Adapter>(spec);
}

/// Bytes of the longer keys of such peers as have any (GPHash's figures 6 and 12).
inline constexpr std::array<std::uint32_t, 2> kLongerKeys = {32, 128};

/// Peer::make of an adapter that is a template on the words of 8 bytes of its keys, which are of 8
/// bytes or those of kLongerKeys.
template <template <unsigned kWords> class Adapter>
std::unique_ptr<KvAdapter> MakePeerByKey(const PeerSpec& spec) {
  switch (spec.key_bytes) {
    case kLongerKeys[0]:
      return MakePeer<Adapter<kLongerKeys[0] / 8>>(spec);
    case kLongerKeys[1]:
      return MakePeer<Adapter<kLongerKeys[1] / 8>>(spec);
    default:
      return MakePeer<Adapter<1>>(spec);
  }
}

/// Makes a peer known, before main() begins.
class RegisteredPeer {
 public:
  explicit RegisteredPeer(const Peer& peer);
};

/// All that are known and take batches there, by name.
std::vector<std::string> PeerNames(ycsb::Memory memory);

/// @throws Error(kInvalidArgument), which lists those that take batches there, when none has the
///         name, or the one that has it takes its batches elsewhere
const Peer& FindPeer(std::string_view name, ycsb::Memory memory);

/// Why the peer can't have such items, and what it can have; empty if it can.
std::string WhyNotItems(const Peer& peer, std::uint32_t key_bytes, std::uint32_t value_bytes);
/// @throws Error(kInvalidArgument) with that
void RequireItems(const Peer& peer, std::uint32_t key_bytes, std::uint32_t value_bytes);

}  // namespace gpm::bench

#endif  // GPM_BENCH_PEER_H_
