#ifndef GPM_EXAMPLES_PAGERANK_PAGE_RANK_H_
#define GPM_EXAMPLES_PAGERANK_PAGE_RANK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../rows.h"
#include "graph.h"

/// An item of a vertex, under its number: its rank before and after an iteration, and where its
/// first edges come from. GPHash's values have 128 bytes (FAST 2025, section 4.1).
struct VertexRow {
  std::array<double, 2> rank{};  ///< after i iterations it is rank[i % 2]
  std::uint32_t out_degree = 0;
  std::uint32_t in_degree = 0;
  std::array<std::uint32_t, 26> from{};
};
static_assert(sizeof(VertexRow) == 128);

/// PageRank (Brin and Page 1998) of a graph whose vertices and edges are all in rows. In memory
/// there are the numbers of the vertices, and what one batch of vertices is about.
///
/// Invariant: after a crash at any point, the rows that belong to the iterations that are done are
/// as they were, since an iteration reads one rank of each vertex and writes the other, and what is
/// done is written last, in an item of its own. So what was cut off is done again.
class PageRank {
 public:
  /// @param graph outlives this; its edges are used by Load alone
  /// @param rows outlives this
  /// @param batch operations of a batch, at most
  PageRank(const Graph& graph, double damping, std::size_t batch, examples::Rows<VertexRow>* rows);

  /// Writes the graph's rows, or goes on where an earlier process of the same graph and damping was
  /// cut off. @throws std::runtime_error (the rows are of another)
  void Load();

  /// One more iteration: finds the rows of each vertex and of all vertices that have an edge to it,
  /// and writes its new rank. REQUIRES: Load.
  /// @param killed the process is killed when half of the vertices are done
  /// @return the sum of what ranks have changed by
  double Iterate(bool killed = false);

  std::uint64_t iterations() const { return iterations_; }  ///< done, in all
  /// Of all vertices, in the order of their numbers. The sum is 1.
  std::vector<double> Ranks();

 private:
  void LoadGraph();
  void WriteProgress();
  double IterateBatch(std::size_t first, std::size_t count, double* sink);
  void FindSources(std::size_t count);

  const Graph& graph_;
  const double damping_;
  const std::size_t batch_;
  const std::uint64_t digest_;  ///< of graph and damping
  examples::Rows<VertexRow>* const rows_;
  std::uint64_t iterations_ = 0;
  double sink_ = 0;  ///< the rank of all vertices without an edge to another

  // Of a batch of vertices:
  std::vector<std::uint64_t> keys_;
  std::vector<VertexRow> vertices_;
  std::vector<std::uint64_t> sources_;  ///< keys of vertices that have an edge to one of them
  std::vector<std::uint32_t> targets_;  ///< of each source, the place of that in vertices_
  std::vector<VertexRow> found_;
};

/// The same of a graph in memory, edge by edge.
std::vector<double> PlainPageRank(const Graph& graph, double damping, std::uint64_t iterations);

/// The most that a rank differs by, as a share of what it should be.
double LargestDifference(const std::vector<double>& ranks, const std::vector<double>& right);

#endif  // GPM_EXAMPLES_PAGERANK_PAGE_RANK_H_
