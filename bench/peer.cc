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

std::vector<std::string> PeerNames() {
  std::vector<std::string> names;
  for (const auto& peer : Peers()) names.push_back(peer.first);
  return names;
}

const Peer& FindPeer(std::string_view name) {
  const auto found = Peers().find(name);
  if (found != Peers().end()) return found->second;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--peer {}: there is no such peer; there are {}, and none", name,
                          fmt::join(PeerNames(), ", ")));
}

}  // namespace gpm::bench
