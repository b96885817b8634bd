#include "bench/recovery_bench.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/report.h"
#include "bench/roofline.h"
#include "bench/workload_bench.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// Starts that process and waits for its end. @throws Error(kIo), Error(kDamaged) when it ended in
///         another way
void CrashOnce(const PoolSpec& spec) {
  std::vector<std::string> arguments = {"gpmstore_bench", kCrashCommand,
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

json MakeRow(const Measured& measured, const std::optional<Roofline>& roofline) {
  const double seconds = Median(measured.seconds);
  const double recovery = Median(measured.recovery_seconds);
  json row = {{"what", measured.what},
              {"seconds", seconds},
              {"seconds_runs", measured.seconds},
              {"recovery_seconds", recovery},
              {"recovery_seconds_runs", measured.recovery_seconds},
              {"mapping_seconds", seconds - recovery},
              {"read_bytes", measured.read_bytes},
              {"small_writes", measured.small_writes}};
  if (!roofline) return row;
  Accesses accesses;
  accesses.read_bytes = static_cast<double>(measured.read_bytes);
  accesses.small_writes = static_cast<double>(measured.small_writes);
  accesses.ordered_writes = accesses.small_writes;
  const double bound = 1 / Bound(*roofline, accesses);
  row["bound_seconds"] = bound;
  row["of_bound"] = bound / seconds;
  row["recovery_of_bound"] = bound / recovery;
  return row;
}

}  // namespace

void CrashInPool(const PoolSpec& spec) {
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

json MeasureRecovery(const PoolSpec& spec, unsigned repeats, bool bounds) {
  ThreadPool threads(ThreadsOf(spec.threads));
  LoadedPool pool(spec, threads);
  std::optional<Roofline> roofline;
  if (bounds) roofline = MeasureLinkRoofline(pool);
  Measured clean{.what = "open, closed in order"};
  Measured crashed{.what = "open, after a crash"};
  Measured resize{.what = "resize"};
  for (unsigned repeat = 1; repeat <= repeats; ++repeat) {
    ShowProgress(fmt::format("{} records, repeat {} of {}", spec.records, repeat, repeats));
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
  json report = {{"store", StoreFacts(pool.stats())},
                 {"capacity_slots", pool.stats().capacity_slots},
                 {"rows", json::array()}};
  if (roofline) report["roofline"] = ToJson(*roofline);
  for (const Measured* measured : {&clean, &crashed, &resize}) {
    report["rows"].push_back(MakeRow(*measured, roofline));
  }
  return report;
}

}  // namespace gpm::bench
