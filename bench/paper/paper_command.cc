// `gpmstore_bench paper`.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/options.h"
#include "bench/paper/figures.h"
#include "bench/report.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

void RunPaper(const PaperArguments& arguments) {
  const auto figure = std::ranges::find(Figures(), arguments.figure, &Figure::name);
  json report = {{"benchmark", "paper"},           {"figure", figure->name},
                 {"what", figure->what},           {"scale", arguments.scale},
                 {"records", arguments.records()}, {"repeats", arguments.repeats},
                 {"commit", arguments.commit},     {"machine", MachineFacts()},
                 {"rows", json::array()}};
  figure->measure(arguments, report);
  ShowProgress("");
  if (arguments.json != "-") {
    fmt::print("figure {}: {} rows\n", figure->name, report.at("rows").size());
  }
  WriteJson(report, arguments.json);
}

}  // namespace

std::uint64_t PaperArguments::batch() const { return std::min(kPaperBatch, records()); }

const std::vector<Figure>& Figures() {
  static const std::vector<Figure> figures = {
      {"5", "workloads over batch sizes, keys of 8 bytes", MeasureFigure5},
      {"6", "workloads over batch sizes, keys of 32 bytes", MeasureFigure6},
      {"7", "load factor over inserts", MeasureFigure7},
      {"8", "accesses to persistent memory and time, by phase", MeasureFigure8},
      {"9", "one accelerator more at each step", MeasureFigure9},
      {"11", "policies and sizes of the cache", MeasureFigure11},
      {"12", "key sizes, skew", MeasureFigure12},
      {"13", "geometries", MeasureFigure13},
      {"14", "resizing and opening over items", MeasureFigure14},
      {"15", "loading caches of several sizes", MeasureFigure15},
      {"fill", "throughput over load factors", MeasureFill},
      {"values", "throughput over value sizes", MeasureValues}};
  return figures;
}

void AddPaperCommand(CLI::App& program) {
  auto arguments = std::make_shared<PaperArguments>();
  CLI::App* command = program.add_subcommand(
      "paper", "What a figure of GPHash's evaluation shows, of our store on this machine");
  std::vector<std::string> names;
  std::string help;
  for (const Figure& figure : Figures()) {
    names.push_back(figure.name);
    help += fmt::format("{}{} ({})", help.empty() ? "" : ", ", figure.name, figure.what);
  }
  command->add_option("--figure", arguments->figure, help)->required()->check(CLI::IsMember(names));
  command->add_option("--scale", arguments->scale, "Share of the paper's 16 million records")
      ->check(CLI::Range(0.0005, 100.0))
      ->capture_default_str();
  command->add_option("--repeats", arguments->repeats, "Repeats, of which medians are given")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--commit", arguments->commit, "Noted in the report");
  AddExecutorOptions(*command, &arguments->executor, &arguments->threads);
  AddJsonOption(*command, &arguments->json);
  command->get_option("--json")->required();
  command->callback([arguments] { RunPaper(*arguments); });
}

}  // namespace gpm::bench
