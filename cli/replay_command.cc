#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/common.h"
#include "cli/work_pool.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"
#include "ycsb/replay.h"
#include "ycsb/report.h"
#include "ycsb/trace.h"

namespace gpm::cli {
namespace {

struct ReplayArguments {
  std::string load;
  std::string run;
  std::string results;
  std::size_t batch = 4096;
  std::string pool;
  std::string json;
  OpenArguments open;
  CreateArguments create;
};

UsedPaths Used(const ReplayArguments& arguments) {
  return {{"--load", arguments.load}, {"--run", arguments.run}, {"--pool", arguments.pool}};
}

/// The results replace what is in their file, which must be nothing else's.
void CheckResultsFile(const ReplayArguments& arguments) {
  UsedPaths used = Used(arguments);
  used.push_back({"--json", arguments.json});
  RequireOtherFile("--results", arguments.results, used);
  RequireWritable("--results", arguments.results);
}

/// Inserts of the traces, for which a new pool is sized.
std::uint64_t CountInserts(const ycsb::Trace& trace) {
  return static_cast<std::uint64_t>(
      std::count_if(trace.lines().begin(), trace.lines().end(),
                    [](const ycsb::TraceLine& line) { return line.op == Op::kInsert; }));
}

int RunReplay(ReplayArguments& arguments) {
  if (arguments.load.empty() && arguments.run.empty()) {
    RefuseArgument("replay needs a trace: --load FILE, --run FILE or both");
  }
  if (arguments.results == "-" && arguments.json == "-") {
    RefuseArgument("--results - and --json -: only one of them can be the standard output");
  }
  CheckResultsFile(arguments);
  if (Given(arguments.open.threads_option) && arguments.open.executor == "cuda") {
    RefuseArgument("--threads has no effect: executor cuda has none");
  }
  // Everything is read before anything is created or changed.
  struct Part {
    const char* name;
    ycsb::Trace trace;
    ycsb::PhaseReport report;
  };
  std::vector<Part> parts;
  if (!arguments.load.empty()) parts.push_back({"load", ycsb::Trace::Read(arguments.load), {}});
  if (!arguments.run.empty()) {
    const ycsb::Trace* const load = parts.empty() ? nullptr : &parts.front().trace;
    parts.push_back({"run", ycsb::Trace::Read(arguments.run, load), {}});
  }

  CreateOptions create = arguments.create.Options();
  create.value_size = 1;
  for (const Part& part : parts) {
    create.value_size =
        std::max(create.value_size, static_cast<std::uint32_t>(part.trace.longest_value()));
    if (arguments.create.initial_capacity_option->count() == 0) {
      create.initial_capacity += CountInserts(part.trace);
    }
  }

  const OpenOptions open = arguments.open.Options();
  WorkPool pool(arguments.pool, !arguments.pool.empty(), open.executor);
  const auto require_fit = [&](std::uint32_t key_size, std::uint32_t value_size) {
    for (const Part& part : parts) ycsb::RequireFit(part.trace, key_size, value_size);
  };
  if (!pool.existed()) require_fit(create.key_size, create.value_size);
  const ShardOptions shards = arguments.create.Shards(open.executor);
  AnyStore store =
      pool.existed() ? pool.OpenAny(open, shards) : pool.CreateAny(create, open, shards);
  arguments.create.RequireDevicesEffect(store.Stats().executor);
  if (pool.existed()) {
    const StoreStats stats = store.Stats();
    arguments.create.RequireMatch(arguments.pool, stats);
    require_fit(stats.key_size, stats.value_size);
  }
  const bool results_to_output = arguments.results == "-";
  std::ofstream results;
  const auto require_results = [&] {
    if (!results) {
      throw Error(ErrorCode::kIo, fmt::format("{}: the results can't be written: {}",
                                              arguments.results, std::strerror(errno)));
    }
  };
  if (!arguments.results.empty() && !results_to_output) {
    results.open(arguments.results, std::ios::binary);
  }
  require_results();
  ycsb::ReplayOptions options;
  options.batch_lines = arguments.batch;
  if (results.is_open()) options.results = &results;
  if (results_to_output) options.results = &std::cout;
  {
    Progress progress;
    for (Part& part : parts) {
      options.progress = [&](std::uint64_t done, std::uint64_t total) {
        progress.Show(part.name, done, total);
      };
      part.report = ycsb::Replay(store.target(), part.trace, options);
    }
  }
  if (results.is_open()) results.close();
  require_results();
  const StoreStats stats = store.Stats();
  store.Close();

  nlohmann::ordered_json json;
  json["command"] = "replay";
  json["batch"] = arguments.batch;
  json["pool"] = pool.name();
  std::string text =
      fmt::format("pool {}\n", pool.name()) + ycsb::StoreTable(stats, pool.removed_at_end());
  int status = kExitOk;
  for (const Part& part : parts) {
    json[part.name] = ycsb::ToJson(part.report);
    text += ycsb::PhaseTable(part.name, part.report);
    status = std::max(status, ReportNoSpace(part.name, part.report));
  }
  json["store"] = ycsb::ToJson(stats);
  if (arguments.json != "-" && !results_to_output) Print(text);
  WriteJson(arguments.json, json);
  return status;
}

}  // namespace

void AddReplayCommand(CLI::App& app, Commands& commands) {
  CLI::App* replay = app.add_subcommand("replay", "Apply recorded operations to a pool");
  const auto arguments = std::make_shared<ReplayArguments>();
  ReplayArguments& a = *arguments;
  replay->add_option("--load", a.load, "Trace applied first, plain or gzip");
  replay->add_option("--run", a.run, "Trace applied then, plain or gzip");
  replay->add_option(
      "--results", a.results,
      "Write one line for each trace line of both files, in order: operation, key "
      "as written, outcome (ok, not-found, exists, no-space) and, for a READ that "
      "is ok, the value; separated by tabs. - for the standard output, where they then "
      "stand alone");
  AddBatchOption(*replay, a.batch, "Trace lines of a batch; results do not depend on it");
  replay->add_option(
      "--pool", a.pool,
      "Pool file, or folder of shards: created and kept, or used if it exists (its values must "
      "have as many bytes as the traces'); default: a temporary pool");
  a.create.AddKeySizeTo(*replay);
  a.create.AddLayoutTo(*replay);
  a.create.AddShardsTo(*replay);
  a.create.AddDevicesTo(*replay);
  a.create.initial_capacity_option->description(
      "Items that a new pool holds without resizing; default: the traces' inserts; 0: it starts "
      "small");
  a.open.AddTo(*replay);
  AddJsonOption(*replay, a.json, [&a] { return Used(a); });
  replay->footer(
      "Traces are what YCSB's BasicDB prints, such as\n"
      "  INSERT usertable user123 [ field0=VALUE ]\n"
      "  READ usertable user123 [ <all fields>]\n"
      "or bare: INSERT 123, READ 123, UPDATE 123, DELETE 123. A key of 8 bytes is the number\n"
      "that ends it, of another size all of its text; all have the same prefix.\n"
      "A new pool's values have the size of the longest one in the traces; shorter ones are "
      "padded\n"
      "with zero bytes, which are cut when values are written out.\n\n"
      "Examples:\n"
      "  gpmstore replay --load a.load.txt.gz --run a.run.txt.gz --results out.tsv\n"
      "  gpmstore replay --run more.txt --pool /dev/shm/p --batch 65536 --json -");
  commands.push_back({replay, [arguments] { return RunReplay(*arguments); }});
}

}  // namespace gpm::cli
