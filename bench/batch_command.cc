#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/commands.h"
#include "bench/operations.h"
#include "bench/report.h"
#include "bench/subject.h"
#include "ycsb/buffer.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using ycsb::Buffer;
using ycsb::Memory;

struct BatchOptions {
  std::uint64_t records = 1'000'000;
  std::uint64_t operations = std::uint64_t{1} << 22;
  unsigned min_log = 10;
  unsigned max_log = 20;
  std::uint32_t value_size = 128;
  unsigned threads = 0;
  double theta = ycsb::Zipfian::kDefaultTheta;
  std::uint64_t seed = 1;
  ExecutorKind executor = ExecutorKind::kAuto;
  std::string memory = "auto";
  std::string pool;
  std::string json;
};

/// The arrays of one phase, where the options want them.
class PhaseArrays {
 public:
  PhaseArrays(const Phase& phase, std::uint32_t value_size, Memory memory)
      : phase_(phase),
        value_size_(value_size),
        keys_(memory, phase.keys.size() * sizeof(std::uint64_t)),
        values_(memory, NeedsValues() ? phase.keys.size() * value_size : 0),
        found_(memory, phase.op == Op::kFind ? phase.keys.size() * value_size : 0),
        results_(memory, phase.keys.size() * sizeof(Result)) {
    keys_.CopyFrom(std::as_bytes(std::span(phase.keys)));
    if (NeedsValues()) {
      const Buffer values(Memory::kHost, phase.keys.size() * value_size);
      FillValues(phase.keys, phase.version, value_size, values.bytes());
      values_.CopyFrom(values.bytes());
    }
  }

  Arrays View() const {
    return {phase_.op, keys_.bytes(), values_.bytes(), found_.bytes(), results_.as<Result>()};
  }

  /// @throws as bench::Verify
  void Verify() const {
    const Buffer results(Memory::kHost, results_.bytes().size());
    const Buffer found(Memory::kHost, found_.bytes().size());
    results_.CopyTo(results.bytes());
    found_.CopyTo(found.bytes());
    bench::Verify(phase_, value_size_, results.as<Result>(), found.bytes());
  }

 private:
  bool NeedsValues() const { return phase_.op == Op::kInsert || phase_.op == Op::kUpdate; }

  const Phase& phase_;
  std::uint32_t value_size_;
  Buffer keys_;
  Buffer values_;
  Buffer found_;
  Buffer results_;
};

/// Runs one phase in batches of 2^batch_log, checks it, and gives its figures.
nlohmann::json Measure(StoreSubject& subject, const Phase& phase, const BatchOptions& options,
                       Memory memory, unsigned batch_log) {
  const std::uint64_t batch = std::uint64_t{1} << batch_log;
  subject.set_batch(batch);
  const PhaseArrays arrays(phase, options.value_size, memory);
  const std::vector<double> seconds = subject.Run(arrays.View());
  arrays.Verify();
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {{"phase", phase.name},
          {"batch", batch},
          {"batches", seconds.size()},
          {"mops", static_cast<double>(phase.keys.size()) / total / 1e6},
          {"latency_us_p50", Quantile(seconds, 0.5) * 1e6},
          {"latency_us_p99", Quantile(seconds, 0.99) * 1e6},
          {"latency_us_max", Quantile(seconds, 1) * 1e6}};
}

