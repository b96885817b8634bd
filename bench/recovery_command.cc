#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/loaded_pool.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/roofline.h"
#include "bench/workload_bench.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr const char* kChildCommand = "recovery-child";

struct RecoveryArguments {
  PoolSpec pool;
  unsigned repeats = 3;
  std::string json;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The process that crashes: opens the pool, updates some records to the values that they have, and
/// is killed. @throws as Store
[[noreturn]] void RunChild(const PoolSpec& spec) {
  OpenOptions open;
  open.executor = spec.executor;
  open.threads = spec.threads;
  Store store = Store::Open(spec.path, open);
  const StoreStats stats = store.Stats();
  ycsb::BatchBuffers buffers({.rows = std::min<std::uint64_t>(stats.items, 1 << 16),
                              .key_size = stats.key_size,
                              .value_size = stats.value_size,
                              .values = true,
                              .found = false});
  for (std::size_t record = 0; record < buffers.shape().rows; ++record) {
    ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers.key(record));
    ycsb::WriteValue(record, 0, buffers.value(record));
  }
  store.Apply(buffers.View(0, buffers.shape().rows, Op::kUpdate));
  for (;;) std::raise(SIGKILL);
}

/// Starts that process and waits for its end. @throws Error(kIo), Error(kDamaged) when it ended in
///         another way
void CrashOnce(const PoolSpec& spec) {
  std::vector<std::string> arguments = {"gpmstore_bench", kChildCommand,
                                        "--pool",         spec.path,
                                        "--executor",     std::string(ExecutorName(spec.executor)),
                                        "--threads",      std::to_string(spec.threads)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = -1;
  const int error = posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    throw Error(ErrorCode::kIo, fmt::format("the process that is to crash can't be started: {}",
                                            std::strerror(error)));
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("the process that was to be killed ended with wait status {}", status));
  }
}

/// What is measured, and what it can't do without.
struct Measured {
  std::string what;
  std::uint64_t read_bytes = 0;
  std::uint64_t small_writes = 0;
  std::vector<double> seconds{};           ///< of the call, in all
  std::vector<double> recovery_seconds{};  ///< without mapping the pool, or its new level
};

std::uint64_t SlotBytes(const StoreStats& stats) {
  return stats.capacity_slots / stats.geometry.slots * BucketBytes(stats.key_size, stats.geometry);
}

/// Opens the pool and times it. One that a killed process had open may be busy for a moment longer.
/// @param clean what it must be @throws as Store::Open, Error(kDamaged)
Store OpenTimed(LoadedPool& pool, bool clean, Measured& measured) {
  OpenOptions open;
  open.executor = pool.spec().executor;
  open.threads = pool.spec().threads;
  const Clock::time_point give_up = Clock::now() + std::chrono::seconds(30);
  for (;;) {
    try {
      const Clock::time_point start = Clock::now();
      Store store = Store::Open(pool.spec().path, open);
      measured.seconds.push_back(SecondsSince(start));
      const StoreStats stats = store.Stats();
      measured.recovery_seconds.push_back(stats.recovery.seconds);
      measured.read_bytes = SlotBytes(stats);
      if (stats.recovery.was_clean != clean || stats.items != pool.spec().records) {
        throw Error(ErrorCode::kDamaged,
                    fmt::format("the pool was opened as {}, with {} items; it must be {}, with {}",
                                stats.recovery.was_clean ? "clean" : "crashed", stats.items,
                                clean ? "clean" : "crashed", pool.spec().records));
      }
      return store;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBusy || Clock::now() > give_up) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

/// Times one resize: Reserve of just more items than the table is meant for, which makes it one
/// level larger. The cells that those need are there before. @throws as Store, Error(kDamaged)
void ResizeTimed(Store& store, Measured& measured) {
  constexpr double kComfortableLoad = 0.85;  // what Reserve aims at
  StoreStats stats = store.Stats();
  const auto fitting =
      static_cast<std::uint64_t>(kComfortableLoad * static_cast<double>(stats.capacity_slots)) - 1;
  // As many cells as are missing, but each time an eighth more than there are.
  while (stats.value_cells > 0 && stats.items + stats.free_cells < fitting + 3) {
    store.Reserve(std::min(stats.items + stats.free_cells + 1, fitting));
    const std::uint64_t before = stats.free_cells;
    stats = store.Stats();
    if (stats.free_cells == before) break;
  }
  const std::uint64_t drained = stats.level_buckets.back();
  measured.read_bytes = drained * BucketBytes(stats.key_size, stats.geometry);
  // Of each item, the state, the reference, and a key that is not the state.
  const std::uint64_t writes_of_item = stats.key_size > 8 ? 3 : 2;
  const double slots = static_cast<double>(stats.geometry.slots * drained);
  measured.small_writes = static_cast<std::uint64_t>(slots * stats.load_factor) * writes_of_item;
  const Clock::time_point start = Clock::now();
  store.Reserve(fitting + 3);
  measured.seconds.push_back(SecondsSince(start));
  const StoreStats after = store.Stats();
  measured.recovery_seconds.push_back(measured.seconds.back() -
                                      (after.growth_seconds - stats.growth_seconds));
  if (after.resizes != stats.resizes + 1 || after.items != stats.items) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("a resize from {} slots with {} items gave {} with {}",
                            stats.capacity_slots, stats.items, after.capacity_slots, after.items));
  }
}

Roofline MeasureLinkRoofline(const LoadedPool& pool) {
  const StoreStats& stats = pool.stats();
  RooflineOptions options;
  options.executor = pool.spec().executor;
  options.threads = pool.spec().threads;
  options.pool = pool.spec().path + ".range";
  options.range_bytes = SlotBytes(stats);
  options.accesses = {options.range_bytes / options.value_size};  // all of it
  options.repeats = 3;
  return MeasureRoofline(options);
}

