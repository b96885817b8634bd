#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bench/commands.h"
#include "bench/options.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"
#include "support/option_checks.h"
#include "ycsb/device_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct SnapshotArguments {
  std::string pool;
  std::string directory;  ///< for the snapshots
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::uint64_t records = 16'000'000;
  std::uint64_t batch = std::uint64_t{1} << 16;
  double changed = 0.01;  ///< share of the items, before the increment
  double seconds = 2;     ///< that batches run without a snapshot
  OpenOptions open;       ///< its executor and threads
  unsigned writers = 0;
  std::string json;
};

std::unique_ptr<ycsb::BatchBuffers> MakeBuffers(const SnapshotArguments& arguments,
                                                std::uint64_t rows, bool on_gpu) {
  const ycsb::BatchBuffers::Shape shape{.rows = rows,
                                        .key_size = arguments.key_size,
                                        .value_size = arguments.value_size,
                                        .values = true,
                                        .found = true};
  if (on_gpu) return std::make_unique<ycsb::DeviceBatchBuffers>(shape);
  return std::make_unique<ycsb::BatchBuffers>(shape);
}

void Put(ycsb::BatchBuffers& buffers, std::uint64_t row, std::uint64_t record, unsigned version) {
  ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers.key(row));
  ycsb::WriteValue(record, version, buffers.value(row));
}

/// Applies one kind to records [0, count), many at a time. @throws Error(kDamaged) when one was not
/// ok
void ApplyToAll(const SnapshotArguments& arguments, Store& store, Op op, std::uint64_t count,
                unsigned version) {
  constexpr std::uint64_t kRows = std::uint64_t{1} << 20;
  const auto buffers = MakeBuffers(arguments, std::min(kRows, count), false);
  for (std::uint64_t first = 0; first < count; first += kRows) {
    const std::uint64_t n = std::min(kRows, count - first);
    for (std::uint64_t i = 0; i < n; ++i) Put(*buffers, i, first + i, version);
    if (store.Apply(buffers->View(0, n, op)) != 0) {
      throw Error(ErrorCode::kDamaged, "the store did not take all records");
    }
  }
}

/// Batches of 95% finds and 5% updates of any records (YCSB B's mix, uniform), from one thread.
class Traffic {
 public:
  Traffic(const SnapshotArguments& arguments, Store& store, bool on_gpu) : store_(store) {
    std::mt19937_64 random(1);
    for (auto& buffers : buffers_) {
      buffers = MakeBuffers(arguments, arguments.batch, on_gpu);
      for (std::uint64_t row = 0; row < arguments.batch; ++row) {
        Put(*buffers, row, random() % arguments.records, 1);
        buffers->ops()[row] = random() % 20 == 0 ? Op::kUpdate : Op::kFind;
      }
      buffers->Upload(arguments.batch);
    }
  }

  struct Result {
    double mops = 0;
    double slowest = 0;  ///< seconds of a batch
  };
  /// Runs batches until `stop` says so.
  template <class Stop>
  Result Run(const Stop& stop) {
    Result result;
    std::uint64_t batches = 0;
    const Clock::time_point start = Clock::now();
    do {
      auto& buffers = *buffers_[batches++ % std::size(buffers_)];
      const Clock::time_point began = Clock::now();
      store_.Apply(buffers.View(0, buffers.shape().rows, std::nullopt));
      result.slowest = std::max(result.slowest, SecondsSince(began));
    } while (!stop());
    result.mops =
        static_cast<double>(batches * buffers_[0]->shape().rows) / SecondsSince(start) / 1e6;
    return result;
  }

 private:
  Store& store_;
  std::unique_ptr<ycsb::BatchBuffers> buffers_[8];
};

json Row(const char* what, const SnapshotResult& result) {
  return {{"what", what},
          {"items", result.items},
          {"written", result.written},
          {"bytes", result.bytes},
          {"seconds", result.seconds},
          {"pause_ms", 1e3 * result.pause_seconds},
          {"gb_per_s", static_cast<double>(result.bytes) / result.seconds / 1e9}};
}

