#include "graph.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <fstream>
#include <random>
#include <stdexcept>
#include <utility>

namespace {

/// @param edges between numbers of vertices
Graph MakeGraph(std::vector<Graph::Edge> edges) {
  Graph graph;
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  graph.numbers.reserve(2 * edges.size());
  for (const auto& edge : edges) {
    graph.numbers.push_back(edge.to);
    graph.numbers.push_back(edge.from);
  }
  std::ranges::sort(graph.numbers);
  graph.numbers.erase(std::unique(graph.numbers.begin(), graph.numbers.end()), graph.numbers.end());
  graph.numbers.shrink_to_fit();
  const auto place = [&](std::uint32_t number) {
    return static_cast<std::uint32_t>(std::ranges::lower_bound(graph.numbers, number) -
                                      graph.numbers.begin());
  };
  for (auto& edge : edges) edge = {place(edge.to), place(edge.from)};
  graph.edges = std::move(edges);
  return graph;
}

/// Takes a number from the front of a line. @return whether there was one
bool TakeNumber(const char** at, const char* end, std::uint32_t* number) {
  while (*at != end && (**at == ' ' || **at == '\t')) ++*at;
  const auto [behind, error] = std::from_chars(*at, end, *number);
  *at = behind;
  return error == std::errc{};
}

}  // namespace

std::uint64_t Graph::Digest(std::uint64_t seed) const {
  std::uint64_t digest = seed;
  for (const Edge& edge : edges) {
    digest ^= std::uint64_t{numbers[edge.from]} << 32 | numbers[edge.to];
    digest = std::rotl(digest * 0x9e3779b97f4a7c15, 29);
  }
  return digest;
}

Graph ReadEdges(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": can't be read");
  std::vector<Graph::Edge> edges;
  std::string line;
  for (std::uint64_t number = 1; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    Graph::Edge edge;
    const char* at = line.data();
    const char* const end = at + line.size();
    if (!TakeNumber(&at, end, &edge.from) || !TakeNumber(&at, end, &edge.to) || at != end) {
      throw std::runtime_error(
          path + ", line " + std::to_string(number) +
          ": an edge is two numbers of vertices, each less than 2^32: FROM TO");
    }
    edges.push_back(edge);
  }
  if (edges.empty()) throw std::runtime_error(path + ": has no edges");
  return MakeGraph(std::move(edges));
}

void WriteEdges(const Graph& graph, const std::string& path) {
  std::ofstream file(path);
  file << "# Nodes: " << graph.numbers.size() << " Edges: " << graph.edges.size() << "\n"
       << "# FromNodeId\tToNodeId\n";
  for (const auto& edge : graph.edges) {
    file << graph.numbers[edge.from] << '\t' << graph.numbers[edge.to] << '\n';
  }
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
}

Graph DrawGraph(unsigned scale, unsigned edge_factor, std::uint64_t seed) {
  std::vector<Graph::Edge> edges(edge_factor * (std::size_t{1} << scale));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  for (auto& edge : edges) {
    for (unsigned level = 0; level < scale; ++level) {
      const double drawn = uniform(random);
      const bool to_upper = drawn >= 0.57 && (drawn < 0.76 || drawn >= 0.95);
      const bool from_upper = drawn >= 0.76;
      edge.to = edge.to << 1 | to_upper;
      edge.from = edge.from << 1 | from_upper;
    }
  }
  return MakeGraph(std::move(edges));
}
