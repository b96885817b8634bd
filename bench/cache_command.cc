#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/cache_bench.h"
#include "bench/commands.h"
#include "bench/options.h"
#include "bench/report.h"
#include "pm/clock.h"
#include "support/option_checks.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// All policies that cache something.
std::vector<std::string> CachedPolicies() {
  std::vector<std::string> names = CachePolicyNames();
  std::erase(names, CachePolicyName(CachePolicy::kOff));
  return names;
}

struct CacheArguments {
  CacheBenchOptions bench;
  std::vector<std::string> sections = {"sizes", "theta", "load", "cost"};
  std::vector<std::string> policies = CachedPolicies();
  bool quick = false;
  std::string json;
  const CLI::App* command = nullptr;  ///< which says what was given
};

double Number(const json& row, const char* key) { return row.value(key, 0.0); }
std::string Text(const json& row, const char* key) { return row.at(key).get<std::string>(); }
std::uint64_t Count(const json& row, const char* key) { return row.at(key).get<std::uint64_t>(); }

void PrintSizes(const json& rows) {
  fmt::print("\n{:<10}{:>9}{:>8}{:>7}{:>10}{:>10}{:>10}{:>13}{:>10}\n", "workload", "batch",
             "policy", "size", "Mops/s", "speedup", "hit rate", "best static", "of best");
  for (const json& row : rows) {
    fmt::print("{:<10}{:>9}{:>8}{:>6.0f}%{:>10.2f}{:>10.2f}{:>10.3f}", Text(row, "workload"),
               Count(row, "batch"),
               row.at("directory").get<bool>() ? Text(row, "policy") : "no dir.",
               Number(row, "fraction") * 100, Number(row, "mops"), Number(row, "speedup"),
               Number(row, "hit_rate"));
    const std::string policy = Text(row, "policy");
    if (policy == CachePolicyName(CachePolicy::kLfu) ||
        policy == CachePolicyName(CachePolicy::kTinyLfu)) {
      fmt::print("{:>13.3f}{:>10.3f}", Number(row, "best_static"), Number(row, "of_best_static"));
    }
    fmt::print("\n");
  }
}

void PrintTheta(const json& rows) {
  fmt::print("\n{:<10}{:>9}{:>10}{:>10}{:>10}{:>10}{:>13}{:>10}\n", "theta", "batch", "neither",
             "tinylfu", "speedup", "hit rate", "best static", "of best");
  for (const json& row : rows) {
    fmt::print("{:<10}{:>9}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.3f}{:>13.3f}{:>10.3f}\n",
               Number(row, "theta"), Count(row, "batch"), Number(row, "mops_no_cache"),
               Number(row, "mops"), Number(row, "speedup"), Number(row, "hit_rate"),
               Number(row, "best_static"), Number(row, "of_best_static"));
  }
}

void PrintLoad(const json& rows) {
  fmt::print("\n{:<10}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "loading",
             "batches", "hits old", "hits new", "ms", "steady", "lowest", "ratio", "after",
             "batch");
  for (const json& row : rows) {
    fmt::print("{:<10}{:>9}{:>11.3f}{:>10.3f}{:>10.1f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10}\n",
               Text(row, "workload"), Text(row, "mode"), Number(row, "hit_rate_before"),
               Number(row, "hit_rate_after"),
               Number(row, "load_end_ms") - Number(row, "load_begin_ms"),
               Number(row, "steady_mops"), Number(row, "lowest_mops"),
               Number(row, "lowest_of_steady"), Number(row, "after_mops"), Count(row, "batch"));
  }
}

void PrintCost(const json& rows) {
  fmt::print("\n{:<10}{:>9}{:>10}{:>10}{:>10}\n", "cost", "batch", "neither", "tinylfu", "ratio");
  for (const json& row : rows) {
    fmt::print("{:<10}{:>9}{:>10.2f}{:>10.2f}{:>10.3f}\n", Text(row, "workload"),
               Count(row, "batch"), Number(row, "mops_no_cache"), Number(row, "mops"),
               Number(row, "ratio"));
  }
}

