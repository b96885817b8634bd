#include "bench/contest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "bench/peer.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

using nlohmann::json;
using Kind = PeerPhase::Kind;

/// The workload that is run, and not counted, before a workload, for the caches.
std::optional<Kind> WarmUpOf(Kind kind) {
  switch (kind) {
    case Kind::kFind:
      return Kind::kFind;
    case Kind::kD:
      return Kind::kLatest;
    case Kind::kC:
    case Kind::kB:
    case Kind::kA:
    case Kind::kF:
      return Kind::kC;
    default:
      return std::nullopt;
  }
}

/// Of one contestant, fill, batch size and workload.
struct Measured {
  std::uint64_t operations = 0;
  std::vector<double> mops;        ///< of the repeats
  std::vector<double> latency;     ///< seconds of all whole batches
  std::optional<double> hit_rate;  ///< of the last repeat, of our store
  double carried = 0;              ///< share of the last repeat's time that carrying took
  std::optional<PmCounts> counts;  ///< of the last repeat, where those are counted
};
using Figures = std::map<std::pair<std::string, Kind>, Measured>;  ///< by contestant

std::vector<Contestant> MakeContestants(const ContestOptions& options) {
  const ycsb::Memory memory = MemoryOf(options.open.executor);
  std::vector<Contestant> contestants;
  if (options.store) {
    const auto make = [&options](std::uint64_t items, std::uint64_t,
                                 double) -> std::unique_ptr<KvAdapter> {
      CreateOptions create;
      create.key_size = options.key_size;
      create.value_size = options.value_size;
      create.initial_capacity = items;
      return std::make_unique<StoreAdapter>(options.pool, create, options.open);
    };
    contestants.push_back({kStoreName, StoreAdapter::CapabilitiesOf(memory), make});
  }
  for (const std::string& name : options.peers) {
    const Peer& peer = FindPeer(name, memory);
    RequireItems(peer, options.key_size, options.value_size);
    const auto make = [&](std::uint64_t items, std::uint64_t batch, double fill) {
      return peer.make({.items = items,
                        .max_batch = batch,
                        .key_bytes = options.key_size,
                        .value_bytes = options.value_size,
                        .fill = fill,
                        .threads = options.open.threads});
    };
    contestants.push_back({name, peer.can, make});
  }
  contestants.insert(contestants.end(), options.others.begin(), options.others.end());
  if (contestants.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "neither the store nor a peer: nobody is left");
  }
  return contestants;
}

/// The phases of one batch size.
class Phases {
 public:
  Phases(const ContestOptions& options, const std::set<Kind>& measured, std::uint64_t batch,
         const std::vector<Contestant>& contestants, ThreadPool& threads, Staging& staging) {
    const PeerWorkload workload{
        options.records,    options.operations, batch,        options.key_size,
        options.value_size, options.theta,      options.seed, MemoryOf(options.open.executor)};
    std::set<Kind> kinds = measured;
    const bool warms = std::ranges::any_of(
        contestants, [](const Contestant& contestant) { return contestant.can.caches; });
    for (const Kind kind : measured) {
      if (const auto warm_up = WarmUpOf(kind); warms && warm_up) kinds.insert(*warm_up);
    }
    std::vector<ycsb::Version> contents;
    for (const Kind kind : kinds) {
      std::vector<ycsb::Version> after = contents;
      for (const bool split : {false, true}) {
        if (std::ranges::none_of(contestants, [&](const Contestant& contestant) {
              return PeerPhase::IsFor(kind, contestant.can) &&
                     PeerPhase::IsSplitFor(kind, contestant.can) == split;
            })) {
          continue;
        }
        after = contents;  // the same, in whatever order a batch has its operations
        auto phase = std::make_unique<PeerPhase>(workload, kind, split, threads, staging, after);
        items_ = std::max(items_, options.records + phase->new_records());
        phases_[{kind, split}] = std::move(phase);
      }
      contents = std::move(after);
    }
  }

