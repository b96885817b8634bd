#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/contest.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/search_bench.h"
#include "bench/search_contest.h"
#include "bench/search_writes.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct SearchArguments {
  SearchBenchOptions bench;
  std::uint64_t batch = std::uint64_t{1} << 12;  ///< operations of a round of a mix
  bool no_store = false;
  std::vector<std::uint64_t> queries = SearchContestOptions{}.queries;
  std::vector<std::string> peers;
  std::string json;
};

/// @throws Error(kInvalidArgument), before anything is measured
void Check(SearchArguments& arguments) {
  if (arguments.batch > arguments.bench.records) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--batch {}: more operations than the {} items of --records, of which "
                            "a round changes each once at most",
                            arguments.batch, arguments.bench.records));
  }
  arguments.bench.open.executor = ResolveExecutor(arguments.bench.open.executor);
  const std::vector<std::string> names =
      SearchingPeers(arguments.bench.open.executor, arguments.bench.value_size);
  if (arguments.peers.empty()) arguments.peers = names;
  if (arguments.peers == std::vector<std::string>{"none"}) arguments.peers.clear();
  if (arguments.no_store && arguments.peers.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--no-store without a peer: nobody is left");
  }
  for (const std::string& name : arguments.peers) {
    if (std::ranges::find(names, name) != names.end()) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--peers: {} is none that searches by attributes on executor {}, in values of "
                    "{} bytes; there are: {}",
                    name, ExecutorName(arguments.bench.open.executor), arguments.bench.value_size,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
}

void RunSearch(SearchArguments& arguments) {
  Check(arguments);
  json report = {{"batch", arguments.batch}, {"searches", json::array()}};
  if (!arguments.no_store) {
    report.update(MeasureSearches(arguments.bench));
    report["writes"] = MeasureWritesBesideIndex(arguments.bench);
  }
  report.update(MeasureSearchContest({.records = arguments.bench.records,
                                      .value_size = arguments.bench.value_size,
                                      .batch = arguments.batch,
                                      .repeats = arguments.bench.repeats,
                                      .executor = arguments.bench.open.executor,
                                      .threads = arguments.bench.open.threads,
                                      .store = !arguments.no_store,
                                      .peers = arguments.peers,
                                      .queries = arguments.queries}));
  FinishReport("search", std::move(report), arguments.json, [&](const json& made) {
    if (!arguments.no_store) {
      PrintSearches(made);
      PrintWritesBesideIndex(made.at("writes"));
    }
    PrintSearchContest(made);
  });
}

}  // namespace

void AddSearchCommand(CLI::App& program) {
  auto arguments = std::make_shared<SearchArguments>();
  SearchBenchOptions& bench = arguments->bench;
  CLI::App* command = program.add_subcommand(
      "search", "Searches by attributes, with and without an index, and beside writes");
  AddNumber(*command, "--records", &bench.records, WholeNumber(1000, 1ull << 32), "Items");
  AddNumber(*command, "--batch", &arguments->batch, WholeNumber(10, 1u << 24),
            "Operations of a round of a mix, no more than items");
  AddRepeatsOption(*command, &bench.repeats, "Of each search, and rounds of each mix");
  command
      ->add_option("--peers", arguments->peers,
                   "Measured beside the store, or none; by default those that search by attributes")
      ->delimiter(',');
  command->add_flag("--no-store", arguments->no_store, "Peers alone");
  AddNumbers(*command, "--queries", &arguments->queries, WholeNumber(1, 1u << 26),
             "Searches of one match each, at once, of store and peers");
  AddNumber(*command, "--value-size", &bench.value_size, WholeNumber(16, kMaxValueBytes),
            "Bytes of a value");
  AddExecutorOptions(*command, &bench.open.executor, &bench.open.threads);
  AddPoolOption(*command, &bench.pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunSearch(*arguments); });
}

}  // namespace gpm::bench
