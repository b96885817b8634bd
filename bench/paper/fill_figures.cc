// How full tables are: by the part of `elastic` that grows.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/elastic_bench.h"
#include "bench/kv_adapter.h"
#include "bench/paper/figures.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// Inserts between two load factors of figure 7, or a 16th of all.
constexpr std::uint64_t kFillStep = std::uint64_t{1} << 14;

/// Load factors of a table that starts small, after each batch of inserts.
json MeasureFill(const PaperArguments& arguments, const Geometry& geometry) {
  ElasticOptions options;
  options.pool = TemporaryPoolPath();
  options.geometry = geometry;
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.growths = {OpenOptions{}.growth};
  options.erases = 0;
  options.only_grows = true;
  options.batch = std::min(kFillStep, arguments.records() / 16);
  options.steps = 2 * static_cast<unsigned>(arguments.records() / options.batch);
  const json measured = MeasureElastic(options);
  json rows = json::array();
  for (const json& step : measured.at("steps")) {
    rows.push_back({{"series", GeometryName(geometry)},
                    {"geometry", GeometryName(geometry)},
                    {"items", step.at("items")},
                    {"load_factor", step.at("load_factor")},
                    {"resizes", step.at("resizes")}});
  }
  return {{"rows", std::move(rows)}, {"store", measured.at("store")}};
}

double MostOf(const json& rows) {
  double most = 0;
  for (const json& row : rows) most = std::max(most, row.at("load_factor").get<double>());
  return most;
}

}  // namespace

double MaximumLoadFactor(const PaperArguments& arguments, const Geometry& geometry) {
  return MostOf(MeasureFill(arguments, geometry).at("rows"));
}

void MeasureFigure7(const PaperArguments& arguments, json& report) {
  report.update(MeasureFill(arguments, Geometry{}));
  report["maximum_load_factor"] = MostOf(report.at("rows"));
}

}  // namespace gpm::bench
