#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/contest.h"
#include "bench/options.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "pm/thread_pool.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;
using ycsb::Memory;
using Kind = PeerPhase::Kind;

/// Those that there are, of which the first six are measured by default.
constexpr Kind kWorkloads[] = {Kind::kInsert, Kind::kFind,   Kind::kFindMissing, Kind::kC,
                               Kind::kA,      Kind::kUpdate, Kind::kB,           Kind::kD,
                               Kind::kF,      Kind::kErase};
constexpr std::size_t kDefaultWorkloads = 6;

struct PeersArguments {
  ContestOptions contest;
  bool no_store = false;
  std::vector<std::string> workloads;
  std::string json;

  PeersArguments() {
    contest.records = 1'000'000;
    contest.batches = {std::uint64_t{1} << 12, std::uint64_t{1} << 20};
  }
};

/// Who won each workload: the best of the rows of its batch and fill, and our store beside it.
void AddWins(json& report) {
  report["wins"] = json::array();
  for (const json& row : report.at("rows")) {
    const auto same = [&](const json& win) {
      return win.at("workload") == row.at("workload") && win.at("batch") == row.at("batch") &&
             win.at("fill") == row.at("fill");
    };
    auto win = std::ranges::find_if(report["wins"], same);
    if (win == report["wins"].end()) {
      report["wins"].push_back({{"workload", row.at("workload")},
                                {"batch", row.at("batch")},
                                {"fill", row.at("fill")},
                                {"mops", 0.0}});
      win = report["wins"].end() - 1;
    }
    if (row.at("contestant") == kStoreName) (*win)["gpmstore_mops"] = row.at("mops");
    if (row.at("mops") > win->at("mops")) {
      (*win)["winner"] = row.at("contestant");
      (*win)["mops"] = row.at("mops");
    }
  }
}

void PrintReport(const json& report) {
  fmt::print("{} records of {} + {} bytes, {} operations, theta {}, medians of {}\n",
             report["records"].get<std::uint64_t>(), report["key_size"].get<unsigned>(),
             report["value_size"].get<unsigned>(), report["operations"].get<std::uint64_t>(),
             report["theta"].get<double>(), report["repeats"].get<unsigned>());
  const json* before = nullptr;
  for (const json& win : report["wins"]) {
    if (before == nullptr || win["batch"] != before->at("batch") ||
        win["fill"] != before->at("fill")) {
      fmt::print("\n{:<21}", fmt::format("Mops/s, {}, fill {}", win["batch"].get<std::uint64_t>(),
                                         win["fill"].get<double>()));
      for (const json& contestant : report["contestants"]) {
        fmt::print("{:>17}", contestant["name"].get<std::string>());
      }
      fmt::print("{:>17}\n", "best");
    }
    before = &win;
    fmt::print("{:<21}", win["workload"].get<std::string>());
    for (const json& contestant : report["contestants"]) {
      const auto row = std::ranges::find_if(report["rows"], [&](const json& candidate) {
        return candidate["contestant"] == contestant["name"] &&
               candidate["batch"] == win["batch"] && candidate["fill"] == win["fill"] &&
               candidate["workload"] == win["workload"];
      });
      fmt::print("{:>17}", row == report["rows"].end()
                               ? "-"
                               : fmt::format("{:.2f}", (*row)["mops"].get<double>()));
    }
    fmt::print("{:>17}\n", win["winner"].get<std::string>());
  }
}

std::vector<std::string> NamesOf(std::span<const Kind> kinds) {
  std::vector<std::string> names;
  for (const Kind kind : kinds) names.emplace_back(PeerPhase::NameOf(kind));
  return names;
}

void Resolve(PeersArguments& arguments) {
  ContestOptions& contest = arguments.contest;
  contest.open.executor = ResolveExecutor(contest.open.executor);
  contest.open.threads = ThreadsOf(contest.open.threads);
  if (contest.operations == 0) contest.operations = contest.records;
  contest.store = !arguments.no_store;
  if (arguments.workloads.empty()) {
    contest.kinds.assign(kWorkloads, kWorkloads + kDefaultWorkloads);
  }
  for (const std::string& workload : arguments.workloads) {
    const auto kind = std::ranges::find_if(
        kWorkloads, [&](Kind known) { return PeerPhase::NameOf(known) == workload; });
    if (kind == std::end(kWorkloads)) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--workloads {}: there are {}", workload,
                                                           fmt::join(NamesOf(kWorkloads), ", ")));
    }
    contest.kinds.push_back(*kind);
  }
  const Memory memory = MemoryOf(contest.open.executor);
  if (contest.peers.empty()) {
    for (const std::string& name : PeerNames(memory)) {
      const Peer& peer = FindPeer(name, memory);
      if (peer.by_default && WhyNotItems(peer, contest.key_size, contest.value_size).empty()) {
        contest.peers.push_back(name);
      }
    }
  }
  std::erase(contest.peers, "none");
}

