#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_set>
#include <vector>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "ycsb/device_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct FindOrInsertArguments {
  std::string pool;
  std::uint32_t value_size = 128;
  std::uint64_t records = 4'000'000;
  std::vector<std::uint64_t> batches = {4096, 65536, std::uint64_t{1} << 20};
  double missing = 0.1;  ///< share of a batch's keys
  unsigned repeats = 9;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::string json;
};

constexpr std::uint32_t kKeySize = 8;

using Buffers = std::unique_ptr<ycsb::BatchBuffers>;

Buffers MakeBuffers(const FindOrInsertArguments& arguments, std::uint64_t rows, bool on_gpu) {
  const ycsb::BatchBuffers::Shape shape{
      .rows = rows, .key_size = kKeySize, .value_size = arguments.value_size};
  if (on_gpu) return std::make_unique<ycsb::DeviceBatchBuffers>(shape);
  return std::make_unique<ycsb::BatchBuffers>(shape);
}

void Put(ycsb::BatchBuffers& buffers, std::uint64_t row, std::uint64_t record) {
  ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers.key(row));
  ycsb::WriteValue(record, 0, buffers.value(row));
}

[[noreturn]] void Fail(const char* what) { throw Error(ErrorCode::kDamaged, what); }

/// The same in turns, on a pool: one call, or a find and an insert of what it did not find.
class Comparison {
 public:
  Comparison(const FindOrInsertArguments& arguments, Store& store, std::uint64_t next_record)
      : arguments_(arguments),
        store_(store),
        on_gpu_(store.Stats().executor == ExecutorKind::kCuda),
        next_record_(next_record) {}

  json Measure(std::uint64_t batch) {
    const Buffers all = MakeBuffers(arguments_, batch, on_gpu_);
    const Buffers some = MakeBuffers(arguments_, batch, on_gpu_);
    std::vector<double> one_call;
    std::vector<double> by_hand;
    for (unsigned repeat = 0; repeat <= arguments_.repeats; ++repeat) {
      ShowProgress(fmt::format("batches of {}: {} of {}", batch, repeat, arguments_.repeats));
      const double first = Time(*all, [&] { FindOrInsert(*all); });
      if (on_gpu_) all->Download(batch);
      CheckValues(*all);
      const double second = Time(*all, [&] { FindThenInsert(*all, *some); });
      CheckValues(*all);
      if (repeat == 0) continue;  // memory is allocated
      one_call.push_back(first);
      by_hand.push_back(second);
    }
    const double one = Median(one_call);
    const double other = Median(by_hand);
    return {{"batch", batch},
            {"find_or_insert_ms", 1e3 * one},
            {"find_then_insert_ms", 1e3 * other},
            {"find_or_insert_mops", static_cast<double>(batch) / one / 1e6},
            {"times", other / one}};
  }

 private:
  /// @return seconds of `call` on new keys among such as are there
  template <class Call>
  double Time(ycsb::BatchBuffers& buffers, const Call& call) {
    const std::uint64_t rows = buffers.shape().rows;
    const auto missing = static_cast<std::uint64_t>(arguments_.missing * static_cast<double>(rows));
    std::unordered_set<std::uint64_t> taken;
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::uint64_t record = next_record_ + row;
      // Spread over the batch: the first of each stretch that has one more of them.
      if (row * missing / rows == (row + 1) * missing / rows) {
        do {
          record = random_() % arguments_.records;
        } while (!taken.insert(record).second);
      }
      Put(buffers, row, record);
    }
    next_record_ += rows;
    buffers.Upload(rows);
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::uint64_t items = store_.Stats().items;
    if (expected_items_ != 0 && items != expected_items_ + missing) {
      Fail("not all keys were added, or some twice");
    }
    expected_items_ = items;
    return seconds.count();
  }

  void FindOrInsert(ycsb::BatchBuffers& buffers) {
    store_.Apply(buffers.View(0, buffers.shape().rows, Op::kFindOrInsert));
  }
  /// As one has to without it: the results tell which keys are missing; those are brought together
  /// by the host, with their values, and inserted.
  void FindThenInsert(ycsb::BatchBuffers& all, ycsb::BatchBuffers& some) {
    const std::uint64_t rows = all.shape().rows;
    store_.Apply(all.View(0, rows, Op::kFind));
    if (on_gpu_) all.Download(rows);
    std::uint64_t missing = 0;
    for (std::uint64_t row = 0; row < rows; ++row) {
      if (all.results()[row] == Result::kOk) continue;
      std::memcpy(some.key(missing).data(), all.key(row).data(), kKeySize);
      std::memcpy(some.value(missing).data(), all.value(row).data(), arguments_.value_size);
      std::memcpy(all.found(row).data(), all.value(row).data(), arguments_.value_size);
      ++missing;
    }
    some.Upload(missing);
    if (store_.Apply(some.View(0, missing, Op::kInsert)) != 0 && !on_gpu_) Fail("an insert failed");
  }
  void CheckValues(ycsb::BatchBuffers& buffers) {
    for (std::uint64_t row = 0; row < buffers.shape().rows; row += 97) {
      if (std::memcmp(buffers.found(row).data(), buffers.value(row).data(),
                      arguments_.value_size) != 0) {
        Fail("a wrong value was found");
      }
    }
  }

  const FindOrInsertArguments& arguments_;
  Store& store_;
  const bool on_gpu_;
  std::uint64_t next_record_;
  std::uint64_t expected_items_ = 0;
  std::mt19937_64 random_{1};
};

