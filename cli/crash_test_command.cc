#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>

#include "cli/any_store.h"
#include "cli/common.h"
#include "cli/crash/answers.h"
#include "cli/crash/child.h"
#include "cli/crash/jobs.h"
#include "cli/crash/snapshot_check.h"
#include "cli/out_of_memory.h"
#include "gpmstore/error.h"
#include "pm/mapping.h"
#include "support/option_checks.h"
#include "support/signals.h"

namespace gpm::cli {
namespace {

constexpr const char* kChildCommand = "crash-test-child";

/// Of the command, and of the child that it runs.
struct CrashArguments {
  std::string pool;
  std::string executor = "cpu";
  std::uint64_t seed = 1;
  unsigned threads = 2;
  unsigned tickets = 2;
  std::size_t max_batch = 4096;
  CreateArguments create;
  // Of the command.
  std::uint64_t rounds = 20;
  unsigned jobs = 1;
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
  CrashOptions Options() const;
  std::vector<std::string> ForChild(const CrashOptions& options, const CrashRound& of,
                                    std::uint64_t batches) const;
  /// The command line that replays the rounds of a job that failed.
  std::string Replay(const CrashFailure& failure) const;
};

void CrashArguments::AddTo(CLI::App& app) {
  app.add_option("--pool", pool,
                 "Pool file, with --shards folder; it may not be there yet, nor POOL.snapshots")
      ->required();
  app.add_option("--seed", seed, "Of the operations and of the times of the kills")
      ->check(WholeNumber())
      ->capture_default_str();
  app.add_option("--executor", executor, "What runs batches: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", threads,
                 "Threads that start batches, on executor cuda each on a stream of its own")
      ->check(WholeNumber(1, kMaxCrashThreads))
      ->capture_default_str();
  app.add_option("--tickets", tickets, "Batches that each of them has in flight")
      ->check(WholeNumber(1, kMaxCrashTickets))
      ->capture_default_str();
  app.add_option("--max-batch", max_batch, "Operations of a batch, at most")
      ->check(WholeNumber(1, kMaxCrashBatch))
      ->capture_default_str();
  create.AddShardsTo(app);
  create.AddSizesTo(app);
  create.AddLayoutTo(app);
}

CrashOptions CrashArguments::Options() const {
  CrashOptions options;
  options.pool = pool;
  options.create = create.Options();
  options.shards = create.shards;
  options.executor = Executor();
  options.seed = seed;
  options.rounds = rounds;
  options.threads = threads;
  options.tickets = tickets;
  options.max_batch = max_batch;
  options.longest = std::chrono::milliseconds(longest_ms);
  options.rounds_per_pool = rounds_per_pool;
  options.child_arguments = [this](const CrashOptions& of_job, const CrashRound& of,
                                   std::uint64_t batches) { return ForChild(of_job, of, batches); };
  return options;
}

std::vector<std::string> CrashArguments::ForChild(const CrashOptions& options, const CrashRound& of,
                                                  std::uint64_t batches) const {
  std::vector<std::string> words = {"gpmstore",
                                    kChildCommand,
                                    "--pool=" + options.pool,
                                    "--executor=" + executor,
                                    "--geometry=" + create.geometry,
                                    fmt::format("--key-size={}", create.key_size),
                                    fmt::format("--value-size={}", create.value_size),
                                    fmt::format("--initial-capacity={}", create.initial_capacity),
                                    fmt::format("--seed={}", of.seed),
                                    fmt::format("--threads={}", of.threads),
                                    fmt::format("--tickets={}", of.tickets),
                                    fmt::format("--max-batch={}", of.max_batch),
                                    fmt::format("--round={}", of.number),
                                    fmt::format("--age={}", of.age),
                                    fmt::format("--session-batches={}", batches)};
  if (create.shards > 0) words.push_back(fmt::format("--shards={}", create.shards));
  return words;
}

std::string CrashArguments::Replay(const CrashFailure& failure) const {
  return fmt::format(
      "gpmstore crash-test --pool {}.replay --executor {} --seed {} --rounds {} --threads {} "
      "--tickets {} "
      "--max-batch {} --longest {} --rounds-per-pool {} --geometry {} --key-size {} "
      "--value-size {} --initial-capacity {}{}",
      pool, executor, failure.seed, failure.rounds, threads, tickets, max_batch, longest_ms,
      rounds_per_pool, create.geometry, create.key_size, create.value_size, create.initial_capacity,
      create.shards > 0 ? fmt::format(" --shards {}", create.shards) : "");
}

int RunChild(const CrashArguments& arguments) {
  CrashChildPlan plan;
  plan.pool = arguments.pool;
  plan.round = arguments.round;
  plan.round.seed = arguments.seed;
  plan.round.threads = arguments.threads;
  plan.round.tickets = arguments.tickets;
  plan.round.max_batch = arguments.max_batch;
  plan.round.key_size = arguments.create.key_size;
  plan.round.value_size = arguments.create.value_size;
  plan.round.shards = arguments.create.shards;
  plan.round.scopes = HasScopes(arguments.Executor(), arguments.create.shards);
  plan.session_batches = arguments.session_batches;
  plan.create = arguments.create.Options();
  plan.open = MakeCrashOpening(plan.round);
  plan.open.executor = arguments.Executor();
  try {
    RunCrashChild(plan);
  } catch (const std::exception& error) {
    std::_Exit(ReportError(error));
  }
}

/// What the children will do, once: so what can't be done is refused before anything is killed.
/// @return buckets of the newest level of a new pool
std::uint64_t TryPool(const CrashOptions& options) {
  if (options.pool == Mapping::kPinnedPath) {
    throw Error(ErrorCode::kInvalidArgument,
                "--pool pinned: is volatile memory, of which nothing is left when a process is "
                "killed; name a file");
  }
  // All that the rounds make, and remove.
  for (const std::string& path :
       {options.pool, CrashSnapshotFolder(options.pool), CrashAnswersFile(options.pool)}) {
    if (!std::filesystem::exists(path)) continue;
    throw Error(ErrorCode::kExists,
                fmt::format("{}: is there already; name another pool (--pool)", path));
  }
  OpenOptions open;
  open.executor = options.executor;
  const RemovedOnSignal name(options.pool);
  AnyStore store = AnyStore::Create(options.pool, options.create, open, {.shards = options.shards});
  const std::uint64_t buckets = store.Stats().level_buckets[0];
  store.Close();
  std::filesystem::remove_all(options.pool);
  return buckets;
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
  json["batches_of_65536_or_more"] = totals.large_batches;
  json["batches_on_scopes"] = totals.scope_batches;
  json["single_answers_on_scopes"] = totals.scope_answers;
  json["cache_loadings"] = totals.cache_loadings;
  json["compactions"] = totals.compactions;
  json["snapshots"] = totals.snapshots;
  json["snapshots_restored"] = totals.snapshots_restored;
  json["kills_in_snapshots"] = totals.kills_in_snapshots;
  json["kills_in_restores"] = totals.kills_in_restores;
  json["batches_in_flight"] = totals.batches_in_flight;
  json["keys_compared"] = totals.keys_compared;
  json["slots_cleared"] = totals.slots_cleared;
  json["resizes_continued"] = totals.resizes_continued;
  json["resizes"] = totals.resizes;
  return json;
}

std::atomic<bool> stop_rounds{false};

/// @throws CrashStopped when a signal came; Error
CrashOutcome RunJobs(const CrashArguments& arguments) {
  const StopOnSignal signals(stop_rounds);
  CrashOptions options = arguments.Options();
  for (unsigned job = 0; job < arguments.jobs; ++job) {
    options.first_level_buckets = TryPool(CrashJobOptions(options, arguments.jobs, job));
  }
  Progress progress;
  return RunCrashJobs(options, arguments.jobs, stop_rounds,
                      [&](std::uint64_t begun) { progress.Show("rounds", begun, options.rounds); });
}

int RunCrashTest(const CrashArguments& arguments) {
  CrashOutcome outcome;
  try {
    outcome = RunJobs(arguments);
  } catch (const CrashStopped&) {
    EndBySignalTaken();
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    return ReportError(error);
  }
  nlohmann::ordered_json json = ToJson(outcome.totals);
  json["seed"] = arguments.seed;
  json["jobs"] = arguments.jobs;
  json["defects"] = nlohmann::ordered_json::array();
  std::string text;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number()) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    text += fmt::format("{:<26}{}\n", words, value.get<std::uint64_t>());
  }
  for (const CrashFailure& failure : outcome.failures) {
    for (const std::string& defect : failure.defects) {
      text += fmt::format("defect: {}\n", defect);
      json["defects"].push_back(defect);
    }
    const std::string replay = arguments.Replay(failure);
    text += fmt::format("FAILED in round {}; the pool is kept: {}\nreplay: {}\n", failure.round,
                        failure.pool, replay);
    json["replays"].push_back(replay);
  }
  if (arguments.json != "-") Print(text);
  WriteJson(arguments.json, json);
  if (!outcome.failures.empty()) return kExitNo;
  if (SignalTaken() != 0) EndBySignalTaken();
  return kExitOk;
}

}  // namespace

