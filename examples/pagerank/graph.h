#ifndef GPM_EXAMPLES_PAGERANK_GRAPH_H_
#define GPM_EXAMPLES_PAGERANK_GRAPH_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

/// Vertices with numbers of 32 bits, and edges between them.
struct Graph {
  /// From one vertex to another, by their places in `numbers`. They are ordered by `to`.
  struct Edge {
    std::uint32_t to = 0;
    std::uint32_t from = 0;
    auto operator<=>(const Edge&) const = default;
  };
  std::vector<std::uint32_t> numbers;  ///< of vertices that have edges, in order
  std::vector<Edge> edges;             ///< in order, each once

  /// A number that other graphs hardly have. @param seed of what else it is to tell apart
  std::uint64_t Digest(std::uint64_t seed) const;
};

/// Reads SNAP's text format: a line for each edge, "FROM<TAB>TO" or with blanks, and lines of
/// comment that begin with #. Edges that come again are left out.
/// @throws std::runtime_error naming the line
Graph ReadEdges(const std::string& path);

/// Writes the same.
void WriteEdges(const Graph& graph, const std::string& path);

/// Draws 2^scale * edge_factor edges between 2^scale vertices by R-MAT (Chakrabarti, Zhan and
/// Faloutsos, SDM 2004) with the shares that Graph500 has: 0.57, 0.19, 0.19, 0.05. Degrees follow a
/// power law, roughly. There are somewhat fewer of both, since edges may come again.
/// @param scale up to 31
Graph DrawGraph(unsigned scale, unsigned edge_factor, std::uint64_t seed);

#endif  // GPM_EXAMPLES_PAGERANK_GRAPH_H_
