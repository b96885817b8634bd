// Throughput and latency of the store, of peers, and of the store on several streams: by the parts
// of `peers`.

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "bench/contest.h"
#include "bench/paper/figures.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/streams_adapter.h"
#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

using nlohmann::json;
using Kind = PeerPhase::Kind;

ContestOptions OptionsOf(const PaperArguments& arguments, json& report) {
  ContestOptions options;
  options.records = arguments.records();
  options.operations = options.records;
  options.repeats = arguments.repeats;
  options.open.executor = ResolveExecutor(arguments.executor);
  options.open.threads = arguments.threads;
  options.open.cache = CacheBesidePeers(options.open.executor, report);
  return options;
}

/// Adds the rows of the store and of those peers that can have such items, with the sizes and the
/// skew of their keys; `left_out` says why others can't.
/// @return what else MeasureContest reports
json AddContest(const PaperArguments& arguments, ContestOptions options, json& report) {
  for (const std::string& name : PaperPeers(arguments)) {
    const Peer& peer = FindPeer(name, MemoryOf(options.open.executor));
    const std::string why = WhyNotItems(peer, options.key_size, options.value_size);
    if (why.empty()) {
      options.peers.push_back(name);
    } else {
      report["left_out"].push_back(
          {{"contestant", name}, {"key_size", options.key_size}, {"why", why}});
    }
  }
  json part = {{"rows", json::array()}, {"left_out", json::array()}};
  MeasureContest(options, part);
  for (json& row : part.at("rows")) {
    row["key_size"] = options.key_size;
    row["value_size"] = options.value_size;
    row["theta"] = options.theta;
    report["rows"].push_back(std::move(row));
  }
  for (json& entry : part.at("left_out")) report["left_out"].push_back(std::move(entry));
  part.erase("rows");
  part.erase("left_out");
  return part;
}

/// Throughput and latency over batch sizes.
void MeasureBatches(const PaperArguments& arguments, std::uint32_t key_size, json& report) {
  ContestOptions options = OptionsOf(arguments, report);
  options.key_size = key_size;
  options.batches = arguments.batches;
  for (unsigned log = 10; arguments.batches.empty() && log <= 20; log += 2) {
    const std::uint64_t batch = std::uint64_t{1} << log;
    if (batch <= options.records) options.batches.push_back(batch);
  }
  options.kinds = {Kind::kInsert, Kind::kFind, Kind::kFindMissing, Kind::kUpdate, Kind::kErase,
                   Kind::kC,      Kind::kB,    Kind::kA,           Kind::kD,      Kind::kF};
  report["left_out"] = json::array();
  report.update(AddContest(arguments, options, report));
  for (json& row : report.at("rows")) row["series"] = row.at("contestant");
}

}  // namespace

CacheOptions PaperCache() {
  CacheOptions cache;
  cache.refresh_interval = 0;
  cache.directory = true;  // without it there is no cache
  cache.fraction = kPaperCacheFraction;
  return cache;
}

CacheOptions CacheBesidePeers(ExecutorKind executor, json& report) {
  const bool caches = executor == ExecutorKind::kCuda;
  report["cached_fraction"] = caches ? kPaperCacheFraction : 0.0;
  return caches ? PaperCache() : CacheOptions{};
}

