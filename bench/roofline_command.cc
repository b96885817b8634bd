#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/roofline.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct RooflineArguments {
  RooflineOptions roofline;
  std::string json;
};

void PrintRates(const char* title, const char* setting, const json& rows) {
  fmt::print("\n{:<10}{:>12}{:>10}{:>8}{:>12}{:>10}{:>10}\n", title, "", "accesses", "bytes", "M/s",
             "GB/s", setting);
  for (const json& row : rows) {
    fmt::print("{:<10}{:>12}{:>10}{:>8}{:>12.2f}{:>10.2f}{:>10}\n",
               row.at("kind").get<std::string>(), row.at("order").get<std::string>(),
               row.at("accesses").get<std::uint64_t>(), row.at("bytes").get<std::uint64_t>(),
               row.at("mops").get<double>(), row.at("gb_per_second").get<double>(),
               row.at("in_flight").get<std::uint32_t>());
  }
}

/// What follows for the simplest operation: one read of a value, wherever it lies.
json SimpleBounds(const Roofline& roofline) {
  Accesses read;
  read.random_reads = 1;
  read.read_bytes = static_cast<double>(roofline.cell_bytes);
  json rows = json::array();
  for (const LinkRates& link : roofline.link) {
    const std::vector<BoundTerm> terms = BoundTerms(roofline, read, link.accesses);
    rows.push_back({{"operation", "read a value"},
                    {"accesses", link.accesses},
                    {"mops", terms.front().per_second / 1e6},
                    {"limit", terms.front().limit}});
  }
  return rows;
}

void PrintBounds(const json& rows) {
  fmt::print("\n{:<24}{:>10}{:>12}   {}\n", "bound of", "at once", "Mops/s", "limit");
  for (const json& row : rows) {
    fmt::print("{:<24}{:>10}{:>12.2f}   {}\n", row.at("operation").get<std::string>(),
               row.at("accesses").get<std::uint64_t>(), row.at("mops").get<double>(),
               row.at("limit").get<std::string>());
  }
}

void Print(const RooflineOptions& options, const Roofline& roofline, const json& report) {
  const bool on_gpu = roofline.executor == ExecutorKind::kCuda;
  fmt::print("a range of {} bytes on {}, cells of {} bytes, executor {}{}, medians of {}\n",
             roofline.range_bytes, MediumName(roofline.medium), roofline.cell_bytes,
             ExecutorName(roofline.executor),
             on_gpu ? "" : fmt::format(" with {} threads", options.threads), options.repeats);
  PrintRates("range", on_gpu ? "blocks" : "prefetch", report.at("link"));
  if (on_gpu) {
    PrintRates("GPU memory", "blocks", report.at("memory"));
    fmt::print("an empty batch: {:.2f} us\n", roofline.empty_batch_seconds * 1e6);
  }
  PrintBounds(report.at("bounds"));
}

void RunRoofline(RooflineArguments& arguments) {
  RooflineOptions& options = arguments.roofline;
  options.threads = ThreadsOf(options.threads);
  const Clock::time_point start = Clock::now();
  const Roofline roofline = MeasureRoofline(options);
  json report = ToJson(roofline);
  report["repeats"] = options.repeats;
  report["threads"] = options.threads;
  report["bounds"] = SimpleBounds(roofline);
  report["seconds"] = SecondsSince(start);
  FinishReport("roofline", std::move(report), arguments.json,
               [&](const json& made) { Print(options, roofline, made); });
}

}  // namespace

void AddRooflineCommand(CLI::App& program) {
  auto arguments = std::make_shared<RooflineArguments>();
  RooflineOptions& roofline = arguments->roofline;
  CLI::App* command = program.add_subcommand(
      "roofline", "What the machine itself can do: accesses to a pool's range and to GPU memory");
  AddExecutorOptions(*command, &roofline.executor, &roofline.threads, "What accesses");
  command
      ->add_option("--range-bytes", roofline.range_bytes,
                   "Bytes that the accesses spread over, such as those of a pool (K, M, G); "
                   "default: 2G")
      ->transform(ByteCount());
  AddValueSizeOption(*command, &roofline.value_size);
  AddNumbers(*command, "--accesses", &roofline.accesses, WholeNumber(1, 1u << 31),
             "Accesses made at once, separated by commas; at most as many as the range has cells");
  AddRepeatsOption(*command, &roofline.repeats);
  command->add_option(
      "--pool", roofline.pool,
      "File of the range, which must not exist and is removed, or \"pinned:\"; default: one in "
      "memory");
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunRoofline(*arguments); });
}

}  // namespace gpm::bench
