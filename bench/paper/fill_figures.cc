// How full tables are: by the part of `elastic` that grows.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/contest.h"
#include "bench/elastic_bench.h"
#include "bench/kv_adapter.h"
#include "bench/paper/figures.h"
#include "bench/peer.h"
#include "bench/report.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// Inserts between two load factors of figure 7, or a 16th of all.
constexpr std::uint64_t kFillStep = std::uint64_t{1} << 14;

/// A table that grows by inserts alone, a batch at a time.
ElasticOptions OptionsOf(const PaperArguments& arguments) {
  ElasticOptions options;
  options.pool = TemporaryPoolPath();
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.growths = {OpenOptions{}.growth};
  options.erases = 0;
  options.end = ElasticEnd::kGrown;
  return options;
}

/// Load factors of a table that starts small, after each batch of inserts.
json MeasureLoadFactors(const PaperArguments& arguments, const Geometry& geometry) {
  ElasticOptions options = OptionsOf(arguments);
  options.geometry = geometry;
  options.batch = std::min(kFillStep, arguments.records() / 16);
  options.steps = 2 * static_cast<unsigned>(arguments.records() / options.batch);
  const json measured = MeasureElastic(options);
  json rows = json::array();
  for (const json& step : measured.at("steps")) {
    rows.push_back({{"series", kStoreName},
                    {"geometry", GeometryName(geometry)},
                    {"items", step.at("items")},
                    {"load_factor", step.at("load_factor")},
                    {"resizes", step.at("resizes")}});
  }
  return {{"rows", std::move(rows)}, {"store", measured.at("store")}};
}

/// Why a peer is not in figure 7; empty if it is.
std::string WhyNotFilled(const Peer& peer) {
  const ElasticOptions options;
  std::string why = WhyNotItems(peer, options.key_size, options.value_size);
  if (why.empty() && peer.can.builds_once) why = "one batch inserts all items";
  if (why.empty() &&
      peer.make({.items = 1000, .max_batch = 1, .value_bytes = options.value_size})->SlotCount() ==
          0) {
    why = "it does not say how many slots it has";
  }
  return why;
}

/// The same of a peer. One that grows starts small; of one that does not, with as many slots as
/// there are records or a little more, the last is before the batch of which an insert finds no
/// slot.
json MeasurePeerLoadFactors(const PaperArguments& arguments, const Peer& peer) {
  ElasticOptions options = OptionsOf(arguments);
  options.peer = peer.name;
  options.batch = std::min(kFillStep, arguments.records() / 16);
  options.steps = 2 * static_cast<unsigned>(arguments.records() / options.batch);
  if (!peer.can.grows) {
    options.initial_capacity = arguments.records();
    options.peer_fill = 1;
    options.steps *= 2;  // more than there are slots
    options.end = ElasticEnd::kFull;
  }
  const json measured = MeasureElastic(options);
  json rows = json::array();
  for (const json& step : measured.at("steps")) {
    rows.push_back({{"series", peer.name},
                    {"items", step.at("items")},
                    {"slots", step.at("slots")},
                    {"load_factor", step.at("load_factor")}});
  }
  return rows;
}

double MostOf(const json& rows) {
  double most = 0;
  for (const json& row : rows) most = std::max(most, row.at("load_factor").get<double>());
  return most;
}

}  // namespace

double MaximumLoadFactor(const PaperArguments& arguments, const Geometry& geometry) {
  return MostOf(MeasureLoadFactors(arguments, geometry).at("rows"));
}

void MeasureFigure7(const PaperArguments& arguments, json& report) {
  report.update(MeasureLoadFactors(arguments, Geometry{}));
  report["maximum_load_factor"] = {{kStoreName, MostOf(report.at("rows"))}};
  report["left_out"] = json::array();
  for (const std::string& name : PaperPeers(arguments)) {
    const Peer& peer = FindPeer(name, MemoryOf(arguments.executor));
    if (const std::string why = WhyNotFilled(peer); !why.empty()) {
      report["left_out"].push_back({{"contestant", name}, {"why", why}});
      continue;
    }
    json rows = MeasurePeerLoadFactors(arguments, peer);
    report["maximum_load_factor"][name] = MostOf(rows);
    for (json& row : rows) report["rows"].push_back(std::move(row));
  }
}

// Inserts, and as many finds, at each fill that a table comes to before it grows.
void MeasureFill(const PaperArguments& arguments, json& report) {
  constexpr unsigned kSteps = 64;  // to the initial capacity; a table has room for more
  ElasticOptions options = OptionsOf(arguments);
  options.initial_capacity = arguments.records();
  options.grow_above = 1;  // when no item can be moved to make room, and no earlier
  options.end = ElasticEnd::kResized;
  options.batch = std::max<std::uint64_t>(arguments.records() / kSteps, 1);
  options.steps = 8 * kSteps;
  std::vector<json> runs;
  std::size_t steps = options.steps;  // before any of them has grown
  for (unsigned repeat = 0; repeat < arguments.repeats; ++repeat) {
    json measured = MeasureElastic(options);
    report["store"] = measured.at("store");
    runs.push_back(std::move(measured.at("steps")));
    const auto grown =
        std::ranges::find_if(runs.back(), [](const json& step) { return step.at("resizes") > 0; });
    steps = std::min(steps, static_cast<std::size_t>(grown - runs.back().begin()));
  }
  for (std::size_t i = 0; i < steps; ++i) {
    for (const std::string series : {"insert", "find"}) {
      std::vector<double> mops;
      for (const json& run : runs) mops.push_back(run[i].at(series + "_mops"));
      report["rows"].push_back({{"series", series},
                                {"batch", options.batch},
                                {"items", runs[0][i].at("items")},
                                {"load_factor", runs[0][i].at("load_factor")},
                                {"mops", Median(mops)}});
    }
  }
}

}  // namespace gpm::bench
