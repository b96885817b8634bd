#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_set>
#include <vector>

#include "bench/batch_arrays.h"
#include "bench/commands.h"
#include "bench/options.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"

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
  OpenOptions open;  ///< its executor and threads
  std::string json;
};

constexpr std::uint32_t kKeySize = 8;

[[noreturn]] void Fail(const char* what) { throw Error(ErrorCode::kDamaged, what); }

/// The same in turns, on a pool: one call, or a find and an insert of what it did not find.
class Comparison {
 public:
  Comparison(const FindOrInsertArguments& arguments, Store& store, std::uint64_t next_record)
      : arguments_(arguments),
        store_(store),
        memory_(store.Stats().executor == ExecutorKind::kCuda ? ycsb::Memory::kDevice
                                                              : ycsb::Memory::kHost),
        next_record_(next_record) {}

  json Measure(std::uint64_t batch) {
    BatchArrays all(batch, kKeySize, arguments_.value_size, memory_);
    BatchArrays some(batch, kKeySize, arguments_.value_size, memory_);
    std::vector<double> one_call;
    std::vector<double> by_hand;
    for (unsigned repeat = 0; repeat <= arguments_.repeats; ++repeat) {
      ShowProgress(fmt::format("batches of {}: {} of {}", batch, repeat, arguments_.repeats));
      const double first = Time(all, [&] { FindOrInsert(all); });
      CheckFound(all);
      const double second = Time(all, [&] { FindThenInsert(all, some); });
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
  double Time(BatchArrays& arrays, const Call& call) {
    const std::uint64_t rows = arrays.rows();
    const auto missing = static_cast<std::uint64_t>(arguments_.missing * static_cast<double>(rows));
    std::unordered_set<std::uint64_t> taken;
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::uint64_t record = next_record_ + row;
      // New ones are spread over the batch.
      if (row * missing / rows == (row + 1) * missing / rows) {
        do {
          record = random_() % arguments_.records;
        } while (!taken.insert(record).second);
      }
      arrays.Put(row, record);
    }
    next_record_ += rows;
    arrays.Upload(rows);
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

  void FindOrInsert(BatchArrays& arrays) {
    store_.Apply(arrays.View(arrays.rows(), Op::kFindOrInsert));
  }
  /// As one has to without it: the results tell which keys are missing; those are brought together
  /// by the host, with their values, and inserted. (What it takes to have their values among those
  /// that were found is left out.)
  void FindThenInsert(BatchArrays& all, BatchArrays& some) {
    store_.Apply(all.View(all.rows(), Op::kFind));
    const std::span<const Result> results = all.Results();
    std::uint64_t missing = 0;
    for (std::uint64_t row = 0; row < all.rows(); ++row) {
      if (results[row] == Result::kOk) continue;
      std::memcpy(some.key(missing).data(), all.key(row).data(), kKeySize);
      std::memcpy(some.value(missing).data(), all.value(row).data(), arguments_.value_size);
      ++missing;
    }
    some.Upload(missing);
    store_.Apply(some.View(missing, Op::kInsert));
  }
  void CheckFound(BatchArrays& arrays) {
    const std::vector<std::byte> found = arrays.Found();
    for (std::uint64_t row = 0; row < arrays.rows(); ++row) {
      if (std::memcmp(found.data() + row * arguments_.value_size, arrays.value(row).data(),
                      arguments_.value_size) != 0) {
        Fail("a wrong value was found");
      }
    }
  }

  const FindOrInsertArguments& arguments_;
  Store& store_;
  const ycsb::Memory memory_;
  std::uint64_t next_record_;
  std::uint64_t expected_items_ = 0;
  std::mt19937_64 random_{1};
};

json Measure(const FindOrInsertArguments& arguments) {
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
                              arguments.open);
  pool.Made();
  ShowProgress("loading");
  constexpr std::uint64_t kRows = std::uint64_t{1} << 20;
  BatchArrays rows(std::min(kRows, arguments.records), kKeySize, arguments.value_size,
                   ycsb::Memory::kHost);
  for (std::uint64_t first = 0; first < arguments.records; first += kRows) {
    const std::uint64_t n = std::min(kRows, arguments.records - first);
    for (std::uint64_t i = 0; i < n; ++i) rows.Put(i, first + i);
    rows.Upload(n);
    if (store.Apply(rows.View(n, Op::kInsert)) != 0) Fail("the store did not take all records");
  }
  Comparison comparison(arguments, store, arguments.records);
  json report = {{"rows", json::array()}};
  for (const std::uint64_t batch : arguments.batches) {
    report["rows"].push_back(comparison.Measure(batch));
  }
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
  json report = Measure(arguments);
  report["missing"] = arguments.missing;
  FinishReport("find-or-insert", std::move(report), arguments.json, Print);
}

}  // namespace

void AddFindOrInsertCommand(CLI::App& program) {
  auto arguments = std::make_shared<FindOrInsertArguments>();
  CLI::App* command = program.add_subcommand(
      "find-or-insert", "FindOrInsert beside a find and an insert of what it did not find");
  AddNumber(*command, "--records", &arguments->records, WholeNumber(1000, 1ull << 36),
            "Items at first");
  AddNumbers(*command, "--batches", &arguments->batches, WholeNumber(1, 1u << 24),
             "Keys of a batch");
  AddNumber(*command, "--missing", &arguments->missing, NumberBetween(0.0, 1.0),
            "Share of a batch's keys that are new");
  AddRepeatsOption(*command, &arguments->repeats,
                   "Batches of each size, of which the median counts");
  AddValueSizeOption(*command, &arguments->value_size);
  AddExecutorOptions(*command, &arguments->open.executor, &arguments->open.threads);
  AddPoolOption(*command, &arguments->pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
