#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/common.h"
#include "cli/crash_child.h"
#include "cli/crash_rounds.h"
#include "pm/error.h"

namespace gpm::cli {
namespace {

constexpr const char* kChildCommand = "crash-test-child";

/// Of the command, and of the child that it runs.
struct CrashArguments {
  std::string pool;
  std::string executor = "cpu";
  std::uint64_t seed = 1;
  unsigned threads = 2;
  CreateArguments create;
  // Of the command.
  std::uint64_t rounds = 20;
  std::uint64_t longest_ms = 400;
  std::uint64_t rounds_per_pool = 8;
  std::string json;
  // Of the child.
  CrashRound round;
  std::uint64_t session_batches = 0;

  void AddTo(CLI::App& app);
  ExecutorKind Executor() const {
    return executor == "cuda" ? ExecutorKind::kCuda : ExecutorKind::kCpu;
  }
  std::vector<std::string> ForChild(const CrashRound& of, std::uint64_t batches) const;
};

void CrashArguments::AddTo(CLI::App& app) {
  app.add_option("--pool", pool, "Pool file; none may be there yet")->required();
  app.add_option("--seed", seed, "Of the operations and of the times of the kills")
      ->capture_default_str();
  app.add_option("--executor", executor, "What runs batches: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads that run batches at once")
      ->check(CLI::Range(1u, kMaxCrashThreads))
      ->capture_default_str();
  create.AddSizesTo(app);
  create.AddLayoutTo(app);
}

std::vector<std::string> CrashArguments::ForChild(const CrashRound& of,
                                                  std::uint64_t batches) const {
  return {"gpmstore",
          kChildCommand,
          "--pool=" + pool,
          "--executor=" + executor,
          "--geometry=" + create.geometry,
          fmt::format("--key-size={}", create.key_size),
          fmt::format("--value-size={}", create.value_size),
          fmt::format("--initial-capacity={}", create.initial_capacity),
          fmt::format("--seed={}", of.seed),
          fmt::format("--threads={}", of.threads),
          fmt::format("--round={}", of.number),
          fmt::format("--age={}", of.age),
          fmt::format("--session-batches={}", batches)};
}

int RunChild(const CrashArguments& arguments) {
  CrashChildPlan plan;
  plan.pool = arguments.pool;
  plan.round = arguments.round;
  plan.round.seed = arguments.seed;
  plan.round.threads = arguments.threads;
  plan.session_batches = arguments.session_batches;
  plan.create = arguments.create.Options();
  plan.executor = arguments.Executor();
  RunCrashChild(plan);
}

/// What the children will do, once: so what can't be done is refused before anything is killed.
/// @return the top level of a new pool
std::uint32_t TryPool(const CrashOptions& options) {
  OpenOptions open;
  open.executor = options.executor;
  Store store = Store::Create(options.pool, options.create, open);
  const std::uint32_t top_level = store.Stats().top_level;
  store.Close();
  std::filesystem::remove(options.pool);
  return top_level;
}

nlohmann::ordered_json ToJson(const CrashTotals& totals) {
  nlohmann::ordered_json json;
  std::uint64_t kills = 0;
  for (const std::uint64_t of_phase : totals.kills) kills += of_phase;
  json["rounds"] = totals.rounds;
  json["kills"] = kills;
  json["kills_in_creation"] = totals.kills[CrashTotals::kCreation];
  json["kills_in_opening"] = totals.kills[CrashTotals::kOpening];
  json["kills_in_running"] = totals.kills[CrashTotals::kRunning];
  json["kills_in_closing"] = totals.kills[CrashTotals::kClosing];
  json["pools"] = totals.pools;
  json["pools_unfinished"] = totals.unfinished_pools;
  json["pools_crashed_in_inserts"] = totals.half_inserted_pools;
  json["pools_crashed_in_resizes"] = totals.resizing_pools;
  json["batches_acknowledged"] = totals.batches;
  json["operations_acknowledged"] = totals.operations;
  json["batches_in_flight"] = totals.batches_in_flight;
  json["keys_compared"] = totals.keys_compared;
  json["slots_cleared"] = totals.slots_cleared;
  json["resizes_continued"] = totals.resizes_continued;
  json["resizes"] = totals.resizes;
  return json;
}

int RunCrashTest(const CrashArguments& arguments) {
  CrashOptions options;
  options.pool = arguments.pool;
  options.create = arguments.create.Options();
  options.executor = arguments.Executor();
  options.seed = arguments.seed;
  options.rounds = arguments.rounds;
  options.threads = arguments.threads;
  options.longest = std::chrono::milliseconds(arguments.longest_ms);
  options.rounds_per_pool = arguments.rounds_per_pool;
  options.child_arguments = [&](const CrashRound& round, std::uint64_t batches) {
    return arguments.ForChild(round, batches);
  };
  options.first_top_level = TryPool(options);

  CrashRounds rounds(options);
  std::vector<std::string> defects;
  {
    Progress progress;
    try {
      for (std::uint64_t done = 0; done < options.rounds; ++done) {
        progress.Show("rounds", done, options.rounds);
        rounds.Run();
      }
    } catch (const CrashViolation& violation) {
      defects = violation.texts;
    }
  }
  std::string text;
  for (const std::string& defect : defects) text += fmt::format("defect: {}\n", defect);
  nlohmann::ordered_json json = ToJson(rounds.totals());
  for (const auto& [name, value] : json.items()) {
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    text += fmt::format("{:<26}{}\n", words, value.get<std::uint64_t>());
  }
  if (defects.empty()) {
    std::filesystem::remove(options.pool);
  } else {
    text += fmt::format("FAILED with --seed {} in round {}; the pool is kept: {}\n", options.seed,
                        rounds.number(), options.pool);
  }
  if (arguments.json != "-") Print(text);
  json["seed"] = options.seed;
  json["defects"] = defects;
  WriteJson(arguments.json, json);
  return defects.empty() ? kExitOk : kExitNo;
}

}  // namespace

void AddCrashTestCommand(CLI::App& app, Commands& commands) {
  {
    CLI::App* test = app.add_subcommand(
        "crash-test", "Kill a process in the middle of its batches, and check what it leaves");
    const auto arguments = std::make_shared<CrashArguments>();
    CrashArguments& a = *arguments;
    test->add_option("--rounds", a.rounds, "Kills")
        ->check(CLI::Range(std::uint64_t{1}, kMaxCrashRounds))
        ->capture_default_str();
    a.AddTo(*test);
    test->add_option("--longest", a.longest_ms,
                     "Milliseconds from opening the pool to the kill, at most")
        ->check(CLI::Range(1u, 60'000u))
        ->capture_default_str();
    test->add_option("--rounds-per-pool", a.rounds_per_pool,
                     "Rounds after which a new pool takes the place of the old one, so that it is "
                     "created and resized again")
        ->check(CLI::Range(std::uint64_t{1}, kMaxCrashRounds))
        ->capture_default_str();
    AddJsonOption(*test, a.json);
    test->footer(
        "Each round starts a process that opens (or creates) the pool and runs batches of mixed\n"
        "operations from several threads, and reports each batch that was acknowledged. It is\n"
        "killed (SIGKILL) at a random moment: while it creates, opens, recovers or closes the\n"
        "pool, or runs batches and resizes. Then the pool is checked, every key is compared with\n"
        "what the acknowledged batches allow, before recovery and after it, and the next round\n"
        "goes on with the same pool. The seed replays operations and times, not the interleaving.\n"
        "Exit status 1 when a promise was broken; then the pool is kept, else it is removed.\n\n"
        "Examples:\n"
        "  gpmstore crash-test --rounds 100 --seed 7 --pool /dev/shm/p\n"
        "  gpmstore crash-test --pool /dev/shm/p --executor cuda --key-size 32 --value-size 8");
    commands.push_back({test, [arguments] { return RunCrashTest(*arguments); }});
  }
  {
    CLI::App* child = app.add_subcommand(kChildCommand, "What crash-test runs and kills");
    child->group("");  // not shown
    const auto arguments = std::make_shared<CrashArguments>();
    CrashArguments& a = *arguments;
    a.AddTo(*child);
    child->add_option("--round", a.round.number);
    child->add_option("--age", a.round.age);
    child->add_option("--session-batches", a.session_batches);
    commands.push_back({child, [arguments] { return RunChild(*arguments); }});
  }
}

}  // namespace gpm::cli
