// `gpmstore_bench paper`.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/contest.h"
#include "bench/options.h"
#include "bench/paper/figures.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

void RunPaper(PaperArguments arguments) {
  const auto figure = std::ranges::find(Figures(), arguments.figure, &Figure::name);
  if (!arguments.peers.empty() && !figure->peers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--peers: figure {} is of the store alone", figure->name));
  }
  if (!arguments.batches.empty() && figure->name != "5" && figure->name != "6") {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--batches: figure {} has its own", figure->name));
  }
  if (figure->peers) {
    arguments.executor = ResolveExecutor(arguments.executor);
    PaperPeers(arguments);  // that there are such, before anything is measured
  }
  json report = {{"figure", figure->name},       {"what", figure->what},
                 {"scale", arguments.scale},     {"records", arguments.records()},
                 {"repeats", arguments.repeats}, {"rows", json::array()}};
  figure->measure(arguments, report);
  FinishReport("paper", std::move(report), arguments.json, [](const json& made) {
    fmt::print("figure {}: {} rows\n", made.at("figure").get<std::string>(),
               made.at("rows").size());
  });
}

}  // namespace

std::uint64_t PaperArguments::batch() const { return std::min(kPaperBatch, records()); }

const std::vector<Figure>& Figures() {
  static const std::vector<Figure> figures = {
      {"5", "workloads over batch sizes, keys of 8 bytes", true, MeasureFigure5},
      {"6", "workloads over batch sizes, keys of 32 bytes", true, MeasureFigure6},
      {"7", "load factor over inserts", true, MeasureFigure7},
      {"8", "accesses to persistent memory and time, by phase", false, MeasureFigure8},
      {"9", "one accelerator more at each step", false, MeasureFigure9},
      {"10", "PageRank and DLRM inference", true, MeasureFigure10},
      {"11", "policies and sizes of the cache", false, MeasureFigure11},
      {"12", "key sizes, skew", true, MeasureFigure12},
      {"13", "geometries", false, MeasureFigure13},
      {"14", "resizing and opening over items", false, MeasureFigure14},
      {"15", "loading caches of several sizes", false, MeasureFigure15},
      {"fill", "throughput over load factors", false, MeasureFill},
      {"streams", "throughput over streams that batches come from", false, MeasureStreams},
      {"values", "throughput over value sizes", false, MeasureValues}};
  return figures;
}

void AddPaperCommand(CLI::App& program) {
  auto arguments = std::make_shared<PaperArguments>();
  CLI::App* command = program.add_subcommand(
      "paper",
      "What a figure of GPHash's evaluation shows, of our store and of peers on this machine");
  std::vector<std::string> names;
  std::string help;
  for (const Figure& figure : Figures()) {
    names.push_back(figure.name);
    help += fmt::format("{}{} ({})", help.empty() ? "" : ", ", figure.name, figure.what);
  }
  command->add_option("--figure", arguments->figure, help)->required()->check(CLI::IsMember(names));
  AddNumber(*command, "--scale", &arguments->scale, NumberBetween(0.0005, 100.0),
            "Share of the paper's 16 million records");
  AddRepeatsOption(*command, &arguments->repeats);
  command
      ->add_option("--peers", arguments->peers,
                   fmt::format("Measured beside the store in figures 5, 6, 7, 10 and 12, or none; "
                               "by default those that the paper has; on cuda: {}; on cpu: {}",
                               fmt::join(PeerNames(ycsb::Memory::kDevice), ", "),
                               fmt::join(PeerNames(ycsb::Memory::kHost), ", ")))
      ->delimiter(',');
  command
      ->add_option("--batches", arguments->batches,
                   "Operations of a batch in figures 5 and 6, several sizes; by default 2^10, 2^12 "
                   "... 2^20")
      ->delimiter(',');
  AddExecutorOptions(*command, &arguments->executor, &arguments->threads);
  AddJsonOption(*command, &arguments->json);
  command->get_option("--json")->required();
  command->callback([arguments] { RunPaper(*arguments); });
}

}  // namespace gpm::bench