void RunPeers(PeersArguments arguments) {
  Resolve(arguments);
  const ContestOptions& contest = arguments.contest;
  json report = {{"executor", ExecutorName(contest.open.executor)},
                 {"records", contest.records},
                 {"operations", contest.operations},
                 {"key_size", contest.key_size},
                 {"value_size", contest.value_size},
                 {"theta", contest.theta},
                 {"seed", contest.seed},
                 {"threads", contest.open.threads},
                 {"repeats", contest.repeats},
                 {"contestants", json::array()},
                 {"rows", json::array()}};
  MeasureContest(contest, report);
  AddWins(report);
  FinishReport("peers", std::move(report), arguments.json, PrintReport);
}

}  // namespace

void AddPeersCommand(CLI::App& program) {
  auto arguments = std::make_shared<PeersArguments>();
  ContestOptions* const options = &arguments->contest;
  CLI::App* command = program.add_subcommand(
      "peers",
      "The store beside published tables, written from their papers (cuda), or beside other "
      "containers (cpu)");
  AddNumber(*command, "--records", &options->records, WholeNumber(1, (1ull << 32) - 2),
            "Items that are inserted");
  command->add_option("--operations", options->operations,
                      "Operations of each workload behind that; 0: as many as records");
  command->add_option("--batches", options->batches, "Operations of a batch, several sizes")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--key-size", options->key_size, "Bytes of a key")
      ->check(CLI::IsMember({4u, 8u, 32u, 128u}))
      ->capture_default_str();
  AddNumber(*command, "--value-size", &options->value_size, WholeNumber(1, 4096),
            "Bytes of a value");
  AddNumbers(*command, "--fill", &options->fills, NumberBetween(0.01, 1.0),
             "Shares of the slots that the items take, of a peer that does not grow; a run for "
             "each");
  command
      ->add_option_function<double>(
          "--cached",
          [options](double fraction) {
            CacheOptions& cache = options->open.cache;
            cache.directory = true;
            cache.refresh_interval = 0;
            cache.fraction = fraction;
          },
          "Share of the buckets of which the store caches values, as in `paper`; by default what a "
          "store does")
      ->check(NumberBetween(0.001, 1.0));
  command->add_option("--dealt-up-to", options->open.access.dealt_up_to,
                      "Bytes of the store's pool up to which a GPU deals accesses out, else puts "
                      "them in order; 0: as it does by default");
  command->add_flag("--ordering,!--no-ordering", options->open.access.by_address,
                    "The store deals accesses out, or puts them in order; else they are made as "
                    "they come");
  AddThetaOption(*command, &options->theta, "Skew of c, a, b, d and f");
  AddSeedOption(*command, &options->seed, "Seed of the choice of records");
  AddRepeatsOption(*command, &options->repeats, "Of which medians are given");
  command
      ->add_option("--peers", options->peers,
                   fmt::format("Measured beside the store, or none; on cuda: {}; on cpu: {}; by "
                               "default those that can have such items",
                               fmt::join(PeerNames(Memory::kDevice), ", "),
                               fmt::join(PeerNames(Memory::kHost), ", ")))
      ->delimiter(',');
  command->add_flag("--no-store", arguments->no_store, "Peers alone, beside each other");
  command
      ->add_option("--workloads", arguments->workloads,
                   fmt::format("Those that are measured, of {}; by default the first {}",
                               fmt::join(NamesOf(kWorkloads), ", "), kDefaultWorkloads))
      ->delimiter(',');
  AddExecutorOptions(*command, &options->open.executor, &options->open.threads,
                     "Whose peers are measured");
  AddPoolOption(*command, &options->pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunPeers(*arguments); });
}

}  // namespace gpm::bench