json MakeRow(const Measured& measured, const Roofline& roofline) {
  Accesses accesses;
  accesses.read_bytes = static_cast<double>(measured.read_bytes);
  accesses.small_writes = static_cast<double>(measured.small_writes);
  accesses.ordered_writes = accesses.small_writes;
  const double bound = 1 / Bound(roofline, accesses);
  const double seconds = Median(measured.seconds);
  const double recovery = Median(measured.recovery_seconds);
  return {{"what", measured.what},
          {"seconds", seconds},
          {"seconds_runs", measured.seconds},
          {"recovery_seconds", recovery},
          {"recovery_seconds_runs", measured.recovery_seconds},
          {"mapping_seconds", seconds - recovery},
          {"read_bytes", measured.read_bytes},
          {"small_writes", measured.small_writes},
          {"bound_seconds", bound},
          {"of_bound", bound / seconds},
          {"recovery_of_bound", bound / recovery}};
}

void Print(const json& report) {
  fmt::print(
      "{} records of {} + {} bytes, executor {}, {}, medians of {}\n\n{:<24}{:>10}{:>10}"
      "{:>16}{:>12}{:>10}{:>10}\n",
      report.at("records").get<std::uint64_t>(), report.at("store").at("key_size").get<unsigned>(),
      report.at("store").at("value_size").get<unsigned>(),
      report.at("store").at("executor").get<std::string>(),
      report.at("store").at("medium").get<std::string>(), report.at("repeats").get<unsigned>(),
      "milliseconds", "in all", "mapping", "slots and rest", "slot MB", "bound", "of bound");
  for (const json& row : report.at("rows")) {
    const auto ms = [&](const char* key) { return row.at(key).get<double>() * 1e3; };
    fmt::print("{:<24}{:>10.1f}{:>10.1f}{:>16.1f}{:>12.1f}{:>10.1f}{:>10.3f}\n",
               row.at("what").get<std::string>(), ms("seconds"), ms("mapping_seconds"),
               ms("recovery_seconds"), row.at("read_bytes").get<double>() / 1e6,
               ms("bound_seconds"), row.at("recovery_of_bound").get<double>());
  }
}

void RunRecovery(RecoveryArguments& arguments) {
  PoolSpec& spec = arguments.pool;
  if (spec.path.empty()) spec.path = TemporaryPoolPath();
  const auto start = Clock::now();
  ThreadPool threads(spec.threads > 0 ? spec.threads
                                      : std::max(1u, std::thread::hardware_concurrency()));
  LoadedPool pool(spec, threads);
  const Roofline roofline = MeasureLinkRoofline(pool);
  Measured clean{.what = "open, closed in order"};
  Measured crashed{.what = "open, after a crash"};
  Measured resize{.what = "resize"};
  for (unsigned repeat = 1; repeat <= arguments.repeats; ++repeat) {
    ShowProgress(fmt::format("repeat {} of {}", repeat, arguments.repeats));
    pool.Restore();
    pool.MarkAged();
    OpenTimed(pool, true, clean).Close();
    CrashOnce(pool.spec());
    OpenTimed(pool, false, crashed).Close();
    CacheOptions none;
    none.policy = CachePolicy::kOff;
    Store store = pool.Open(none);
    pool.MarkAged();
    ResizeTimed(store, resize);
    store.Close();
  }
  CheckAfterwards(spec.path, spec.records);
  ShowProgress("");
  json report = {{"benchmark", "recovery"},
                 {"machine", MachineFacts()},
                 {"store", StoreFacts(pool.stats())},
                 {"roofline", ToJson(roofline)},
                 {"records", spec.records},
                 {"repeats", arguments.repeats},
                 {"seed", spec.seed},
                 {"rows", json::array()}};
  for (const Measured* measured : {&clean, &crashed, &resize}) {
    report["rows"].push_back(MakeRow(*measured, roofline));
  }
  report["seconds"] = SecondsSince(start);
  if (!arguments.json.empty()) WriteJson(report, arguments.json);
  if (arguments.json != "-") Print(report);
}

}  // namespace

void AddRecoveryCommand(CLI::App& program) {
  auto arguments = std::make_shared<RecoveryArguments>();
  PoolSpec& pool = arguments->pool;
  pool.records = 16'000'000;
  CLI::App* command = program.add_subcommand(
      "recovery", "Time to open a pool, closed in order and crashed, and of a resize");
  command->add_option("--records", pool.records, "Items in the pool")
      ->check(CLI::Range(std::uint64_t{1000}, std::uint64_t{1} << 31))
      ->capture_default_str();
  command->add_option("--key-size", pool.key_size, "Bytes of a key")->capture_default_str();
  command->add_option("--value-size", pool.value_size, "Bytes of a value")
      ->check(CLI::Range(1u, kMaxValueBytes))
      ->capture_default_str();
  command->add_option("--repeats", arguments->repeats, "Repeats, of which medians are given")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--seed", pool.seed, "Seed of the hash")->capture_default_str();
  AddExecutorOptions(*command, &pool.executor, &pool.threads, "What recovers");
  AddPoolOption(*command, &pool.path, ". A copy of it takes as much again");
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunRecovery(*arguments); });

  auto child = std::make_shared<PoolSpec>();
  CLI::App* child_command = program.add_subcommand(kChildCommand, "The process that is killed");
  child_command->group("");  // not in the help: `recovery` starts it
  child_command->add_option("--pool", child->path)->required();
  AddExecutorOptions(*child_command, &child->executor, &child->threads, "What recovers");
  child_command->callback([child] { RunChild(*child); });
}

}  // namespace gpm::bench
