#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/batch_arrays.h"
#include "bench/commands.h"
#include "bench/options.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct SweepArguments {
  std::string pool;
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::uint64_t records = 1'000'000;
  std::vector<std::uint64_t> batches = {1,     32,    512,   4096,   4097,   8193,
                                        16384, 16385, 65536, 131073, 1048576};
  std::string memory = "auto";
  unsigned repeats = 5;
  OpenOptions open;  ///< its executor and threads
  std::string json;
};

/// Larger batches are left out, bytes of their values.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 28;

/// Which keys the operations of a batch are on.
enum class Keys {
  kUniform,
  kZipf,      ///< 0.99 over the records
  kOne,       ///< the same
  kReserved,  ///< every other one all zeros, the others uniform
  kMissing,
  kNew,   ///< none came before
  kLast,  ///< those that were new
};

/// Batches of one kind, or with as many finds among them.
struct Row {
  const char* name;
  const char* keys_name;
  Op op;
  Keys keys;
  Result expected;
  bool with_finds = false;
};

constexpr Row kInsertNew = {"insert", "new", Op::kInsert, Keys::kNew, Result::kOk};
constexpr Row kRows[] = {
    {"find", "uniform", Op::kFind, Keys::kUniform, Result::kOk},
    {"find", "zipf", Op::kFind, Keys::kZipf, Result::kOk},
    {"find", "one", Op::kFind, Keys::kOne, Result::kOk},
    {"find", "reserved", Op::kFind, Keys::kReserved, Result::kOk},
    {"find", "missing", Op::kFind, Keys::kMissing, Result::kNotFound},
    {"update", "uniform", Op::kUpdate, Keys::kUniform, Result::kOk},
    {"update", "zipf", Op::kUpdate, Keys::kZipf, Result::kOk},
    {"update", "one", Op::kUpdate, Keys::kOne, Result::kOk},
    {"update", "reserved", Op::kUpdate, Keys::kReserved, Result::kOk},
    {"update", "missing", Op::kUpdate, Keys::kMissing, Result::kNotFound},
    {"upsert", "zipf", Op::kUpsert, Keys::kZipf, Result::kOk},
    {"insert", "uniform", Op::kInsert, Keys::kUniform, Result::kExists},
    {"insert", "one", Op::kInsert, Keys::kOne, Result::kExists},
    {"find-or-insert", "zipf", Op::kFindOrInsert, Keys::kZipf, Result::kExists},
    {"accumulate", "uniform", Op::kAccumulate, Keys::kUniform, Result::kOk},
    {"accumulate", "zipf", Op::kAccumulate, Keys::kZipf, Result::kOk},
    {"accumulate", "one", Op::kAccumulate, Keys::kOne, Result::kOk},
    {"find, update", "uniform", Op::kUpdate, Keys::kUniform, Result::kOk, true},
    {"find, update", "zipf", Op::kUpdate, Keys::kZipf, Result::kOk, true},
    {"find, update", "one", Op::kUpdate, Keys::kOne, Result::kOk, true},
    kInsertNew,
    {"erase", "those", Op::kErase, Keys::kLast, Result::kOk},
};

/// Of a pool that it fills, one row after the other.
class Sweep {
 public:
  Sweep(const SweepArguments& arguments, Store& store, ycsb::Memory memory)
      : arguments_(arguments),
        store_(store),
        arrays_(std::min(kMostBytes / arguments.value_size,
                         *std::ranges::max_element(arguments.batches)),
                arguments.key_size, arguments.value_size, memory),
        ops_(memory, arrays_.rows()),
        zipf_(arguments.records) {
    for (std::uint64_t row = 0; row < arrays_.rows(); ++row) arrays_.Put(row, row);
    arrays_.Upload(arrays_.rows());
  }

  void Load() {
    ShowProgress("loading");
    while (next_record_ < arguments_.records) {
      const std::uint64_t left = arguments_.records - next_record_;
      Apply(kInsertNew, std::min(left, arrays_.rows()));
    }
    std::ranges::fill(arrays_.key(0), std::byte{});
    arrays_.UploadKeys(1);
    store_.Apply(arrays_.View(1, Op::kUpsert));
    if (arrays_.Results().front() != Result::kOk) Fail("the key of zeros was refused");
    erased_ = next_record_;
  }

  json Measure(const Row& row, std::uint64_t batch) {
    std::vector<double> seconds;
    for (unsigned repeat = 0; repeat <= arguments_.repeats; ++repeat) {
      ShowProgress(fmt::format("{}, {}, {}: {} of {}", row.name, row.keys_name, batch, repeat,
                               arguments_.repeats));
      const double took = Apply(row, batch);
      if (repeat > 0) seconds.push_back(took);  // memory is allocated, and the cache knows
    }
    const double median = Median(seconds);
    return {{"operations", row.name},
            {"keys", row.keys_name},
            {"batch", batch},
            {"us", 1e6 * median},
            {"mops", static_cast<double>(batch) / median / 1e6}};
  }

 private:
  [[noreturn]] static void Fail(const std::string& what) { throw Error(ErrorCode::kDamaged, what); }

