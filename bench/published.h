#ifndef GPM_BENCH_PUBLISHED_H_
#define GPM_BENCH_PUBLISHED_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace gpm::bench {

/// A measured figure of another system, to compare with.
struct PublishedFigure {
  std::string_view system;
  std::string_view workload;  ///< as WorkloadBench names them
  std::uint32_t key_size;     ///< bytes
  std::uint64_t batch;
  double mops;
};

inline constexpr std::string_view kGpHash = "GPHash";

/// What all figures below are of: they hold for this alone.
struct PublishedConditions {
  static constexpr std::uint64_t kRecords = 16'000'000;
  static constexpr std::uint32_t kValueSize = 128;
  static constexpr double kTheta = 0.99;  ///< Zipf over the records
  static constexpr std::string_view kSource =
      "GPHash: its authors' code, 2L-2H-8S, pool on tmpfs, 20% LFU cache, kernel time only; "
      "HierarchicalKV: keys in GPU memory, values in host memory (volatile), 20% of them or none "
      "in "
      "GPU memory, call to completion; both on one H200 (PCIe 5.0 x16)";
};

std::span<const PublishedFigure> PublishedFigures();

/// That of one system, if there is one.
std::optional<double> PublishedMops(std::string_view system, std::string_view workload,
                                    std::uint32_t key_size, std::uint64_t batch);

}  // namespace gpm::bench

#endif  // GPM_BENCH_PUBLISHED_H_