  std::uint64_t items() const { return items_; }  ///< that there are at most

  /// The phase as a contestant can do it, or null.
  const PeerPhase* Find(Kind kind, const Capabilities& can) const {
    if (!PeerPhase::IsFor(kind, can)) return nullptr;
    return phases_.at({kind, PeerPhase::IsSplitFor(kind, can)}).get();
  }

 private:
  std::map<std::pair<Kind, bool>, std::unique_ptr<PeerPhase>> phases_;
  std::uint64_t items_ = 0;
};

/// All phases of one contestant, from an empty container on. @param store what ours was in the end
void RunContestant(const Contestant& contestant, const std::set<Kind>& kinds, const Phases& phases,
                   std::uint64_t batch, double fill, Figures& figures, json& store) {
  const std::unique_ptr<KvAdapter> adapter = contestant.make(phases.items(), batch, fill);
  const auto* const ours = dynamic_cast<const StoreAdapter*>(adapter.get());
  const Capabilities& can = contestant.can;
  phases.Find(Kind::kInsert, can)->Rehearse(*adapter, can);
  std::optional<Kind> warm;
  for (const Kind kind : kinds) {
    const PeerPhase* const phase = phases.Find(kind, can);
    if (phase == nullptr) continue;
    if (const auto warm_up = WarmUpOf(kind); can.caches && warm_up && warm_up != warm) {
      phases.Find(*warm_up, can)->Run(*adapter, can);
      adapter->LoadCaches();
      warm = warm_up;
    }
    const CacheStats before = ours != nullptr ? ours->Stats().cache : CacheStats{};
    const double carried = adapter->CarriedSeconds();
    const bool counts = kCountsPm && !adapter->Persistent().all.empty();
    if (counts) StartPmCounts(adapter->Persistent());
    const std::vector<double> seconds = phase->Run(*adapter, can);
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    Measured& measured = figures[{contestant.name, kind}];
    measured.operations = phase->operations();
    measured.carried = (adapter->CarriedSeconds() - carried) / sum;
    if (counts) measured.counts = ReadPmCounts();
    measured.mops.push_back(static_cast<double>(phase->operations()) / sum / 1e6);
    const std::size_t whole = std::min<std::size_t>(phase->rows() / batch, seconds.size());
    measured.latency.insert(measured.latency.end(), seconds.begin(),
                            seconds.begin() + static_cast<std::ptrdiff_t>(whole));
    if (ours != nullptr) measured.hit_rate = HitRate(before, ours->Stats().cache);
    if (kind == Kind::kUpdate || kind == Kind::kErase) phase->CheckAfterwards(*adapter);
  }
  if (ours != nullptr) store = StoreFacts(ours->Stats());
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
          {"caches", can.caches},
          {"builds_once", can.builds_once}};
}

/// What kernels did to persistent memory, an operation.
json PmFacts(const PmCounts& counts, std::uint64_t operations) {
  const auto each = [&](unsigned long long total) {
    return static_cast<double>(total) / static_cast<double>(operations);
  };
  json facts = {{"fences", each(counts.fences)}, {"fence_cycles", each(counts.fence_cycles)}};
  constexpr const char* kPlaces[] = {"slots", "values", "log"};
  constexpr const char* kAccesses[] = {"read", "written", "swapped"};
  for (std::size_t place = 0; place < PmCounts::kPlaces; ++place) {
    for (std::size_t access = 0; access < PmCounts::kAccesses; ++access) {
      facts[kPlaces[place]][kAccesses[access]] = {{"count", each(counts.count[place][access])},
                                                  {"bytes", each(counts.bytes[place][access])},
                                                  {"cycles", each(counts.cycles[place][access])}};
    }
  }
  return facts;
}