std::vector<std::string> PaperPeers(const PaperArguments& arguments) {
  std::vector<std::string> names = arguments.peers;
  if (names.empty()) {
    names = arguments.executor == ExecutorKind::kCuda
                ? std::vector<std::string>{"gphash", "slabhash-gpm", "clevel-gpm", "dash-carried",
                                           "libcuckoo-carried"}
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

void MeasureFigure12(const PaperArguments& arguments, json& report) {
  ContestOptions options = OptionsOf(arguments, report);
  options.open.cache = PaperCache();  // on a CPU, too: what skew brings, a cache brings
  report["cached_fraction"] = kPaperCacheFraction;
  options.batches = {arguments.batch()};
  options.kinds = {Kind::kC};
  report["left_out"] = json::array();
  json rows = json::array();
  const auto add = [&](const char* series) {
    report.update(AddContest(arguments, options, report));
    for (json& row : report.at("rows")) {
      if (row.at("workload") != PeerPhase::NameOf(Kind::kC)) continue;  // inserts come first
      row["series"] = series;
      rows.push_back(std::move(row));
    }
    report["rows"] = json::array();
  };
  const std::uint32_t key_size = options.key_size;
  for (const std::uint32_t bytes : {8u, 16u, 32u, 64u, 128u}) {
    options.key_size = bytes;
    add("key size");
  }
  options.key_size = key_size;
  for (const double theta : {0.5, 0.7, 0.9, 0.99}) {
    options.theta = theta;
    add("skew");
  }
  report["rows"] = std::move(rows);
}

/// Shares of the time that warps waited for persistent memory; of what is carried to the CPU and
/// back, of the time of its batches.
json PhasesOf(const json& row) {
  if (row.contains("carried_share")) {
    const double carried = row.at("carried_share");
    return {{{"phase", "transfer"}, {"share", carried}},
            {{"phase", "on the CPU"}, {"share", 1 - carried}}};
  }
  const json& pm = row.at("pm");
  const auto of = [&pm](const char* place, const char* access) {
    return pm.at(place).at(access).at("cycles").get<double>();
  };
  const std::pair<const char*, double> phases[] = {
      {"search", of("slots", "read")},
      {"read values", of("values", "read")},
      {"write values", of("values", "written")},
      {"write slots", of("slots", "written") + of("slots", "swapped")},
      {"log", of("log", "read") + of("log", "written") + of("log", "swapped")},
      {"persist", pm.at("fence_cycles").get<double>()}};
  double sum = 0;
  for (const auto& [phase, cycles] : phases) sum += cycles;
  json shares = json::array();
  for (const auto& [phase, cycles] : phases) {
    shares.push_back({{"phase", phase}, {"share", sum > 0 ? cycles / sum : 0}});
  }
  return shares;
}

void AddStepsOfGpHash(const PaperArguments& arguments, json& report) {
  ContestOptions options = OptionsOf(arguments, report);
  options.batches = {arguments.batch()};
  options.kinds = {Kind::kInsert, Kind::kA, Kind::kB, Kind::kC, Kind::kD, Kind::kF};
  options.store = false;
  options.peers = {"gphash-threads", "gphash-apart", "gphash-uncached", "gphash"};
  json part = {{"rows", json::array()}};
  MeasureContest(options, part);
  std::map<json, double> first;  // of each workload
  for (json& row : part.at("rows")) {
    const double mops = row.at("mops");
    row["factor"] = mops / first.emplace(row.at("workload"), mops).first->second;
    row["configuration"] = row["series"] = row.at("contestant");
    report["rows"].push_back(std::move(row));
  }
}

void MeasureCountedContest(const PaperArguments& arguments, json& report) {
  if constexpr (!kCountsPm) {
    throw Error(ErrorCode::kUnsupported,
                "--figure 8 counts accesses on a GPU in a build with -DGPM_COUNT_PM=ON alone; "
                "--executor cpu counts those of that executor");
  }
  ContestOptions options = OptionsOf(arguments, report);
  options.batches = {arguments.batch()};
  options.kinds = {Kind::kFind, Kind::kFindMissing, Kind::kUpdate, Kind::kErase};
  options.store = false;
  options.peers = {"gphash", "slabhash-gpm", "clevel-gpm", "dash-carried", "libcuckoo-carried"};
  for (const auto& [name, directory, fraction] : {std::tuple{"no directory", false, 0.0},
                                                  {"cold", true, 0.0},
                                                  {"warm", true, kPaperCacheFraction}}) {
    OpenOptions open = options.open;
    open.cache.directory = directory;
    open.cache.fraction = fraction;
    const auto make = [&options, open](std::uint64_t items, std::uint64_t,
                                       double) -> std::unique_ptr<KvAdapter> {
      CreateOptions create;
      create.key_size = options.key_size;
      create.value_size = options.value_size;
      create.initial_capacity = items;
      return std::make_unique<StoreAdapter>("", create, open);
    };
    options.others.push_back(
        {name, StoreAdapter::CapabilitiesOf(MemoryOf(options.open.executor)), make});
  }
  MeasureContest(options, report);
  for (json& row : report.at("rows")) {
    row["series"] = row.at("contestant");
    row["phases"] = PhasesOf(row);
    row["counted_mops"] = row.at("mops");  // counting is slow
    for (const char* key : {"mops", "mops_runs", "latency_us_p50", "latency_us_p99"})
      row.erase(key);
  }
}

// All operations of a workload are one call, which threads divide into batches.
void MeasureStreams(const PaperArguments& arguments, json& report) {
  ContestOptions options = OptionsOf(arguments, report);
  options.batches = {options.records};
  options.kinds = {Kind::kFind, Kind::kC, Kind::kA, Kind::kUpdate};
  options.store = false;
  std::map<std::string, unsigned> streams;
  for (const unsigned threads : {1u, 2u, 4u, 8u}) {
    const auto make = [&, threads](std::uint64_t items, std::uint64_t,
                                   double) -> std::unique_ptr<KvAdapter> {
      CreateOptions create;
      create.key_size = options.key_size;
      create.value_size = options.value_size;
      create.initial_capacity = items;
      return std::make_unique<StreamsAdapter>(threads, arguments.batch(), "", create, options.open);
    };
    options.others.push_back({std::to_string(threads),
                              StreamsAdapter::CapabilitiesOf(MemoryOf(options.open.executor)),
                              make});
    streams[options.others.back().name] = threads;
  }
  MeasureContest(options, report);
  for (json& row : report.at("rows")) {
    row["series"] = row.at("workload");
    row["streams"] = streams.at(row.at("contestant"));
    row["batch"] = arguments.batch();
    for (const char* key : {"contestant", "fill", "latency_us_p50", "latency_us_p99"}) {
      row.erase(key);
    }
  }
  report.erase("contestants");
}

}  // namespace gpm::bench