  /// @return the word of the next operation's key
  std::uint64_t Draw(Keys keys) {
    constexpr auto kHashed = ycsb::KeyOrder::kHashed;
    switch (keys) {
      case Keys::kZipf:
        return ycsb::KeyWord(zipf_.Draw(random_), kHashed);
      case Keys::kOne:
        return ycsb::KeyWord(7 % arguments_.records, kHashed);
      case Keys::kMissing:
        return ycsb::KeyWord(random_.Next() >> 1, kHashed, true);
      case Keys::kNew:
        return ycsb::KeyWord(next_record_++, kHashed);
      case Keys::kLast:
        return ycsb::KeyWord(erased_++, kHashed);
      default:
        return ycsb::KeyWord(random_.NextBelow(arguments_.records), kHashed);
    }
  }
  /// @return seconds
  double Apply(const Row& row, std::uint64_t batch) {
    for (std::uint64_t i = 0; i < batch; ++i) {
      if (row.keys == Keys::kReserved && i % 2 == 0) {
        std::ranges::fill(arrays_.key(i), std::byte{});
      } else {
        ycsb::WriteKey(Draw(row.keys), arrays_.key(i));
      }
    }
    arrays_.UploadKeys(batch);
    Batch view = arrays_.View(batch, row.op);
    if (row.op == Op::kAccumulate) view.element = Element::kUInt64;
    if (row.op == Op::kErase || row.op == Op::kFind) view.values = {};
    if (row.with_finds) {
      std::vector<Op> ops(batch, Op::kFind);
      for (std::uint64_t i = 0; i < batch; ++i) {
        if (random_.Next() % 2 == 0) ops[i] = row.op;
      }
      ops_.CopyFrom(std::as_bytes(std::span(ops)));
      view.ops = ops_.as<Op>().first(batch);
    } else if (row.op != Op::kFind && row.op != Op::kFindOrInsert) {
      view.found = {};
    }
    const auto start = std::chrono::steady_clock::now();
    store_.Apply(view);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::span<const Result> results = arrays_.Results().first(batch);
    if (!std::ranges::all_of(results, [&](Result result) { return result == row.expected; })) {
      Fail(fmt::format("{}, {}: a wrong result", row.name, row.keys_name));
    }
    return seconds.count();
  }

  const SweepArguments& arguments_;
  Store& store_;
  BatchArrays arrays_;
  ycsb::Buffer ops_;
  ycsb::RecordZipfian zipf_;
  ycsb::Random random_{1};
  std::uint64_t next_record_ = 0;
  std::uint64_t erased_ = 0;  ///< the next record to be erased
};

json Measure(const SweepArguments& arguments) {
  RemovedAtEnd pool(arguments.pool);
  Store store = Store::Create(pool.path(),
                              {.key_size = arguments.key_size, .value_size = arguments.value_size},
                              arguments.open);
  pool.Made();
  const std::map<std::string, ycsb::Memory> memories = {{"host", ycsb::Memory::kHost},
                                                        {"pinned", ycsb::Memory::kPinned},
                                                        {"device", ycsb::Memory::kDevice}};
  const bool on_gpu = store.Stats().executor == ExecutorKind::kCuda;
  const std::string memory = arguments.memory != "auto" ? arguments.memory
                             : on_gpu                   ? "device"
                                                        : "host";
  Sweep sweep(arguments, store, memories.at(memory));
  sweep.Load();
  json report = {{"memory", memory}, {"rows", json::array()}};
  for (const Row& row : kRows) {
    if (row.op == Op::kAccumulate && arguments.value_size % 8 != 0) continue;
    for (const std::uint64_t batch : arguments.batches) {
      if (batch * arguments.value_size > kMostBytes) continue;
      report["rows"].push_back(sweep.Measure(row, batch));
    }
  }
  report["store"] = StoreFacts(store.Stats());
  return report;
}

/// Million operations a second, a line for each kind and pattern.
void Print(const json& report) {
  std::string line;
  for (const json& row : report.at("rows")) {
    const std::string name = fmt::format("{:<16}{:<9}", row.at("operations").get<std::string>(),
                                         row.at("keys").get<std::string>());
    if (name != std::exchange(line, name)) fmt::print("\n{}", name);
    fmt::print(" {}: {:.1f}", row.at("batch").get<std::uint64_t>(), row.at("mops").get<double>());
  }
  fmt::print("\n(Batch: million operations/s)\n");
}

void Run(const SweepArguments& arguments) {
  FinishReport("sweep", Measure(arguments), arguments.json, Print);
}

}  // namespace

void AddSweepCommand(CLI::App& program) {
  auto arguments = std::make_shared<SweepArguments>();
  CLI::App* command = program.add_subcommand("sweep",
                                             "Kinds of operations over patterns of keys and sizes "
                                             "of batches: what is much slower than its "
                                             "neighbours is a cliff");
  AddNumber(*command, "--records", &arguments->records, WholeNumber(1000, 1ull << 36),
            "Items at first");
  AddNumbers(*command, "--batches", &arguments->batches, WholeNumber(1, 1u << 24),
             "Operations of a batch; of 2^28 bytes of values at most, others are left out");
  AddKeySizeOption(*command, &arguments->key_size);
  AddValueSizeOption(*command, &arguments->value_size);
  command
      ->add_option("--memory", arguments->memory,
                   "Where the arrays of batches are; auto: where the executor works")
      ->check(CLI::IsMember({"auto", "host", "pinned", "device"}))
      ->capture_default_str();
  AddRepeatsOption(*command, &arguments->repeats, "Batches of each, of which the median counts");
  AddExecutorOptions(*command, &arguments->open.executor, &arguments->open.threads);
  AddPoolOption(*command, &arguments->pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
