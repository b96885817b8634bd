#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/options.h"
#include "bench/peer.h"
#include "bench/peer_phases.h"
#include "bench/report.h"
#include "pm/gpu_host.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using nlohmann::json;
using ycsb::Memory;
using Kind = PeerPhase::Kind;

/// In the order in which a contestant meets them.
constexpr Kind kKinds[] = {Kind::kInsert, Kind::kFind, Kind::kFindMissing,
                           Kind::kC,      Kind::kA,    Kind::kUpdate};
const std::string kStore = "gpmstore";

struct PeersOptions {
  std::uint64_t records = 1'000'000;
  std::uint64_t operations = 0;  ///< 0: as many as records
  std::vector<std::uint64_t> batches = {std::uint64_t{1} << 12, std::uint64_t{1} << 20};
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  double fill = 0.8;
  double theta = 0.99;
  std::uint64_t seed = 1;
  unsigned repeats = 3;
  bool no_store = false;
  std::vector<std::string> peers;
  std::vector<std::string> workloads;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::string pool;
  std::string json;
};

/// The workload that is run, and not counted, before a workload, for the caches.
std::optional<Kind> WarmUpOf(Kind kind) {
  if (kind == Kind::kFind) return Kind::kFind;
  if (kind == Kind::kC || kind == Kind::kA) return Kind::kC;
  return std::nullopt;
}

struct Contestant {
  std::string name;
  Capabilities can;
  std::function<std::unique_ptr<KvAdapter>(std::uint64_t batch)> make;
};

/// Of one contestant, batch size and workload.
struct Measured {
  std::vector<double> mops;     ///< of the repeats
  std::vector<double> latency;  ///< seconds of all whole batches
};
using Figures = std::map<std::pair<std::string, Kind>, Measured>;  ///< by contestant

Memory MemoryOf(const PeersOptions& options) {
  return options.executor == ExecutorKind::kCuda ? Memory::kDevice : Memory::kHost;
}

std::vector<Contestant> MakeContestants(const PeersOptions& options) {
  const Memory memory = MemoryOf(options);
  std::vector<Contestant> contestants;
  if (!options.no_store) {
    const auto make = [&options](std::uint64_t) -> std::unique_ptr<KvAdapter> {
      CreateOptions create;
      create.key_size = options.key_size;
      create.value_size = options.value_size;
      create.initial_capacity = options.records;
      OpenOptions open;
      open.executor = options.executor;
      open.threads = options.threads;
      return std::make_unique<StoreAdapter>(options.pool, create, open);
    };
    contestants.push_back({kStore, StoreAdapter::CapabilitiesOf(memory), make});
  }
  for (const std::string& name : options.peers) {
    if (name == "none") continue;
    const Peer& peer = FindPeer(name, memory);
    RequireItems(peer, options.key_size, options.value_size);
    contestants.push_back({name, peer.can, [&options, &peer](std::uint64_t batch) {
                             return peer.make({.items = options.records,
                                               .max_batch = batch,
                                               .value_bytes = options.value_size,
                                               .fill = options.fill,
                                               .threads = options.threads});
                           }});
  }
  return contestants;
}

/// The phases of one batch size.
class Phases {
 public:
  Phases(const PeersOptions& options, std::uint64_t batch,
         const std::vector<Contestant>& contestants, ThreadPool& threads, Staging& staging) {
    const PeerWorkload workload{options.records,  options.operations, batch,
                                options.key_size, options.value_size, options.theta,
                                options.seed,     MemoryOf(options)};
    for (const Kind kind : kKinds) {
      const bool wanted =
          std::ranges::find(options.workloads, PeerPhase::NameOf(kind)) != options.workloads.end();
      if (!wanted && kind != Kind::kInsert) continue;
      const auto some = [&](auto&& condition) {
        return std::ranges::any_of(contestants, [&](const Contestant& contestant) {
          return PeerPhase::IsFor(kind, contestant.can) && condition(contestant.can);
        });
      };
      if (some([&](const Capabilities& can) { return !IsSplit(kind, can); })) {
        phases_[kind] = std::make_unique<PeerPhase>(workload, kind, false, threads, staging);
      }
      if (some([&](const Capabilities& can) { return IsSplit(kind, can); })) {
        split_ = std::make_unique<PeerPhase>(workload, kind, true, threads, staging);
      }
    }
  }

  /// The phase as a contestant can do it, or null.
  const PeerPhase* Find(Kind kind, const Capabilities& can) const {
    if (!PeerPhase::IsFor(kind, can)) return nullptr;
    if (IsSplit(kind, can)) return split_.get();
    const auto found = phases_.find(kind);
    return found == phases_.end() ? nullptr : found->second.get();
  }

 private:
  static bool IsSplit(Kind kind, const Capabilities& can) {
    return kind == Kind::kA && PeerPhase::IsSplitFor(can);
  }

  std::map<Kind, std::unique_ptr<PeerPhase>> phases_;
  std::unique_ptr<PeerPhase> split_;
};

