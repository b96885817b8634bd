// PageRank of a graph that is in the store, and of the same in memory. See --help.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "../rows.h"
#include "../store_options.h"
#include "graph.h"
#include "page_rank.h"

namespace {

struct Arguments {
  std::string edges;
  unsigned scale = 16;
  unsigned edge_factor = 16;
  std::uint64_t seed = 1;
  std::string write_edges;
  std::uint64_t iterations = 10;
  double damping = 0.85;
  std::size_t batch = 4096;
  double tolerance = 1e-9;
  bool check = true;
  bool map = false;
  std::uint64_t kill_in = 0;
  examples::StoreOptions store;
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

/// @return whether the ranks are right, as far as that is asked
bool RunOn(examples::Rows<VertexRow>* rows, const Graph& graph, const Arguments& arguments) {
  PageRank page_rank(graph, arguments.damping, arguments.batch, rows);
  auto start = std::chrono::steady_clock::now();
  page_rank.Load();
  std::printf("loaded in %.3f s; %llu iterations are done\n", Seconds(start),
              static_cast<unsigned long long>(page_rank.iterations()));
  // The cache, if any, is filled after the first iteration, and the others are measured.
  rows->StartMeasuring();
  for (bool is_first = true; page_rank.iterations() < arguments.iterations; is_first = false) {
    start = std::chrono::steady_clock::now();
    const double change = page_rank.Iterate(page_rank.iterations() + 1 == arguments.kill_in);
    std::printf("iteration %llu: %.3f s, ranks changed by %.3g\n",
                static_cast<unsigned long long>(page_rank.iterations()), Seconds(start), change);
    if (is_first && page_rank.iterations() < arguments.iterations) rows->StartMeasuring();
  }
  if (arguments.kill_in > 0) {
    throw std::runtime_error(
        "--kill-in: nothing was killed: that iteration is none of those that were done here, or is "
        "one batch, which has no middle");
  }
  rows->Print();

  const std::vector<double> ranks = page_rank.Ranks();
  const auto highest = std::ranges::max_element(ranks);
  std::printf("highest rank: %.6g, of vertex %u; sum of ranks: %.9f\n", *highest,
              graph.numbers[static_cast<std::size_t>(highest - ranks.begin())],
              std::accumulate(ranks.begin(), ranks.end(), 0.0));
  if (!arguments.check) return true;
  const double difference =
      LargestDifference(ranks, PlainPageRank(graph, arguments.damping, page_rank.iterations()));
  const bool is_right = difference <= arguments.tolerance;
  std::printf("ranks are %s: they differ by at most %.3g of what a plain computation has\n",
              is_right ? "right" : "WRONG", difference);
  return is_right;
}

bool Run(const Arguments& arguments) {
  examples::RequireOtherFile("--write-edges", arguments.write_edges,
                             {arguments.edges, arguments.store.pool});
  const Graph graph = arguments.edges.empty()
                          ? DrawGraph(arguments.scale, arguments.edge_factor, arguments.seed)
                          : ReadEdges(arguments.edges);
  std::printf("%zu vertices, %zu edges\n", graph.numbers.size(), graph.edges.size());
  if (!arguments.write_edges.empty()) WriteEdges(graph, arguments.write_edges);
  examples::StoreRows<VertexRow> store(arguments.store.pool, arguments.store.open);
  bool is_right = RunOn(&store, graph, arguments);
  if (arguments.map) {
    examples::MapRows<VertexRow> map;
    is_right = RunOn(&map, graph, arguments) && is_right;
  }
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "PageRank of a graph whose vertices and edges are in the store: each iteration finds, for "
      "each edge, the rank that it comes from, in batches, and updates the rank of each vertex. "
      "With --pool, an iteration that was cut off is done again by the next process. Exits with 1 "
      "if the ranks are not those of a plain computation in memory.",
      "pagerank");
  Arguments arguments;
  auto* const edges =
      app.add_option("edges", arguments.edges,
                     "Edges in SNAP's text format, \"FROM<TAB>TO\" a line; else a graph is drawn")
          ->option_text("FILE");
  app.add_option("--scale", arguments.scale,
                 "Draw a graph of 2^SCALE vertices by R-MAT, as Graph500 does; default 16")
      ->check(CLI::Range(1u, 31u))
      ->excludes(edges);
  app.add_option("--edge-factor", arguments.edge_factor,
                 "Edges that are drawn for each vertex; default 16")
      ->check(CLI::Range(1u, 1024u))
      ->excludes(edges);
  app.add_option("--seed", arguments.seed, "Of the graph; default 1")->excludes(edges);
  app.add_option("--write-edges", arguments.write_edges, "Write the graph in SNAP's format, too")
      ->option_text("FILE");
  app.add_option("--iterations", arguments.iterations, "In all; default 10");
  app.add_option("--damping", arguments.damping, "Share of rank that follows edges; default 0.85")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--batch", arguments.batch, "Operations of a batch, at most; default 4096")
      ->check(CLI::Range(1u, 1u << 24));
  app.add_option("--tolerance", arguments.tolerance,
                 "Share of its rank by which one may differ; default 1e-9");
  app.add_flag("!--no-check", arguments.check, "Compare the ranks with nothing");
  app.add_flag("--map", arguments.map,
               "Do the same with a std::unordered_map in the store's place");
  app.add_option("--kill-in", arguments.kill_in,
                 "Kill the process in the middle of this iteration, to see that the next goes on")
      ->option_text("ITERATION");
  examples::AddStoreOptions(app, &arguments.store);
  return examples::Main(app, argc, argv, [&] { return Run(arguments); });
}
