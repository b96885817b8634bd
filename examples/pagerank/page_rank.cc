#include "page_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <span>
#include <stdexcept>

namespace {

/// An item of a vertex that has more edges than its first has room for: where they come from. Its
/// key has the part's number, from 1, before the vertex's.
using EdgesRow = std::array<std::uint32_t, 32>;
static_assert(sizeof(EdgesRow) == sizeof(VertexRow));
constexpr std::size_t kFirstEdges = VertexRow{}.from.size();
constexpr std::size_t kMoreEdges = EdgesRow{}.size();

constexpr std::uint64_t EdgesKey(std::uint64_t vertex, std::uint64_t part) {
  return part << 32 | vertex;
}
constexpr std::uint64_t Parts(std::uint64_t in_degree) {
  return in_degree <= kFirstEdges ? 0 : (in_degree - kFirstEdges - 1) / kMoreEdges + 1;
}

/// The item that says what is done; there is none before all rows of the graph are there.
struct ProgressRow {
  std::uint64_t digest = 0;
  std::uint64_t iterations = 0;
  double sink = 0;
  std::array<std::uint64_t, 13> unused{};
};
static_assert(sizeof(ProgressRow) == sizeof(VertexRow));
constexpr std::uint64_t kProgressKey = ~std::uint64_t{0};

std::vector<std::uint32_t> OutDegrees(const Graph& graph) {
  std::vector<std::uint32_t> degrees(graph.numbers.size());
  for (const auto& edge : graph.edges) ++degrees[edge.from];
  return degrees;
}

}  // namespace

PageRank::PageRank(const Graph& graph, double damping, std::size_t batch,
                   examples::Rows<VertexRow>* rows)
    : graph_(graph),
      damping_(damping),
      batch_(batch),
      digest_(graph.Digest(std::bit_cast<std::uint64_t>(damping))),
      rows_(rows) {}

void PageRank::Load() {
  VertexRow row;
  if (rows_->Find(std::span(&kProgressKey, 1), std::span(&row, 1)) != 0) {
    // Rows of a graph that was not loaded to its end can't be told from somebody else's items.
    if (rows_->items() != 0) {
      throw std::runtime_error(
          "the pool has no ranks, but items: somebody else's, or of a loading that was cut off; "
          "name a new one");
    }
    return LoadGraph();
  }
  const auto progress = std::bit_cast<ProgressRow>(row);
  if (progress.digest != digest_) {
    throw std::runtime_error("the pool has the ranks of another graph, or with another damping");
  }
  iterations_ = progress.iterations;
  sink_ = progress.sink;
}

void PageRank::WriteProgress() {
  const auto row = std::bit_cast<VertexRow>(
      ProgressRow{.digest = digest_, .iterations = iterations_, .sink = sink_});
  rows_->Write(std::span(&kProgressKey, 1), std::span(&row, 1));
}

void PageRank::LoadGraph() {
  keys_.clear();
  vertices_.clear();
  const auto flush = [&] {
    rows_->Write(keys_, vertices_);
    keys_.clear();
    vertices_.clear();
  };
  const auto put = [&](std::uint64_t key, const VertexRow& row) {
    keys_.push_back(key);
    vertices_.push_back(row);
    if (keys_.size() == batch_) flush();
  };

  const std::vector<std::uint32_t> out_degrees = OutDegrees(graph_);
  const double first_rank = 1 / static_cast<double>(graph_.numbers.size());
  auto edge = graph_.edges.begin();
  for (std::uint32_t i = 0; i < graph_.numbers.size(); ++i) {
    const auto end = std::find_if(edge, graph_.edges.end(),
                                  [i](const Graph::Edge& other) { return other.to != i; });
    VertexRow vertex{.rank = {first_rank},
                     .out_degree = out_degrees[i],
                     .in_degree = static_cast<std::uint32_t>(end - edge)};
    const auto take = [&](auto& numbers) {
      for (std::size_t n = 0; n < numbers.size() && edge != end; ++n, ++edge) {
        numbers[n] = graph_.numbers[edge->from];
      }
    };
    take(vertex.from);
    put(graph_.numbers[i], vertex);
    for (std::uint64_t part = 1; edge != end; ++part) {
      EdgesRow more{};
      take(more);
      put(EdgesKey(graph_.numbers[i], part), std::bit_cast<VertexRow>(more));
    }
    if (out_degrees[i] == 0) sink_ += first_rank;
  }
  flush();
  WriteProgress();
}

double PageRank::Iterate(bool killed) {
  double change = 0;
  double sink = 0;
  const std::size_t vertices = graph_.numbers.size();
  for (std::size_t first = 0; first < vertices; first += batch_) {
    if (killed && first >= vertices / 2) std::raise(SIGKILL);
    change += IterateBatch(first, std::min(batch_, vertices - first), &sink);
  }
  sink_ = sink;
  ++iterations_;
  WriteProgress();
  return change;
}

