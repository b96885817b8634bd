// Figure 10: PageRank and DLRM inference (examples/pagerank, examples/dlrm_inference), of which the
// store and peers hold the items.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/application_table.h"
#include "bench/contest.h"
#include "bench/paper/figures.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "examples/dlrm_inference/inference.h"
#include "examples/pagerank/page_rank.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

constexpr std::uint32_t kValueBytes = sizeof(VertexRow);
static_assert(sizeof(Embedding) == kValueBytes);
/// Rows of a batch, at most.
constexpr std::uint64_t kMaxBatch = kLoadBatch;
constexpr std::size_t kLines = 128;  ///< of a batch of predictions, with 26 look-ups each
constexpr double kDamping = 0.85;
constexpr unsigned kIterations = 4;  ///< the first is not measured
constexpr double kTolerance = 1e-9;

/// Measures one run on rows. @return seconds of what is measured
/// @throws Error(kDamaged) when what comes out is not right
template <class Row>
using Run = std::function<double(examples::Rows<Row>& rows)>;

/// The store or a peer, empty, with room for the items. @param name kStoreName or a peer's
/// @param report as CacheBesidePeers
std::unique_ptr<ApplicationTable> MakeTable(const PaperArguments& arguments,
                                            const std::string& name, std::uint64_t items,
                                            json& report) {
  const ycsb::Memory memory = MemoryOf(arguments.executor);
  if (name == kStoreName) {
    CreateOptions create;
    create.value_size = kValueBytes;
    create.initial_capacity = items;
    OpenOptions open;
    open.executor = arguments.executor;
    open.threads = arguments.threads;
    open.cache = CacheBesidePeers(arguments.executor, report);
    return std::make_unique<ApplicationTable>(std::make_unique<StoreAdapter>("", create, open),
                                              StoreAdapter::CapabilitiesOf(memory), kMaxBatch,
                                              kValueBytes);
  }
  const Peer& peer = FindPeer(name, memory);
  return std::make_unique<ApplicationTable>(peer.make({.items = items,
                                                       .max_batch = kMaxBatch,
                                                       .value_bytes = kValueBytes,
                                                       .threads = ThreadsOf(arguments.threads)}),
                                            peer.can, kMaxBatch, kValueBytes);
}

/// Adds a row for each contestant. @param items that the application has
template <class Row>
void Measure(const PaperArguments& arguments, const std::vector<std::string>& names,
             const char* application, std::uint64_t items, const Run<Row>& run, json& report) {
  for (const std::string& name : names) {
    std::vector<double> seconds, find_mops, find_us, write_mops, write_us;
    json row = {{"series", name}, {"application", application}, {"items", items}};
    for (unsigned repeat = 1; repeat <= arguments.repeats; ++repeat) {
      ShowProgress(fmt::format("{}, {}, repeat {}", application, name, repeat));
      const std::unique_ptr<ApplicationTable> table = MakeTable(arguments, name, items, report);
      TableRows<Row> rows(name, table.get());
      try {
        seconds.push_back(run(rows));
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}, {}: {}", application, name, error.what()));
      } catch (const std::runtime_error& error) {  // the application's
        throw Error(ErrorCode::kDamaged,
                    fmt::format("{}, {}: {}", application, name, error.what()));
      }
      find_mops.push_back(rows.finds().mops());
      find_us.push_back(rows.finds().median_seconds() * 1e6);
      write_mops.push_back(rows.writes().mops());
      write_us.push_back(rows.writes().median_seconds() * 1e6);
      if (const auto* const store = dynamic_cast<const StoreAdapter*>(&table->adapter())) {
        report["store"] = StoreFacts(store->Stats());
      }
    }
    row["seconds"] = Median(seconds);
    row["find_mops"] = Median(find_mops);
    row["find_batch_us_p50"] = Median(find_us);
    if (Median(write_mops) > 0) {
      row["write_mops"] = Median(write_mops);
      row["write_batch_us_p50"] = Median(write_us);
    }
    report["rows"].push_back(std::move(row));
  }
}

void MeasurePageRank(const PaperArguments& arguments, const std::vector<std::string>& names,
                     json& report) {
  const auto log = static_cast<unsigned>(
      std::bit_width(std::max<std::uint64_t>(arguments.records() / 16, 2)) - 1);
  const Graph graph = DrawGraph(log, 16, 1);
  report["pagerank"] = {{"vertices", graph.numbers.size()},
                        {"edges", graph.edges.size()},
                        {"iterations", kIterations},
                        {"batch", kPaperBatch}};
  const std::vector<double> right = PlainPageRank(graph, kDamping, kIterations);
  examples::MapRows<VertexRow> map;
  PageRank(graph, kDamping, kPaperBatch, &map).Load();
  Measure<VertexRow>(
      arguments, names, "pagerank", map.items(),
      [&](examples::Rows<VertexRow>& rows) {
        PageRank page_rank(graph, kDamping, kPaperBatch, &rows);
        page_rank.Load();
        page_rank.Iterate();
        rows.StartMeasuring();
        const Clock::time_point start = Clock::now();
        while (page_rank.iterations() < kIterations) page_rank.Iterate();
        const double seconds = SecondsSince(start);
        const double difference = LargestDifference(page_rank.Ranks(), right);
        if (!(difference <= kTolerance)) {
          throw Error(ErrorCode::kDamaged, fmt::format("a rank differs by {:.3g}", difference));
        }
        return seconds;
      },
      report);
}

void MeasureDlrm(const PaperArguments& arguments, const std::vector<std::string>& names,
                 json& report) {
  const std::vector<Impression> lines =
      DrawCriteo(std::max<std::uint64_t>(arguments.records() / 64, 1), 1);
  const std::span<const Impression> trained =
      std::span(lines).first(TrainedLines(lines.size(), 0.9));
  report["dlrm"] = {{"lines", lines.size()}, {"batch", kLines * kCategories}};
  examples::MapRows<Embedding> map;
  LoadEmbeddings(trained, &map);
  const Predictions right = Predict(lines, kLines, &map);
  Measure<Embedding>(
      arguments, names, "dlrm", map.items(),
      [&](examples::Rows<Embedding>& rows) {
        LoadEmbeddings(trained, &rows);
        Predict(lines, kLines, &rows);
        rows.StartMeasuring();
        const Clock::time_point start = Clock::now();
        const Predictions predictions = Predict(lines, kLines, &rows);
        const double seconds = SecondsSince(start);
        if (predictions != right) {
          throw Error(ErrorCode::kDamaged, "predictions are not those of a std::unordered_map");
        }
        return seconds;
      },
      report);
}

}  // namespace

void MeasureFigure10(const PaperArguments& arguments, json& report) {
  std::vector<std::string> names = {kStoreName};
  report["left_out"] = json::array();
  for (const std::string& name : PaperPeers(arguments)) {
    const Peer& peer = FindPeer(name, MemoryOf(arguments.executor));
    std::string why = WhyNotItems(peer, sizeof(std::uint64_t), kValueBytes);
    if (why.empty() && !ApplicationTable::IsFor(peer.can)) why = "it has not the operations";
    if (why.empty()) {
      names.push_back(name);
    } else {
      report["left_out"].push_back({{"contestant", name}, {"why", why}});
    }
  }
  MeasurePageRank(arguments, names, report);
  MeasureDlrm(arguments, names, report);
}

}  // namespace gpm::bench