void AddRows(const std::vector<Contestant>& contestants, const std::set<Kind>& kinds,
             std::uint64_t batch, double fill, const Figures& figures, json& report) {
  for (const Kind kind : kinds) {
    for (const Contestant& contestant : contestants) {
      const auto found = figures.find({contestant.name, kind});
      if (found == figures.end()) continue;
      const Measured& measured = found->second;
      json row = {{"contestant", contestant.name},
                  {"workload", PeerPhase::NameOf(kind)},
                  {"batch", batch},
                  {"fill", fill},
                  {"operations", measured.operations},
                  {"mops", Median(measured.mops)},
                  {"mops_runs", measured.mops}};
      if (!contestant.can.builds_once || kind != Kind::kInsert) {
        row["latency_us_p50"] = Quantile(measured.latency, 0.5) * 1e6;
        row["latency_us_p99"] = Quantile(measured.latency, 0.99) * 1e6;
      }
      if (measured.hit_rate) row["hit_rate"] = *measured.hit_rate;
      if (measured.carried > 0) row["carried_share"] = measured.carried;
      if (measured.counts) row["pm"] = PmFacts(*measured.counts, measured.operations);
      report["rows"].push_back(std::move(row));
    }
  }
}

void AddLeftOut(const Contestant& contestant, const std::set<Kind>& kinds, json& report) {
  for (const Kind kind : kinds) {
    if (PeerPhase::IsFor(kind, contestant.can)) continue;
    report["left_out"].push_back({{"contestant", contestant.name},
                                  {"workload", PeerPhase::NameOf(kind)},
                                  {"why", "it has not the operations"}});
  }
}

}  // namespace

ExecutorKind ResolveExecutor(ExecutorKind executor) {
  if (executor == ExecutorKind::kAuto) {
    return GpuCount() > 0 ? ExecutorKind::kCuda : ExecutorKind::kCpu;
  }
  if (executor == ExecutorKind::kCuda && GpuCount() == 0) {
    throw Error(ErrorCode::kUnsupported, "--executor cuda: no CUDA device; use --executor cpu");
  }
  return executor;
}

ycsb::Memory MemoryOf(ExecutorKind executor) {
  return executor == ExecutorKind::kCuda ? ycsb::Memory::kDevice : ycsb::Memory::kHost;
}

void MeasureContest(const ContestOptions& wanted, json& report) {
  ContestOptions options = wanted;
  options.open.threads = ThreadsOf(options.open.threads);
  const std::vector<Contestant> contestants = MakeContestants(options);
  const std::uint64_t most = std::min(options.records, options.operations);
  for (const std::uint64_t batch : options.batches) {
    if (batch > 0 && batch <= most) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--batches {}: a batch has 1 to {} operations, the least of records "
                            "and operations",
                            batch, most));
  }
  std::set<Kind> kinds(options.kinds.begin(), options.kinds.end());
  kinds.insert(Kind::kInsert);
  for (const Contestant& contestant : contestants) {
    report["contestants"].push_back(CapabilitiesFacts(contestant));
    AddLeftOut(contestant, kinds, report);
  }
  ThreadPool threads(options.open.threads);
  Staging staging(MemoryOf(options.open.executor));
  for (const std::uint64_t batch : options.batches) {
    ShowProgress(fmt::format("batch {}: making operations", batch));
    const Phases phases(options, kinds, batch, contestants, threads, staging);
    for (const double fill : options.fills) {
      Figures figures;
      for (unsigned repeat = 1; repeat <= options.repeats; ++repeat) {
        for (const Contestant& contestant : contestants) {
          ShowProgress(fmt::format("batch {}, fill {}, repeat {}: {}", batch, fill, repeat,
                                   contestant.name));
          try {
            RunContestant(contestant, kinds, phases, batch, fill, figures, report["store"]);
          } catch (const Error& error) {
            throw Error(error.code(),
                        fmt::format("{}, batch {}: {}", contestant.name, batch, error.what()));
          }
        }
      }
      AddRows(contestants, kinds, batch, fill, figures, report);
    }
  }
  ShowProgress("");
}

}  // namespace gpm::bench