/// All phases of one contestant, from an empty container on. @param store what ours was in the end
void RunContestant(const Contestant& contestant, const Phases& phases, std::uint64_t batch,
                   Figures& figures, json& store) {
  const std::unique_ptr<KvAdapter> adapter = contestant.make(batch);
  const Capabilities& can = contestant.can;
  phases.Find(Kind::kInsert, can)->Rehearse(*adapter, can);
  std::optional<Kind> warm;
  for (const Kind kind : kKinds) {
    const PeerPhase* const phase = phases.Find(kind, can);
    if (phase == nullptr) continue;
    if (const std::optional<Kind> warm_up = WarmUpOf(kind); warm_up && warm_up != warm) {
      phases.Find(*warm_up, can)->Run(*adapter, can);
      adapter->LoadCaches();
      warm = warm_up;
    }
    const std::vector<double> seconds = phase->Run(*adapter, can);
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    Measured& measured = figures[{contestant.name, kind}];
    measured.mops.push_back(static_cast<double>(phase->operations()) / sum / 1e6);
    const std::size_t whole = phase->operations() / batch;
    measured.latency.insert(
        measured.latency.end(), seconds.begin(),
        seconds.begin() + static_cast<std::ptrdiff_t>(std::min(whole, seconds.size())));
  }
  if (const PeerPhase* const updates = phases.Find(Kind::kUpdate, can)) {
    updates->CheckUpdated(*adapter);
  }
  if (const auto* const ours = dynamic_cast<const StoreAdapter*>(adapter.get())) {
    store = StoreFacts(ours->Stats());
  }
}

json CapabilitiesFacts(const Contestant& contestant) {
  const Capabilities& can = contestant.can;
  json kinds = json::array();
  for (const Op op : can.kinds) kinds.push_back(OpName(op));
  return {{"name", contestant.name},
          {"kinds", kinds},
          {"mixed", can.mixed},
          {"sequential", can.sequential},
          {"whole_values", can.whole_values},
          {"grows", can.grows},
          {"durable", can.durable},
          {"builds_once", can.builds_once}};
}

/// Rows of one batch size, and who won each workload.
void AddRows(const std::vector<Contestant>& contestants, std::uint64_t batch,
             const Figures& figures, json& report) {
  for (const Kind kind : kKinds) {
    json win = {{"workload", PeerPhase::NameOf(kind)}, {"batch", batch}};
    double best = 0;
    for (const Contestant& contestant : contestants) {
      const auto found = figures.find({contestant.name, kind});
      if (found == figures.end()) continue;
      const Measured& measured = found->second;
      const double mops = Median(measured.mops);
      report["rows"].push_back({{"contestant", contestant.name},
                                {"workload", PeerPhase::NameOf(kind)},
                                {"batch", batch},
                                {"mops", mops},
                                {"mops_runs", measured.mops}});
      if (!contestant.can.builds_once || kind != Kind::kInsert) {
        report["rows"].back()["batch_us_median"] = Median(measured.latency) * 1e6;
      }
      if (contestant.name == kStore) win["gpmstore_mops"] = mops;
      if (mops > best) {
        best = mops;
        win["winner"] = contestant.name;
        win["mops"] = mops;
      }
    }
    if (best > 0) report["wins"].push_back(std::move(win));
  }
}

void PrintReport(const json& report, const std::vector<Contestant>& contestants) {
  fmt::print("{} records of {} + {} bytes, {} operations, fill {}, theta {}, medians of {}\n",
             report["records"].get<std::uint64_t>(), report["key_size"].get<unsigned>(),
             report["value_size"].get<unsigned>(), report["operations"].get<std::uint64_t>(),
             report["fill"].get<double>(), report["theta"].get<double>(),
             report["repeats"].get<unsigned>());
  for (const json& win : report["wins"]) {
    if (&win == &report["wins"].front() || win["batch"] != (&win - 1)->at("batch")) {
      fmt::print("\nMops/s, batch {:<7}", win["batch"].get<std::uint64_t>());
      for (const Contestant& contestant : contestants) fmt::print("{:>17}", contestant.name);
      fmt::print("{:>17}\n", "best");
    }
    fmt::print("{:<21}", win["workload"].get<std::string>());
    for (const Contestant& contestant : contestants) {
      const auto row = std::ranges::find_if(report["rows"], [&](const json& candidate) {
        return candidate["contestant"] == contestant.name && candidate["batch"] == win["batch"] &&
               candidate["workload"] == win["workload"];
      });
      fmt::print("{:>17}", row == report["rows"].end()
                               ? "-"
                               : fmt::format("{:.2f}", (*row)["mops"].get<double>()));
    }
    fmt::print("{:>17}\n", win["winner"].get<std::string>());
  }
}

