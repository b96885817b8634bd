#include "bench/peer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

/// A function's own, since peers register in an order that nothing says.
std::map<std::string, Peer, std::less<>>& Peers() {
  static std::map<std::string, Peer, std::less<>> peers;
  return peers;
}

}  // namespace

double SecondsInThreads(unsigned threads, std::uint64_t n,
                        const std::function<void(std::uint64_t, std::uint64_t)>& work) {
  using Clock = std::chrono::steady_clock;
  std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&, first = n * t / threads, last = n * (t + 1) / threads] {
      start.arrive_and_wait();
      work(first, last);
    });
  }
  start.arrive_and_wait();
  const auto begin = Clock::now();
  workers.clear();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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
