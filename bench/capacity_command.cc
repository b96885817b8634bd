#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "bench/options.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "support/option_checks.h"
#include "ycsb/buffer.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct CapacityArguments {
  std::string pool;
  std::uint64_t items = std::uint64_t{1} << 20;
  std::uint64_t batch = 16384;
  std::uint64_t finds = 4'000'000;
  double turnovers = 2;  ///< of the capacity, by inserts
  OpenOptions open;      ///< its executor and threads
  std::string json;
};

constexpr std::uint32_t kKeySize = 8;
constexpr std::uint32_t kValueSize = 128;

/// One store, with a policy or without a capacity.
class Measurement {
 public:
  Measurement(const CapacityArguments& arguments, Store& store)
      : arguments_(arguments),
        store_(store),
        memory_(store.Stats().executor == ExecutorKind::kCuda ? ycsb::Memory::kDevice
                                                              : ycsb::Memory::kHost),
        host_keys_(arguments.batch * kKeySize),
        host_values_(arguments.batch * kValueSize),
        keys_(memory_, arguments.batch * kKeySize),
        values_(memory_, arguments.batch * kValueSize),
        results_(memory_, arguments.batch) {}

  void Fill() {
    while (next_record_ + arguments_.batch <= arguments_.items) Insert();
  }
  /// @return operations a second, of batches of keys that are there
  double Find() {
    double seconds = 0;
    std::uint64_t done = 0;
    while (done < arguments_.finds) {
      Put([&] { return random_() % next_record_; });
      seconds += Apply(Op::kFind);
      done += arguments_.batch;
    }
    return static_cast<double>(done) / seconds;
  }
  /// @return operations a second, of batches of new keys
  double Turnover(std::uint64_t inserts) {
    double seconds = 0;
    std::uint64_t done = 0;
    while (done < inserts) {
      seconds += Insert();
      done += arguments_.batch;
    }
    return static_cast<double>(done) / seconds;
  }

 private:
  template <class Next>
  void Put(const Next& next) {
    for (std::uint64_t row = 0; row < arguments_.batch; ++row) {
      const std::uint64_t record = next();
      ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed),
                     std::span(host_keys_).subspan(row * kKeySize, kKeySize));
      ycsb::WriteValue(record, 0, std::span(host_values_).subspan(row * kValueSize, kValueSize));
    }
    keys_.CopyFrom(host_keys_);
    values_.CopyFrom(host_values_);
  }
  double Insert() {
    Put([&] { return next_record_++; });
    return Apply(Op::kInsert);
  }
  double Apply(Op op) {
    const bool finds = op == Op::kFind;
    const Clock::time_point start = Clock::now();
    store_.Apply({.op = op,
                  .keys = keys_.bytes(),
                  .values = finds ? std::span<std::byte>() : values_.bytes(),
                  .found = finds ? values_.bytes() : std::span<std::byte>(),
                  .results = results_.as<Result>()});
    return SecondsSince(start);
  }

  const CapacityArguments& arguments_;
  Store& store_;
  const ycsb::Memory memory_;
  std::vector<std::byte> host_keys_;
  std::vector<std::byte> host_values_;
  ycsb::Buffer keys_;
  ycsb::Buffer values_;
  ycsb::Buffer results_;
  std::uint64_t next_record_ = 0;
  std::mt19937_64 random_{1};
};

/// @param policy none: a store without a capacity, which has room for what is inserted
json Measure(const CapacityArguments& arguments, std::optional<EvictionPolicy> policy) {
  const std::string name(policy ? EvictionPolicyName(*policy) : "none");
  ShowProgress(name);
  OpenOptions open = arguments.open;
  if (policy) open.capacity = {.items = arguments.items, .policy = *policy};
  const auto inserts =
      static_cast<std::uint64_t>(arguments.turnovers * static_cast<double>(arguments.items));
  RemovedAtEnd pool(arguments.pool);
  Store store = Store::Create(pool.path(),
                              {.key_size = kKeySize,
                               .value_size = kValueSize,
                               .initial_capacity = arguments.items + (policy ? 0 : inserts)},
                              open);
  pool.Made();
  Measurement measurement(arguments, store);
  measurement.Fill();
  const double finds = measurement.Find();
  const double rate = measurement.Turnover(inserts);
  const StoreStats stats = store.Stats();
  if (policy && stats.items > arguments.items) {
    throw Error(ErrorCode::kDamaged, "the store has more items than its capacity");
  }
  json row = {{"policy", name},
              {"find_mops", finds / 1e6},
              {"insert_mops", rate / 1e6},
              {"evictions", stats.evictions},
              {"evicted", stats.evicted},
              {"store", StoreFacts(stats)}};
  if (stats.evictions > 0) {
    row["eviction_ms"] = 1e3 * stats.eviction_seconds / static_cast<double>(stats.evictions);
  }
  return row;
}

void Print(const json& report) {
  fmt::print("{:>8}{:>14}{:>16}{:>12}{:>14}\n", "policy", "finds, M/s", "inserts, M/s", "evictions",
             "ms of each");
  for (const json& row : report.at("rows")) {
    fmt::print("{:>8}{:>14.2f}{:>16.2f}{:>12}{:>14}\n", row.at("policy").get<std::string>(),
               row.at("find_mops").get<double>(), row.at("insert_mops").get<double>(),
               row.at("evictions").get<std::uint64_t>(),
               row.contains("eviction_ms")
                   ? fmt::format("{:.2f}", row.at("eviction_ms").get<double>())
                   : "-");
  }
}

void Run(CapacityArguments& arguments) {
  arguments.batch = std::min(arguments.batch, arguments.items);
  json report = {{"items", arguments.items}, {"batch", arguments.batch}, {"rows", json::array()}};
  report["rows"].push_back(Measure(arguments, {}));
  for (const std::string& name : EvictionPolicyNames()) {
    report["rows"].push_back(Measure(arguments, EvictionPolicyOf(name)));
  }
  FinishReport("capacity", std::move(report), arguments.json, Print);
}

}  // namespace

void AddCapacityCommand(CLI::App& program) {
  auto arguments = std::make_shared<CapacityArguments>();
  CLI::App* command = program.add_subcommand(
      "capacity", "Stores that keep a number of items, by each policy, beside one that does not");
  AddNumber(*command, "--items", &arguments->items, WholeNumber(100, 1ull << 34), "The capacity");
  AddNumber(*command, "--batch", &arguments->batch, WholeNumber(1, 1u << 24),
            "Operations of a batch");
  AddNumber(*command, "--finds", &arguments->finds, WholeNumber(1, 1ull << 40),
            "Finds that are timed");
  AddNumber(*command, "--turnovers", &arguments->turnovers, NumberBetween(0.1, 1000.0),
            "Inserts, in capacities");
  AddExecutorOptions(*command, &arguments->open.executor, &arguments->open.threads);
  AddPoolOption(*command, &arguments->pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
