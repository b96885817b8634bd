// Throughput and latency of the store and of peers: by the parts of `peers`.

#include <nlohmann/json.hpp>

#include "bench/contest.h"
#include "bench/paper/figures.h"
#include "bench/peer.h"
#include "bench/report.h"

namespace gpm::bench {
namespace {

using nlohmann::json;
using Kind = PeerPhase::Kind;

/// Throughput and latency over batch sizes.
void MeasureBatches(const PaperArguments& arguments, std::uint32_t key_size, json& report) {
  ContestOptions options;
  options.records = arguments.records();
  options.operations = options.records;
  options.key_size = key_size;
  options.repeats = arguments.repeats;
  options.batches = arguments.batches;
  for (unsigned log = 10; arguments.batches.empty() && log <= 20; log += 2) {
    const std::uint64_t batch = std::uint64_t{1} << log;
    if (batch <= options.records) options.batches.push_back(batch);
  }
  options.kinds = {Kind::kInsert, Kind::kFind, Kind::kFindMissing, Kind::kUpdate, Kind::kErase,
                   Kind::kC,      Kind::kB,    Kind::kA,           Kind::kD,      Kind::kF};
  options.open.executor = arguments.executor;
  options.open.threads = arguments.threads;
  options.open.cache = PaperCache();
  report["left_out"] = json::array();
  for (const std::string& name : PaperPeers(arguments)) {
    const Peer& peer = FindPeer(name, MemoryOf(arguments.executor));
    const std::string why = WhyNotItems(peer, key_size, options.value_size);
    if (why.empty()) {
      options.peers.push_back(name);
    } else {
      report["left_out"].push_back({{"contestant", name}, {"why", why}});
    }
  }
  MeasureContest(options, report);
  for (json& row : report.at("rows")) {
    row["series"] = row.at("contestant");
    row["key_size"] = key_size;
    row["value_size"] = options.value_size;
    row["theta"] = options.theta;
  }
}

}  // namespace

CacheOptions PaperCache() {
  CacheOptions cache;
  cache.refresh_interval = 0;
  cache.directory = true;  // without it there is no cache
  cache.fraction = kPaperCacheFraction;
  return cache;
}

std::vector<std::string> PaperPeers(const PaperArguments& arguments) {
  std::vector<std::string> names = arguments.peers;
  if (names.empty()) {
    names =
        arguments.executor == ExecutorKind::kCuda
            ? std::vector<std::string>{"gphash", "slabhash-gpm", "clevel-gpm", "libcuckoo-carried"}
            : std::vector<std::string>{"dash", "libcuckoo"};
  }
  std::erase(names, "none");
  for (const std::string& name : names) FindPeer(name, MemoryOf(arguments.executor));
  return names;
}

void MeasureFigure5(const PaperArguments& arguments, json& report) {
  MeasureBatches(arguments, 8, report);
}

void MeasureFigure6(const PaperArguments& arguments, json& report) {
  MeasureBatches(arguments, 32, report);
}

}  // namespace gpm::bench