json Measure(const SnapshotArguments& arguments) {
  RemovedAtEnd pool(arguments.pool);
  RemovedAtEnd quiet(arguments.directory + "/gpmstore_bench_quiet.snap");
  RemovedAtEnd whole(arguments.directory + "/gpmstore_bench_whole.snap");
  RemovedAtEnd increment(arguments.directory + "/gpmstore_bench_increment.snap");
  RemovedAtEnd restored(arguments.pool + ".restored");
  Store store = Store::Create(pool.path(),
                              {.key_size = arguments.key_size,
                               .value_size = arguments.value_size,
                               .initial_capacity = arguments.records},
                              arguments.open);
  pool.Made();
  ShowProgress("loading");
  ApplyToAll(arguments, store, Op::kInsert, arguments.records, 0);
  const bool on_gpu = store.Stats().executor == ExecutorKind::kCuda;
  Traffic traffic(arguments, store, on_gpu);
  json report = {{"store", StoreFacts(store.Stats())}, {"snapshots", json::array()}};
  const auto take = [&](const char* what, RemovedAtEnd& file, const std::string& base) {
    ShowProgress(what);
    const SnapshotResult result =
        store.Snapshot(file.path(), {.base = base, .threads = arguments.writers});
    file.Made();
    return Row(what, result);
  };

  ShowProgress("batches alone");
  const Clock::time_point start = Clock::now();
  const Traffic::Result alone =
      traffic.Run([&] { return SecondsSince(start) >= arguments.seconds; });
  report["batches_alone_mops"] = alone.mops;
  report["slowest_batch_alone_ms"] = 1e3 * alone.slowest;
  report["snapshots"].push_back(take("whole, no batches", quiet, ""));
  {
    std::atomic<bool> done{false};
    Traffic::Result beside;
    std::thread batches([&] { beside = traffic.Run([&] { return done.load(); }); });
    json row;
    try {
      row = take("whole, batches beside", whole, "");
    } catch (...) {
      done = true;
      batches.join();
      throw;
    }
    done = true;
    batches.join();
    report["snapshots"].push_back(row);
    report["batches_beside_mops"] = beside.mops;
    report["slowest_batch_beside_ms"] = 1e3 * beside.slowest;
  }
  // Again without batches, as the base of the increment.
  std::filesystem::remove(whole.path());
  take("whole, no batches", whole, "");
  const auto changed =
      static_cast<std::uint64_t>(arguments.changed * static_cast<double>(arguments.records));
  ApplyToAll(arguments, store, Op::kUpdate, changed, 2);
  report["snapshots"].push_back(take("increment", increment, whole.path()));
  store.Close();
  std::filesystem::remove(pool.path());

  ShowProgress("restoring");
  const Clock::time_point restoring = Clock::now();
  Store again =
      Store::Restore(std::vector{whole.path(), increment.path()}, restored.path(), arguments.open);
  restored.Made();
  const double seconds = SecondsSince(restoring);
  const std::uint64_t items = again.Stats().items;
  again.Close();
  ShowProgress("");
  if (items != arguments.records) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{} items were restored, not {}", items, arguments.records));
  }
  report["restore"] = {
      {"items", items}, {"seconds", seconds}, {"mops", static_cast<double>(items) / seconds / 1e6}};
  return report;
}

void Print(const json& report) {
  fmt::print("{:<24}{:>12}{:>15}{:>11}{:>8}{:>10}\n", "", "written", "bytes", "seconds", "GB/s",
             "pause, ms");
  for (const json& row : report.at("snapshots")) {
    fmt::print("{:<24}{:>12}{:>15}{:>11.4f}{:>8.2f}{:>10.2f}\n", row.at("what").get<std::string>(),
               row.at("written").get<std::uint64_t>(), row.at("bytes").get<std::uint64_t>(),
               row.at("seconds").get<double>(), row.at("gb_per_s").get<double>(),
               row.at("pause_ms").get<double>());
  }
  const auto number = [&](const char* key) { return report.at(key).get<double>(); };
  fmt::print(
      "\nbatches, M/s: {:.2f} alone, {:.2f} beside a snapshot; slowest, ms: {:.1f}, {:.1f}\n",
      number("batches_alone_mops"), number("batches_beside_mops"), number("slowest_batch_alone_ms"),
      number("slowest_batch_beside_ms"));
  const json& restore = report.at("restore");
  fmt::print("restored: {} items in {:.3f} s, {:.2f} M/s\n",
             restore.at("items").get<std::uint64_t>(), restore.at("seconds").get<double>(),
             restore.at("mops").get<double>());
}

void RunSnapshot(SnapshotArguments& arguments) {
  if (arguments.directory.empty()) {
    arguments.directory = std::filesystem::path(arguments.pool).parent_path().string();
  }
  json report = Measure(arguments);
  report.update({{"batch", arguments.batch}, {"changed", arguments.changed}});
  FinishReport("snapshot", std::move(report), arguments.json, Print);
}

}  // namespace

void AddSnapshotCommand(CLI::App& program) {
  auto arguments = std::make_shared<SnapshotArguments>();
  CLI::App* command = program.add_subcommand(
      "snapshot", "Snapshots beside batches, an increment, and restoring them");
  AddNumber(*command, "--records", &arguments->records, WholeNumber(1000, 1ull << 36), "Items");
  AddNumber(*command, "--batch", &arguments->batch, WholeNumber(1, 1u << 24),
            "Operations of a batch: 95% finds, 5% updates");
  AddNumber(*command, "--changed", &arguments->changed, NumberBetween(0.0, 1.0),
            "Share of the items that an increment has");
  AddNumber(*command, "--seconds", &arguments->seconds, NumberBetween(0.0, 3600.0),
            "That batches run without a snapshot");
  AddKeySizeOption(*command, &arguments->key_size);
  AddValueSizeOption(*command, &arguments->value_size);
  AddExecutorOptions(*command, &arguments->open.executor, &arguments->open.threads);
  command
      ->add_option("--writers", arguments->writers, "Threads that write; 0: some of the machine's")
      ->check(WholeNumber(0, 4096));
  AddPoolOption(*command, &arguments->pool);
  command->add_option("--directory", arguments->directory,
                      "Where the snapshots go, which are removed; default: beside the pool");
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunSnapshot(*arguments); });
}

}  // namespace gpm::bench
