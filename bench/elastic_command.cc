#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/contest.h"
#include "bench/elastic_bench.h"
#include "bench/options.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct ElasticArguments {
  ElasticOptions options;
  std::string geometry = GeometryName(Geometry{});
  std::string arrays = "auto";
  std::string json;
};

void Print(const json& report) {
  const json& store = report.at("store");
  fmt::print(
      "{} + {} bytes, executor {}, {}; batches of {}, {} steps, erases {}, compact below {}\n",
      store.at("key_size").get<unsigned>(), store.at("value_size").get<unsigned>(),
      store.at("executor").get<std::string>(), store.at("medium").get<std::string>(),
      report.at("batch").get<std::uint64_t>(), report.at("step_count").get<unsigned>(),
      report.at("erases").get<double>(), report.at("compact_below").get<double>());
  fmt::print("\n{:>6}{:>6}{:>12}{:>6}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}\n", "growth", "step",
             "items", "fill", "pool MB", "GPU MB", "insert", "find", "erase", "slowest", "compact",
             "resizes");
  for (const json& row : report.at("steps")) {
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    fmt::print(
        "{:>6}{:>6}{:>12}{:>6.2f}{:>9.0f}{:>8.0f}{:>8.2f}{:>8.2f}{:>8.2f}{:>9.1f}{:>8.1f}{:>8}\n",
        number("growth"), number("step"), number("items"), number("load_factor"),
        number("pm_bytes") / 1e6, number("gpu_bytes") / 1e6, number("insert_mops"),
        number("find_mops"), number("erase_mops"), number("slowest_ms"), number("compact_ms"),
        number("resizes"));
  }
  for (const json& row : report.at("steps")) {
    if (!row.contains("beside_find_mops")) continue;
    fmt::print(
        "growth {}, step {}: compacted in {:.1f} ms; batches of finds beside it {:.2f} M/s ({:.2f} "
        "before), the slowest {:.1f} ms\n",
        row.at("growth").get<double>(), row.at("step").get<unsigned>(),
        row.at("compact_ms").get<double>(), row.at("beside_find_mops").get<double>(),
        row.at("alone_find_mops").get<double>(), row.at("beside_slowest_ms").get<double>());
  }
  fmt::print("\n{:>6}{:>13}{:>14}{:>16}{:>13}{:>9}\n", "growth", "lowest fill", "bytes an item",
             "operations, M/s", "slowest, ms", "MB left");
  for (const json& row : report.at("runs")) {
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    fmt::print("{:>6}{:>13.2f}{:>14.0f}{:>16.2f}{:>13.1f}{:>9.0f}\n", number("growth"),
               number("lowest_load_factor_while_growing"), number("most_bytes_of_item"),
               number("mops"), number("slowest_ms"), number("last_pm_bytes") / 1e6);
  }
  const json& rebuild = report.at("rebuild");
  fmt::print("\na new pool with the {} items of half time: {:.3f} s, {:.2f} M/s\n",
             rebuild.at("items").get<std::uint64_t>(), rebuild.at("seconds").get<double>(),
             rebuild.at("mops").get<double>());
}

void PrintPeer(const json& report) {
  fmt::print("{}, executor {}, {} + {} bytes; batches of {}, {} steps, erases {}\n",
             report.at("peer").get<std::string>(), report.at("executor").get<std::string>(),
             report.at("key_size").get<unsigned>(), report.at("value_size").get<unsigned>(),
             report.at("batch").get<std::uint64_t>(), report.at("step_count").get<unsigned>(),
             report.at("erases").get<double>());
  fmt::print("\n{:>6}{:>12}{:>12}{:>6}{:>8}{:>8}{:>8}{:>9}\n", "step", "items", "slots", "fill",
             "insert", "find", "erase", "slowest");
  for (const json& row : report.at("steps")) {
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    fmt::print("{:>6}{:>12}{:>12}{:>6.2f}{:>8.2f}{:>8.2f}{:>8.2f}{:>9.1f}\n", number("step"),
               number("items"), number("slots"), number("load_factor"), number("insert_mops"),
               number("find_mops"), number("erase_mops"), number("slowest_ms"));
  }
}