void Resolve(PeersOptions& options) {
  if (options.executor == ExecutorKind::kAuto) {
    options.executor = GpuCount() > 0 ? ExecutorKind::kCuda : ExecutorKind::kCpu;
  }
  if (options.executor == ExecutorKind::kCuda && GpuCount() == 0) {
    throw Error(ErrorCode::kUnsupported, "--executor cuda: no CUDA device; use --executor cpu");
  }
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  if (options.operations == 0) options.operations = options.records;
  if (options.workloads.empty()) {
    for (const Kind kind : kKinds) options.workloads.emplace_back(PeerPhase::NameOf(kind));
  }
  for (const std::string& workload : options.workloads) {
    if (std::ranges::any_of(kKinds,
                            [&](Kind kind) { return PeerPhase::NameOf(kind) == workload; })) {
      continue;
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--workloads {}: there are insert, find, find-missing, c, a, update",
                            workload));
  }
  if (options.peers.empty()) {
    for (const std::string& name : PeerNames(MemoryOf(options))) {
      const Peer& peer = FindPeer(name, MemoryOf(options));
      const bool fits = (peer.can.key_bytes == 0 || peer.can.key_bytes == options.key_size) &&
                        options.value_size % peer.can.value_unit == 0 &&
                        options.value_size <= peer.can.max_value_bytes;
      if (peer.by_default && fits) options.peers.push_back(name);
    }
  }
  for (const std::uint64_t batch : options.batches) {
    if (batch > 0 && batch <= std::min(options.records, options.operations)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--batches {}: a batch has 1 to {} operations, the least of records "
                            "and operations",
                            batch, std::min(options.records, options.operations)));
  }
}

void RunPeers(PeersOptions options) {
  Resolve(options);
  const std::vector<Contestant> contestants = MakeContestants(options);
  if (contestants.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--no-store --peers none: nobody is left");
  }
  json report = {{"benchmark", "peers"},
                 {"machine", MachineFacts()},
                 {"executor", ExecutorName(options.executor)},
                 {"records", options.records},
                 {"operations", options.operations},
                 {"key_size", options.key_size},
                 {"value_size", options.value_size},
                 {"fill", options.fill},
                 {"theta", options.theta},
                 {"seed", options.seed},
                 {"threads", options.threads},
                 {"repeats", options.repeats},
                 {"contestants", json::array()},
                 {"rows", json::array()},
                 {"wins", json::array()}};
  for (const Contestant& contestant : contestants) {
    report["contestants"].push_back(CapabilitiesFacts(contestant));
  }
  ThreadPool threads(options.threads);
  Staging staging(MemoryOf(options));
  for (const std::uint64_t batch : options.batches) {
    ShowProgress(fmt::format("batch {}: making operations", batch));
    const Phases phases(options, batch, contestants, threads, staging);
    Figures figures;
    for (unsigned repeat = 1; repeat <= options.repeats; ++repeat) {
      for (const Contestant& contestant : contestants) {
        ShowProgress(fmt::format("batch {}, repeat {}: {}", batch, repeat, contestant.name));
        try {
          RunContestant(contestant, phases, batch, figures, report["store"]);
        } catch (const Error& error) {
          throw Error(error.code(),
                      fmt::format("{}, batch {}: {}", contestant.name, batch, error.what()));
        }
      }
    }
    AddRows(contestants, batch, figures, report);
  }
  ShowProgress("");
  if (options.json != "-") PrintReport(report, contestants);
  if (!options.json.empty()) WriteJson(report, options.json);
}

}  // namespace

void AddPeersCommand(CLI::App& program) {
  auto options = std::make_shared<PeersOptions>();
  CLI::App* command = program.add_subcommand(
      "peers",
      "The store beside published tables, written from their papers (cuda), or beside other "
      "containers (cpu): insert, find, find-missing, c, a, update");
  command->add_option("--records", options->records, "Items that are inserted")
      ->check(CLI::Range(std::uint64_t{1}, (std::uint64_t{1} << 32) - 2))
      ->capture_default_str();
  command->add_option("--operations", options->operations,
                      "Operations of each workload behind that; 0: as many as records");
  command->add_option("--batches", options->batches, "Operations of a batch, several sizes")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--key-size", options->key_size, "Bytes of a key")
      ->check(CLI::IsMember({4u, 8u}))
      ->capture_default_str();
  command->add_option("--value-size", options->value_size, "Bytes of a value")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--fill", options->fill, "Share of the slots that the items take, of a peer")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command->add_option("--theta", options->theta, "Skew of c and a")
      ->check(CLI::Range(0.0, ycsb::Zipfian::kMaxTheta))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the choice of records")
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Of which medians are given")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command
      ->add_option("--peers", options->peers,
                   fmt::format("Measured beside the store, or none; on cuda: {}; on cpu: {}; by "
                               "default those that can have such items",
                               fmt::join(PeerNames(Memory::kDevice), ", "),
                               fmt::join(PeerNames(Memory::kHost), ", ")))
      ->delimiter(',');
  command->add_flag("--no-store", options->no_store, "Peers alone, beside each other");
  command->add_option("--workloads", options->workloads, "Those that are measured; default: all")
      ->delimiter(',');
  AddExecutorOptions(*command, &options->executor, &options->threads, "Whose peers are measured");
  AddPoolOption(*command, &options->pool);
  AddJsonOption(*command, &options->json);
  command->callback([options] { RunPeers(*options); });
}

}  // namespace gpm::bench