/// What --quick changes where nothing was given.
void MakeQuick(CacheArguments& arguments) {
  const auto set = [&](const std::string& option, auto& value, auto quick) {
    if (arguments.command->count(option) == 0) value = quick;
  };
  CacheBenchOptions& bench = arguments.bench;
  set("--records", bench.records, 200'000u);
  set("--operations", bench.operations, 1u << 16);
  set("--warm-up", bench.warm_up, 1u << 15);
  set("--inserts", bench.inserts, 1u << 16);
  set("--batches", bench.batches, std::vector<std::uint64_t>{4096});
  set("--repeats", bench.repeats, 1u);
}

void RunCache(CacheArguments& arguments) {
  if (arguments.quick) MakeQuick(arguments);
  CacheBenchOptions& options = arguments.bench;
  options.policies.clear();
  for (const std::string& name : CachedPolicies()) {
    if (std::ranges::count(arguments.policies, name) > 0) {
      options.policies.push_back(CachePolicyOf(name));
    }
  }
  if (options.pool == "pinned:") {
    throw Error(ErrorCode::kInvalidArgument,
                "--pool pinned: can't be opened again, as this benchmark does; name a file");
  }
  if (options.operations + 2 * options.warm_up >= ~0u || options.inserts >= ~0u ||
      options.records >= ~0u) {
    throw Error(ErrorCode::kInvalidArgument,
                "records, operations with two warm-ups, and inserts are below 2^32 each");
  }
  const Clock::time_point start = Clock::now();
  CacheBench bench(options);
  json report = {{"store", StoreFacts(bench.stats())},
                 {"records", options.records},
                 {"operations", options.operations},
                 {"warm_up", options.warm_up},
                 {"inserts", options.inserts},
                 {"repeats", options.repeats},
                 {"distribution", ycsb::DistributionName(options.distribution)},
                 {"theta", options.theta},
                 {"seed", options.seed}};
  struct Section {
    json (CacheBench::*measure)();
    void (*print)(const json& rows);
  };
  const std::map<std::string, Section> sections = {{"sizes", {&CacheBench::Sizes, PrintSizes}},
                                                   {"theta", {&CacheBench::Theta, PrintTheta}},
                                                   {"load", {&CacheBench::Load, PrintLoad}},
                                                   {"cost", {&CacheBench::Cost, PrintCost}}};
  const bool table = PrintsTables(arguments.json);
  if (table) {
    fmt::print("{} records of {} + {} bytes, executor {}, {}, distribution {}, medians of {}\n",
               options.records, options.key_size, options.value_size,
               ExecutorName(bench.stats().executor), MediumName(bench.stats().medium.medium),
               ycsb::DistributionName(options.distribution), options.repeats);
  }
  for (const std::string& name : arguments.sections) {
    const Section& section = sections.at(name);
    report[name] = (bench.*section.measure)();
    ShowProgress("");
    if (table) section.print(report[name]);
    std::fflush(stdout);
  }
  report["seconds"] = SecondsSince(start);
  FinishReport("cache", std::move(report), arguments.json);
}

}  // namespace

void AddCacheCommand(CLI::App& program) {
  auto arguments = std::make_shared<CacheArguments>();
  CacheBenchOptions& bench = arguments->bench;
  CLI::App* command = program.add_subcommand(
      "cache", "What the bucket cache gives and costs: sizes and policies, skew, loading");
  arguments->command = command;
  const auto count = [&](const char* name, std::uint64_t* value, std::uint64_t least,
                         const char* help) {
    AddNumber(*command, name, value, WholeNumber(least, 1u << 31), help);
  };
  command->add_option("--sections", arguments->sections, "What is measured, separated by commas")
      ->check(CLI::IsMember({"sizes", "theta", "load", "cost"}))
      ->delimiter(',')
      ->capture_default_str();
  count("--records", &bench.records, 1000, "Items loaded");
  count("--operations", &bench.operations, 1, "Operations measured at once");
  count("--warm-up", &bench.warm_up, 1, "Operations before each of the two loadings of the cache");
  count("--inserts", &bench.inserts, 1, "Items inserted into an empty pool, for the cost");
  AddNumbers(*command, "--batches", &bench.batches, WholeNumber(1, 1u << 30),
             "Operations of a batch, separated by commas");
  AddRepeatsOption(*command, &bench.repeats);
  AddKeySizeOption(*command, &bench.key_size);
  AddValueSizeOption(*command, &bench.value_size);
  const std::map<std::string, ycsb::Distribution> distributions{
      {"zipf", ycsb::Distribution::kZipf}, {"zipfian", ycsb::Distribution::kZipfian}};
  command
      ->add_option("--distribution", bench.distribution,
                   "zipf: Zipfian over the records; zipfian: YCSB's, much less skewed; "
                   "default: zipf")
      ->transform(CLI::CheckedTransformer(distributions))
      ->option_text("zipf|zipfian");
  AddThetaOption(*command, &bench.theta, "Skew, where it is not what is varied");
  AddNumbers(*command, "--thetas", &bench.thetas, NumberBetween(0.0, ycsb::Zipfian::kMaxTheta),
             "Skews of section theta, separated by commas");
  command
      ->add_option("--workloads", bench.workloads,
                   "Workloads of sections sizes and load, separated by commas: c, a")
      ->check(CLI::IsMember({"c", "a"}))
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--policies", arguments->policies,
                   "Policies of section sizes, separated by commas")
      ->check(CLI::IsMember(CachedPolicies()))
      ->delimiter(',')
      ->capture_default_str();
  AddNumbers(*command, "--fractions", &bench.fractions, NumberBetween(0.0, 1.0),
             "Shares of the buckets cached in section sizes, separated by commas");
  AddSeedOption(*command, &bench.seed, "Seed of the operations");
  AddExecutorOptions(*command, &bench.executor, &bench.threads);
  AddPoolOption(*command, &bench.pool);
  AddJsonOption(*command, &arguments->json);
  command->add_flag("--quick", arguments->quick, "A small run, to see that it works");
  command->callback([arguments] { RunCache(*arguments); });
}

}  // namespace gpm::bench