void RunElastic(ElasticArguments& arguments) {
  ElasticOptions& options = arguments.options;
  if (options.steps % 2 != 0) {
    throw Error(ErrorCode::kInvalidArgument, "--steps: as many in each half, so an even number");
  }
  options.geometry = ParseGeometry(arguments.geometry);
  options.gpu_arrays =
      arguments.arrays == "device" ||
      (arguments.arrays == "auto" && options.executor != ExecutorKind::kCpu && GpuCount() > 0);
  json report = MeasureElastic(options);
  report.update({{"batch", options.batch},
                 {"step_count", options.steps},
                 {"erases", options.erases},
                 {"growth_pause", options.growth_pause},
                 {"grow_above", options.grow_above},
                 {"compact_below", options.compact_below},
                 {"arrays", options.gpu_arrays ? "device" : "host"},
                 {"seed", options.seed}});
  if (!options.peer.empty()) {
    report.update({{"peer", options.peer},
                   {"peer_bounds", options.peer_bounds},
                   {"executor", ExecutorName(ResolveExecutor(options.executor))},
                   {"key_size", options.key_size},
                   {"value_size", options.value_size}});
  }
  FinishReport("elastic", std::move(report), arguments.json,
               options.peer.empty() ? Print : PrintPeer);
}

}  // namespace

void AddElasticCommand(CLI::App& program) {
  auto arguments = std::make_shared<ElasticArguments>();
  ElasticOptions& options = arguments->options;
  options.growths = {OpenOptions{}.growth};
  CLI::App* command = program.add_subcommand(
      "elastic", "A table that grows and shrinks: fill, bytes, throughput, slowest batch");
  AddNumbers(*command, "--growths", &options.growths, NumberBetween(1.1, 4.0),
             "How many times the buckets of its newest level a full table's next one has; a run "
             "for each");
  AddNumber(*command, "--growth-pause", &options.growth_pause, NumberBetween(0.0, 1000.0),
            "Seconds that a growth may keep batches waiting to compose the new level; 0: the "
            "oldest is always drained beside batches");
  AddNumber(*command, "--grow-above", &options.grow_above, NumberBetween(0.0, 1.0),
            "The load factor above which the table grows for an insert that finds no slot; below "
            "it, items are moved");
  AddNumber(*command, "--compact-below", &options.compact_below, NumberBetween(0.0, 1.0),
            "Compact when the load factor is below this; 0: never");
  AddNumber(*command, "--batch", &options.batch, WholeNumber(100, 1u << 24),
            "Operations of a batch of inserts or finds");
  AddNumber(*command, "--erases", &options.erases, NumberBetween(0.0, 1.0),
            "Erases for each insert, in the second half inserts for each erase");
  AddNumber(*command, "--steps", &options.steps, WholeNumber(2, 1000), "Steps of both halves");
  AddKeySizeOption(*command, &options.key_size);
  AddValueSizeOption(*command, &options.value_size);
  command->add_option("--geometry", arguments->geometry, "Levels, locations, slots of a bucket")
      ->capture_default_str();
  AddSeedOption(*command, &options.seed, "Seed of what is found and erased");
  command->add_option(
      "--peer", options.peer,
      "Measured in the store's place, such as dyhash: one of those that `peers` has "
      "and that says how many slots it has; made for as many items as a batch");
  command
      ->add_option("--peer-bounds", options.peer_bounds,
                   "The load factors below and above which a peer that resizes itself does "
                   "(DyHash's alpha and beta); none: as published")
      ->delimiter(',')
      ->expected(2)
      ->check(NumberBetween(0.01, 1.0))
      ->needs("--peer");
  AddExecutorOptions(*command, &options.executor, &options.threads);
  command
      ->add_option("--arrays", arguments->arrays,
                   "Where batches have their arrays; auto: in GPU memory on executor cuda")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
  AddPoolOption(*command, &options.pool);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunElastic(*arguments); });
}

}  // namespace gpm::bench
