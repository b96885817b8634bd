#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/operations.h"
#include "bench/options.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "pm/thread_pool.h"
#include "support/option_checks.h"
#include "ycsb/buffer.h"

namespace gpm::bench {
namespace {

using ycsb::Buffer;
using ycsb::Memory;

struct CpuOptions {
  std::uint64_t records = 1'000'000;
  std::uint64_t operations = 0;  ///< 0: as many as records
  std::uint64_t batch = 4096;
  std::uint32_t value_size = 128;
  unsigned threads = ThreadsOf(0);
  unsigned runs = 3;
  double theta = 0.99;
  std::uint64_t seed = 1;
  std::string peer = "libcuckoo";
  std::string pool;
  std::string json;
};

/// The arrays that all phases of all adapters share: same memory, same page faults.
struct Workspace {
  Workspace(std::uint64_t n, std::uint32_t value_size)
      : values(Memory::kHost, n * value_size),
        found(Memory::kHost, n * value_size),
        results(Memory::kHost, n * sizeof(Result)) {}
  Buffer values;
  Buffer found;
  Buffer results;
};

std::vector<Phase> MakePhases(const CpuOptions& options) {
  const Records loaded{0, options.records};
  const Records missing{options.records, options.records};
  const std::uint64_t n = options.operations;
  const auto keys = [&](Choice choice, Records records, std::uint64_t count, std::uint64_t stream) {
    return MakeKeys(choice, records, count, options.theta, options.seed * 16 + stream);
  };
  std::vector<Phase> phases;
  phases.push_back({"insert", Op::kInsert, keys(Choice::kInOrder, loaded, options.records, 0)});
  phases.push_back({"find-zipf", Op::kFind, keys(Choice::kZipf, loaded, n, 1)});
  phases.push_back({"find-uniform", Op::kFind, keys(Choice::kUniform, loaded, n, 2)});
  phases.push_back(
      {"find-missing", Op::kFind, keys(Choice::kUniform, missing, n, 3), Result::kNotFound});
  phases.push_back({"update-zipf", Op::kUpdate, keys(Choice::kZipf, loaded, n, 4), Result::kOk, 1});
  return phases;
}

/// Runs one phase, `batch` operations at once, and checks what it did. @return {seconds, checksum}
std::pair<double, std::uint64_t> RunPhase(KvAdapter& adapter, const Phase& phase,
                                          std::uint64_t batch, std::uint32_t value_size,
                                          Workspace& space) {
  const std::uint64_t n = phase.keys.size();
  Batch arrays;
  arrays.op = phase.op;
  arrays.keys = std::as_bytes(std::span(phase.keys));
  arrays.results = space.results.as<Result>().first(n);
  if (phase.op == Op::kFind) {
    space.found.Zero();
    arrays.found = space.found.bytes().first(n * value_size);
  } else {
    FillValues(phase.keys, phase.version, value_size, space.values.bytes());
    arrays.values = space.values.bytes().first(n * value_size);
  }
  const std::vector<double> seconds = SecondsOfBatches(adapter, arrays, batch);
  const std::uint64_t checksum = Verify(phase, value_size, arrays.results, arrays.found);
  return {std::accumulate(seconds.begin(), seconds.end(), 0.0), checksum};
}

struct Outcome {
  std::map<std::string, std::vector<double>> mops;  ///< by phase, one entry a run
  std::map<std::string, std::uint64_t> checksums;   ///< by phase; the same in every run
};

/// One run of all phases, and a find of what was updated, which is not timed.
void RunAll(KvAdapter& adapter, const std::vector<Phase>& phases, const std::string& who,
            std::uint64_t batch, std::uint32_t value_size, Workspace& space, Outcome& outcome) {
  for (const Phase& phase : phases) {
    ShowProgress(fmt::format("{}: {}", who, phase.name));
    const auto [seconds, checksum] = RunPhase(adapter, phase, batch, value_size, space);
    outcome.mops[phase.name].push_back(static_cast<double>(phase.keys.size()) / seconds / 1e6);
    outcome.checksums[phase.name] = checksum;
  }
  Phase written = phases.back();
  written.name = "find-updated";
  written.op = Op::kFind;
  outcome.checksums[written.name] = RunPhase(adapter, written, batch, value_size, space).second;
}

nlohmann::json MakeReport(const CpuOptions& options, const std::vector<Phase>& phases,
                          const StoreStats& stats, const Outcome& ours, const Outcome& peer) {
  nlohmann::json report = {{"store", StoreFacts(stats)},
                           {"records", options.records},
                           {"operations", options.operations},
                           {"threads", options.threads},
                           {"batch", options.batch},
                           {"runs", options.runs},
                           {"theta", options.theta},
                           {"seed", options.seed},
                           {"peer", options.peer},
                           {"phases", nlohmann::json::array()}};
  for (const Phase& phase : phases) {
    const std::vector<double>& runs = ours.mops.at(phase.name);
    nlohmann::json row = {{"phase", phase.name},
                          {"operations", phase.keys.size()},
                          {"checksum", ours.checksums.at(phase.name)},
                          {"gpmstore_mops", Median(runs)},
                          {"gpmstore_mops_runs", runs}};
    if (!peer.mops.empty()) {
      const std::vector<double>& peer_runs = peer.mops.at(phase.name);
      row["peer_mops"] = Median(peer_runs);
      row["peer_mops_runs"] = peer_runs;
      row["ratio"] = Median(runs) / Median(peer_runs);
    }
    report["phases"].push_back(std::move(row));
  }
  return report;
}

void PrintReport(const nlohmann::json& report) {
  const std::string peer = report["peer"];
  const bool with_peer = peer != "none";
  fmt::print(
      "{} records of {} + {} bytes, {} operations, {} threads, batch {}, {}, medians of {}\n\n",
      report["records"].get<std::uint64_t>(), report["store"]["key_size"].get<unsigned>(),
      report["store"]["value_size"].get<unsigned>(), report["operations"].get<std::uint64_t>(),
      report["threads"].get<unsigned>(), report["batch"].get<std::uint64_t>(),
      report["store"]["medium"].get<std::string>(), report["runs"].get<unsigned>());
  fmt::print("{:<14}{:>12}{:>15}{:>12}\n", "Mops/s", "gpmstore", with_peer ? peer : "",
             with_peer ? "ratio" : "");
  std::string ratios;
  for (const nlohmann::json& row : report["phases"]) {
    const std::string name = row["phase"];
    fmt::print("{:<14}{:>12.2f}", name, row["gpmstore_mops"].get<double>());
    if (with_peer) {
      const double ratio = row["ratio"];
      fmt::print("{:>15.2f}{:>12.2f}", row["peer_mops"].get<double>(), ratio);
      ratios += fmt::format("{}{} {:.2f}", ratios.empty() ? "" : ", ", name, ratio);
    }
    fmt::print("\n");
  }
  if (with_peer) fmt::print("\ngpmstore / {}: {}\n", peer, ratios);
}

void RunCpu(CpuOptions options) {
  const Peer* const measured =
      options.peer == "none" ? nullptr : &FindPeer(options.peer, Memory::kHost);
  if (measured != nullptr) RequireItems(*measured, 8, options.value_size);
  if (options.operations == 0) options.operations = options.records;
  ShowProgress("making keys");
  const std::vector<Phase> phases = MakePhases(options);
  Workspace space(std::max(options.records, options.operations), options.value_size);

  CreateOptions create;
  create.value_size = options.value_size;
  create.initial_capacity = options.records;
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.threads = options.threads;

  Outcome ours;
  Outcome peer;
  StoreStats stats;
  for (unsigned run = 1; run <= options.runs; ++run) {
    const std::string turn = fmt::format("run {} of {}", run, options.runs);
    {
      StoreAdapter adapter(options.pool, create, open);
      RunAll(adapter, phases, turn + ", gpmstore", options.batch, options.value_size, space, ours);
      stats = adapter.Stats();
    }
    if (measured != nullptr) {
      // All operations at once: threads are given their share but once.
      const std::uint64_t all = std::max(options.records, options.operations);
      const auto adapter = measured->make({.items = options.records,
                                           .max_batch = all,
                                           .value_bytes = options.value_size,
                                           .threads = options.threads});
      RunAll(*adapter, phases, turn + ", " + options.peer, all, options.value_size, space, peer);
    }
  }
  ShowProgress("");
  if (measured != nullptr && ours.checksums != peer.checksums) {
    throw Error(ErrorCode::kDamaged, "gpmstore and " + options.peer + " gave different results");
  }

  FinishReport("cpu", MakeReport(options, phases, stats, ours, peer), options.json, PrintReport);
}

}  // namespace

void AddCpuCommand(CLI::App& program) {
  auto options = std::make_shared<CpuOptions>();
  CLI::App* command = program.add_subcommand(
      "cpu", "The store on the cpu executor against another container: insert, find, update");
  AddNumber(*command, "--records", &options->records, WholeNumber(1, 1ull << 40), "Items loaded");
  command->add_option("--operations", options->operations,
                      "Operations of each phase after the load; 0: as many as records");
  AddNumber(*command, "--threads", &options->threads, WholeNumber(1, 1024),
            "Threads, of the store and of the peer");
  AddNumber(*command, "--batch", &options->batch, WholeNumber(1, 1u << 30),
            "Operations of one batch of the store");
  AddNumber(*command, "--value-size", &options->value_size, WholeNumber(1, kMaxValueBytes),
            "Bytes of a value; a peer is compiled for 128");
  AddNumber(*command, "--runs", &options->runs, WholeNumber(1, 1000),
            "Runs, of which medians are given");
  AddThetaOption(*command, &options->theta, "Skew of the Zipfian choice of records");
  AddSeedOption(*command, &options->seed, "Seed of the choice of records");
  command
      ->add_option("--peer", options->peer,
                   fmt::format("Measured beside the store: {}, or none",
                               fmt::join(PeerNames(Memory::kHost), ", ")))
      ->capture_default_str();
  AddPoolOption(*command, &options->pool);
  AddJsonOption(*command, &options->json);
  command->callback([options] { RunCpu(*options); });
}

}  // namespace gpm::bench