void AddCrashTestCommand(CLI::App& app, Commands& commands) {
  {
    CLI::App* test = app.add_subcommand(
        "crash-test", "Kill a process in the middle of its batches, and check what it leaves");
    const auto arguments = std::make_shared<CrashArguments>();
    CrashArguments& a = *arguments;
    test->add_option("--rounds", a.rounds, "Kills")
        ->check(WholeNumber(1, kMaxCrashRounds))
        ->capture_default_str();
    test->add_option("--jobs", a.jobs,
                     "Pools that are worked on at once; job j has seed + j and the pool's name "
                     "with .j, if there are several")
        ->check(WholeNumber(1, 64))
        ->capture_default_str();
    a.AddTo(*test);
    test->add_option("--longest", a.longest_ms,
                     "Milliseconds from opening the pool to the kill, at most")
        ->check(WholeNumber(1, 60'000))
        ->capture_default_str();
    test->add_option("--rounds-per-pool", a.rounds_per_pool,
                     "Rounds after which a new pool takes the place of the old one, so that it is "
                     "created and resized again")
        ->check(WholeNumber(1, kMaxCrashRounds))
        ->capture_default_str();
    AddJsonOption(*test, a.json, [&a] { return UsedPaths{{"--pool", a.pool}}; });
    test->footer(
        "Each round starts a process that opens (or creates) the pool and runs batches of all "
        "kinds\n"
        "and sizes from several threads, and reports each batch that was acknowledged; with and\n"
        "without a directory and a cache, which is loaded meanwhile. On executor cuda each thread\n"
        "has a stream, most batches are in GPU memory, and one thread more has kernels of its own\n"
        "on a DeviceScope. In some rounds snapshots are taken meanwhile, and restored, in a "
        "folder\n"
        "with the pool's name and .snapshots. The process is killed (SIGKILL) at a random moment:\n"
        "while it creates, opens, recovers or closes the pool, runs batches and resizes, takes a\n"
        "snapshot or restores one. Then the newest complete snapshot is restored and compared "
        "with\n"
        "what the store held at one moment, and the pool is checked:\n"
        "every key is compared with what the acknowledged batches allow, before recovery and "
        "after\n"
        "it, and the next round goes on with the same pool. The seed replays operations and "
        "times,\n"
        "not the interleaving.\n"
        "Exit status 1 when a promise was broken; then the pool is kept, else it is removed.\n"
        "3 when memory, or room for the pool, ran out: that says nothing about the store.\n\n"
        "Examples:\n"
        "  gpmstore crash-test --rounds 100 --seed 7 --pool /dev/shm/p\n"
        "  gpmstore crash-test --shards 3 --pool /dev/shm/s\n"
        "  gpmstore crash-test --pool /dev/shm/p --executor cuda --threads 6 --max-batch 262144 "
        "--jobs 4");
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
