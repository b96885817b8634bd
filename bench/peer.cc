#include "bench/peer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <map>

#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

/// A function's own, since peers register in an order that nothing says.
std::map<std::string, Peer, std::less<>>& Peers() {
  static std::map<std::string, Peer, std::less<>> peers;
  return peers;
}

}  // namespace

RegisteredPeer::RegisteredPeer(const Peer& peer) { Peers().emplace(peer.name, peer); }

std::vector<std::string> PeerNames(ycsb::Memory memory) {
  std::vector<std::string> names;
  for (const auto& [name, peer] : Peers()) {
    if (peer.can.memory == memory) names.push_back(name);
  }
  return names;
}

const Peer& FindPeer(std::string_view name, ycsb::Memory memory) {
  const auto found = Peers().find(name);
  if (found != Peers().end() && found->second.can.memory == memory) return found->second;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--peer {}: {}; there are {}, and none", name,
                          found == Peers().end() ? "there is no such peer"
                          : memory == ycsb::Memory::kDevice
                              ? "its batches are in host memory, for executor cpu, not cuda"
                              : "its batches are in GPU memory, for executor cuda, not cpu",
                          fmt::join(PeerNames(memory), ", ")));
}

std::string WhyNotItems(const Peer& peer, std::uint32_t key_bytes, std::uint32_t value_bytes) {
  const Capabilities& can = peer.can;
  if (!can.HasKeysOf(key_bytes)) {
    std::vector<std::uint32_t> sizes = can.longer_keys;
    sizes.insert(sizes.begin(), can.key_bytes);
    return fmt::format("--key-size {} with --peer {}: the peer has keys of {} bytes", key_bytes,
                       peer.name, fmt::join(sizes, " or "));
  }
  if (value_bytes % can.value_unit == 0 && value_bytes <= can.max_value_bytes) return {};
  return fmt::format(
      "--value-size {} with --peer {}: the peer is compiled for values of {}; use that, or --peer "
      "none",
      value_bytes, peer.name,
      can.max_value_bytes == can.value_unit
          ? fmt::format("{} bytes", can.value_unit)
          : fmt::format("a multiple of {} bytes", can.value_unit));
}

void RequireItems(const Peer& peer, std::uint32_t key_bytes, std::uint32_t value_bytes) {
  const std::string why = WhyNotItems(peer, key_bytes, value_bytes);
  if (!why.empty()) throw Error(ErrorCode::kInvalidArgument, why);
}

}  // namespace gpm::bench