double PageRank::IterateBatch(std::size_t first, std::size_t count, double* sink) {
  keys_.assign(graph_.numbers.begin() + static_cast<std::ptrdiff_t>(first),
               graph_.numbers.begin() + static_cast<std::ptrdiff_t>(first + count));
  vertices_.resize(count);
  if (rows_->Find(keys_, vertices_) != 0) throw std::runtime_error("a vertex is missing");
  FindSources(count);

  const std::size_t now = iterations_ % 2;
  std::vector<double> sums(count);
  for (std::size_t at = 0; at < sources_.size(); at += batch_) {
    const auto some = std::span(sources_).subspan(at, std::min(batch_, sources_.size() - at));
    found_.resize(some.size());
    if (rows_->Find(some, found_) != 0) throw std::runtime_error("a vertex is missing");
    for (std::size_t i = 0; i < some.size(); ++i) {
      sums[targets_[at + i]] += found_[i].rank[now] / found_[i].out_degree;
    }
  }

  double change = 0;
  const auto vertices = static_cast<double>(graph_.numbers.size());
  for (std::size_t i = 0; i < count; ++i) {
    VertexRow& vertex = vertices_[i];
    const double rank = (1 - damping_) / vertices + damping_ * (sums[i] + sink_ / vertices);
    change += std::abs(rank - vertex.rank[now]);
    vertex.rank[1 - now] = rank;
    if (vertex.out_degree == 0) *sink += rank;
  }
  rows_->Write(keys_, vertices_);
  return change;
}

/// Fills sources_ and targets_.
void PageRank::FindSources(std::size_t count) {
  sources_.clear();
  targets_.clear();
  const auto take = [&](std::size_t target, std::span<const std::uint32_t> numbers) {
    sources_.insert(sources_.end(), numbers.begin(), numbers.end());
    targets_.insert(targets_.end(), numbers.size(), static_cast<std::uint32_t>(target));
  };
  // Of vertices with more edges, the other parts.
  std::vector<std::uint64_t> keys;
  std::vector<std::uint32_t> owners;
  std::vector<std::uint32_t> edges;
  const auto flush = [&] {
    found_.resize(keys.size());
    if (!keys.empty() && rows_->Find(keys, found_) != 0) {
      throw std::runtime_error("edges of a vertex are missing");
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto row = std::bit_cast<EdgesRow>(found_[i]);
      take(owners[i], std::span(row).first(edges[i]));
    }
    keys.clear();
    owners.clear();
    edges.clear();
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t degree = vertices_[i].in_degree;
    take(i, std::span(vertices_[i].from).first(std::min(degree, kFirstEdges)));
    for (std::uint64_t part = 1; part <= Parts(degree); ++part) {
      keys.push_back(EdgesKey(keys_[i], part));
      owners.push_back(static_cast<std::uint32_t>(i));
      edges.push_back(static_cast<std::uint32_t>(
          std::min(degree - kFirstEdges - (part - 1) * kMoreEdges, kMoreEdges)));
      if (keys.size() == batch_) flush();
    }
  }
  flush();
}

std::vector<double> PageRank::Ranks() {
  std::vector<double> ranks;
  for (std::size_t first = 0; first < graph_.numbers.size(); first += batch_) {
    const auto some =
        std::span(graph_.numbers).subspan(first, std::min(batch_, graph_.numbers.size() - first));
    keys_.assign(some.begin(), some.end());
    vertices_.resize(some.size());
    if (rows_->Find(keys_, vertices_) != 0) throw std::runtime_error("a vertex is missing");
    for (const VertexRow& vertex : vertices_) ranks.push_back(vertex.rank[iterations_ % 2]);
  }
  return ranks;
}

std::vector<double> PlainPageRank(const Graph& graph, double damping, std::uint64_t iterations) {
  const std::size_t vertices = graph.numbers.size();
  const double share = 1 / static_cast<double>(vertices);
  const std::vector<std::uint32_t> out_degrees = OutDegrees(graph);
  std::vector<double> ranks(vertices, share);
  for (std::uint64_t i = 0; i < iterations; ++i) {
    std::vector<double> sums(vertices);
    double sink = 0;
    for (const auto& edge : graph.edges) sums[edge.to] += ranks[edge.from] / out_degrees[edge.from];
    for (std::size_t v = 0; v < vertices; ++v) sink += out_degrees[v] == 0 ? ranks[v] : 0;
    for (std::size_t v = 0; v < vertices; ++v) {
      ranks[v] = (1 - damping) * share + damping * (sums[v] + sink * share);
    }
  }
  return ranks;
}

double LargestDifference(const std::vector<double>& ranks, const std::vector<double>& right) {
  double largest = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == right[i]) continue;  // perhaps 0
    const double difference = std::abs(ranks[i] - right[i]) / right[i];
    if (!(difference <= largest)) largest = difference;  // also if it is no number
  }
  return largest;
}