void RunBatch(const BatchOptions& options) {
  if (options.min_log > options.max_log) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--min-batch-log {} is above --max-batch-log {}", options.min_log,
                            options.max_log));
  }
  CreateOptions create;
  create.value_size = options.value_size;
  create.initial_capacity = options.records + options.operations;
  OpenOptions open;
  open.executor = options.executor;
  open.threads = options.threads;
  StoreSubject subject(options.pool, create, open, std::uint64_t{1} << 16);
  const bool on_gpu = subject.Stats().executor == ExecutorKind::kCuda;
  const bool in_device = options.memory == "device" || (options.memory == "auto" && on_gpu);
  if (in_device && !on_gpu) {
    throw Error(ErrorCode::kInvalidArgument,
                "--memory device needs --executor cuda; the cpu executor takes --memory host");
  }
  const Memory memory = in_device ? Memory::kDevice : Memory::kHost;

  const Records loaded{0, options.records};
  const Records others{options.records, std::max(options.records, options.operations)};
  const auto keys = [&](Choice choice, Records records, std::uint64_t n, std::uint64_t stream) {
    return MakeKeys(choice, records, n, options.theta, options.seed * 16 + stream);
  };
  const std::uint64_t n = options.operations;
  ShowProgress("loading");
  {
    const Phase load{"load", Op::kInsert, keys(Choice::kInOrder, loaded, options.records, 0)};
    const PhaseArrays arrays(load, options.value_size, memory);
    subject.Run(arrays.View());
    arrays.Verify();
  }
  // Finds come before updates, whose values have another version.
  const Phase uniform{"find-uniform", Op::kFind, keys(Choice::kUniform, loaded, n, 1)};
  const Phase zipf{"find-zipf", Op::kFind, keys(Choice::kZipf, loaded, n, 2)};
  const Phase missing{"find-missing", Op::kFind, keys(Choice::kUniform, others, n, 3),
                      Result::kNotFound};
  const Phase insert{"insert", Op::kInsert, keys(Choice::kInOrder, others, n, 4)};
  const Phase erase{"erase", Op::kErase, insert.keys};
  const Phase update{"update", Op::kUpdate, zipf.keys, Result::kOk, 1};

  nlohmann::json report = {{"benchmark", "batch"},
                           {"machine", MachineFacts()},
                           {"records", options.records},
                           {"operations", n},
                           {"memory", in_device ? "device" : "host"},
                           {"theta", options.theta},
                           {"seed", options.seed},
                           {"rows", nlohmann::json::array()}};
  for (const Phase* phase : {&uniform, &zipf, &missing, &insert, &update}) {
    for (unsigned log = options.min_log; log <= options.max_log; ++log) {
      ShowProgress(fmt::format("{}, batch 2^{}", phase->name, log));
      report["rows"].push_back(Measure(subject, *phase, options, memory, log));
      // Back to the state before, so that every batch size meets the same table.
      if (phase == &insert) Measure(subject, erase, options, memory, 16);
    }
  }
  ShowProgress("");
  report["store"] = StoreFacts(subject.Stats());
  if (!options.json.empty()) WriteJson(report, options.json);
  if (options.json == "-") return;

  fmt::print("{} records of 8 + {} bytes, executor {}, {}, arrays in {} memory\n\n",
             options.records, options.value_size, ExecutorName(subject.Stats().executor),
             MediumName(subject.Stats().medium.medium), in_device ? "device" : "host");
  fmt::print("{:<14}{:>10}{:>12}{:>14}{:>14}{:>14}\n", "", "batch", "Mops/s", "p50 us", "p99 us",
             "max us");
  for (const nlohmann::json& row : report["rows"]) {
    fmt::print("{:<14}{:>10}{:>12.2f}{:>14.1f}{:>14.1f}{:>14.1f}\n",
               row["phase"].get<std::string>(), row["batch"].get<std::uint64_t>(),
               row["mops"].get<double>(), row["latency_us_p50"].get<double>(),
               row["latency_us_p99"].get<double>(), row["latency_us_max"].get<double>());
  }
}

}  // namespace

void AddBatchCommand(CLI::App& program) {
  auto options = std::make_shared<BatchOptions>();
  CLI::App* command = program.add_subcommand(
      "batch", "Throughput and latency of the store over batch sizes, for each kind of operation");
  command->add_option("--records", options->records, "Items loaded")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--operations", options->operations, "Operations of each kind and batch size")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--min-batch-log", options->min_log, "Smallest batch: 2 to this power")
      ->check(CLI::Range(0u, 30u))
      ->capture_default_str();
  command->add_option("--max-batch-log", options->max_log, "Largest batch: 2 to this power")
      ->check(CLI::Range(0u, 30u))
      ->capture_default_str();
  command->add_option("--value-size", options->value_size, "Bytes of a value")
      ->check(CLI::Range(1u, kMaxValueBytes))
      ->capture_default_str();
  const std::map<std::string, ExecutorKind> executors{
      {"auto", ExecutorKind::kAuto}, {"cpu", ExecutorKind::kCpu}, {"cuda", ExecutorKind::kCuda}};
  command
      ->add_option("--executor", options->executor, "What runs the batches; auto: cuda when it can")
      ->transform(CLI::CheckedTransformer(executors))
      ->option_text("auto|cpu|cuda");
  command->add_option("--threads", options->threads, "Threads of the cpu executor; 0: all cores");
  command
      ->add_option("--memory", options->memory,
                   "Where the arrays of a batch are; auto: device for cuda")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
  command->add_option("--theta", options->theta, "Skew of the Zipfian choice of records")
      ->check(CLI::Range(0.0, ycsb::Zipfian::kMaxTheta))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the choice of records")
      ->capture_default_str();
  command->add_option("--pool", options->pool,
                      "Pool file, which must not exist and is removed; default: one in memory");
  command->add_option("--json", options->json,
                      "Write all figures to this file; -: to stdout, with no table");
  command->callback([options] { RunBatch(*options); });
}

}  // namespace gpm::bench