json Measure(const FindOrInsertArguments& arguments) {
  OpenOptions open;
  open.executor = arguments.executor;
  open.threads = arguments.threads;
  RemovedAtEnd pool(arguments.pool);
  std::uint64_t more = 0;
  for (const std::uint64_t batch : arguments.batches) {
    more += 2 * (arguments.repeats + 1) *
            static_cast<std::uint64_t>(arguments.missing * static_cast<double>(batch));
  }
  Store store = Store::Create(pool.path(),
                              {.key_size = kKeySize,
                               .value_size = arguments.value_size,
                               .initial_capacity = arguments.records + more},
                              open);
  pool.Made();
  ShowProgress("loading");
  constexpr std::uint64_t kRows = std::uint64_t{1} << 20;
  const Buffers rows = MakeBuffers(arguments, std::min(kRows, arguments.records), false);
  for (std::uint64_t first = 0; first < arguments.records; first += kRows) {
    const std::uint64_t n = std::min(kRows, arguments.records - first);
    for (std::uint64_t i = 0; i < n; ++i) Put(*rows, i, first + i);
    if (store.Apply(rows->View(0, n, Op::kInsert)) != 0) Fail("the store did not take all records");
  }
  Comparison comparison(arguments, store, arguments.records);
  json report = {{"rows", json::array()}};
  for (const std::uint64_t batch : arguments.batches) {
    report["rows"].push_back(comparison.Measure(batch));
  }
  ShowProgress("");
  report["store"] = StoreFacts(store.Stats());
  return report;
}

void Print(const json& report) {
  fmt::print("{:>10}{:>20}{:>22}{:>12}{:>8}\n", "batch", "find-or-insert, ms", "find, insert, ms",
             "M/s", "times");
  for (const json& row : report.at("rows")) {
    fmt::print("{:>10}{:>20.3f}{:>22.3f}{:>12.2f}{:>8.2f}\n", row.at("batch").get<std::uint64_t>(),
               row.at("find_or_insert_ms").get<double>(),
               row.at("find_then_insert_ms").get<double>(),
               row.at("find_or_insert_mops").get<double>(), row.at("times").get<double>());
  }
}

void Run(FindOrInsertArguments& arguments) {
  if (arguments.pool.empty()) arguments.pool = TemporaryPoolPath();
  json report = Measure(arguments);
  report.update({{"benchmark", "find-or-insert"},
                 {"machine", MachineFacts()},
                 {"missing", arguments.missing}});
  if (!arguments.json.empty()) WriteJson(report, arguments.json);
  if (arguments.json != "-") Print(report);
}

}  // namespace

void AddFindOrInsertCommand(CLI::App& program) {
  auto arguments = std::make_shared<FindOrInsertArguments>();
  CLI::App* command = program.add_subcommand(
      "find-or-insert", "FindOrInsert beside a find and an insert of what it did not find");
  command->add_option("--records", arguments->records, "Items at first")
      ->check(CLI::Range(std::uint64_t{1000}, std::uint64_t{1} << 36))
      ->capture_default_str();
  command->add_option("--batches", arguments->batches, "Keys of a batch")
      ->delimiter(',')
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--missing", arguments->missing, "Share of a batch's keys that are new")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--repeats", arguments->repeats,
                   "Batches of each size, of which the median counts")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--value-size", arguments->value_size, "Bytes of a value")
      ->check(CLI::Range(1u, kMaxValueBytes))
      ->capture_default_str();
  const std::map<std::string, ExecutorKind> executors{
      {"auto", ExecutorKind::kAuto}, {"cpu", ExecutorKind::kCpu}, {"cuda", ExecutorKind::kCuda}};
  command
      ->add_option("--executor", arguments->executor, "What runs batches; auto: cuda when it can")
      ->transform(CLI::CheckedTransformer(executors))
      ->option_text("auto|cpu|cuda");
  command->add_option("--threads", arguments->threads, "Threads of the cpu executor; 0: all cores")
      ->check(CLI::Range(0u, 4096u));
  command->add_option("--pool", arguments->pool,
                      "Pool file, which must not exist and is removed; default: one in memory");
  command->add_option("--json", arguments->json,
                      "File for the figures as JSON; - for the standard output, where they then "
                      "stand alone");
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
