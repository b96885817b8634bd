#ifndef GPM_BENCH_PAPER_FIGURES_H_
#define GPM_BENCH_PAPER_FIGURES_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gpmstore/options.h"

namespace gpm::bench {

/// The paper's setup (GPHash, FAST'25, section 4.1): records loaded, operations of a batch, and the
/// share of the buckets that is cached.
inline constexpr double kPaperRecords = 16e6;
inline constexpr std::uint64_t kPaperBatch = std::uint64_t{1} << 12;
inline constexpr double kPaperCacheFraction = 0.2;

struct PaperArguments {
  std::string figure;
  double scale = 1;
  unsigned repeats = 3;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;                ///< of the cpu executor; 0: all cores
  std::vector<std::string> peers;      ///< beside the store; empty: PaperPeers; "none": none
  std::vector<std::uint64_t> batches;  ///< of figures 5 and 6; empty: 2^10, 2^12 ... 2^20
  std::string json;

  std::uint64_t records() const { return static_cast<std::uint64_t>(kPaperRecords * scale); }
  std::uint64_t batch() const;  ///< the paper's, or all records where there are fewer
};

/// What one of the paper's figures shows, or what they lack: docs/EVALUATION.md.
struct Figure {
  std::string name;  ///< the paper's number, or what the paper lacks
  std::string what;
  bool peers;  ///< whether peers are measured beside the store
  /// Adds to a report's `rows`, each with its `series`, and what else there is, such as `store`.
  /// @throws Error, as Store; kDamaged for wrong results
  void (*measure)(const PaperArguments& arguments, nlohmann::json& report);
};

/// All of them, in order.
const std::vector<Figure>& Figures();

// What is measured, by what it is measured with.

// MeasureContest.
void MeasureFigure5(const PaperArguments& arguments, nlohmann::json& report);
void MeasureFigure6(const PaperArguments& arguments, nlohmann::json& report);
void MeasureFigure12(const PaperArguments& arguments, nlohmann::json& report);
void MeasureStreams(const PaperArguments& arguments, nlohmann::json& report);
// WorkloadBench.
void MeasureFigure9(const PaperArguments& arguments, nlohmann::json& report);
void MeasureFigure13(const PaperArguments& arguments, nlohmann::json& report);
void MeasureValues(const PaperArguments& arguments, nlohmann::json& report);
// MeasureElastic.
void MeasureFigure7(const PaperArguments& arguments, nlohmann::json& report);
void MeasureFill(const PaperArguments& arguments, nlohmann::json& report);
// CacheBench.
void MeasureFigure11(const PaperArguments& arguments, nlohmann::json& report);
void MeasureFigure15(const PaperArguments& arguments, nlohmann::json& report);
// Examples on ApplicationTable.
void MeasureFigure10(const PaperArguments& arguments, nlohmann::json& report);
// MeasureRecovery.
void MeasureFigure14(const PaperArguments& arguments, nlohmann::json& report);
// Counted accesses: on executor cpu by a tracer, on a GPU in a build that counts them.
void MeasureFigure8(const PaperArguments& arguments, nlohmann::json& report);
/// Figure 8 on a GPU, of the store and peers on PM. @throws Error(kUnsupported) in other builds
void MeasureCountedContest(const PaperArguments& arguments, nlohmann::json& report);

/// Figure 9 of GPHash itself, on a GPU: rows of what section 4.4 adds, one after the other.
void AddStepsOfGpHash(const PaperArguments& arguments, nlohmann::json& report);

/// As the paper has it, what is cached is a fifth of the buckets; the directory is ours.
CacheOptions PaperCache();
/// That of the store beside peers: the paper's on a GPU, and by default on a CPU, where everything
/// is in the same memory. REQUIRES: not auto. @param report says what is cached
CacheOptions CacheBesidePeers(ExecutorKind executor, nlohmann::json& report);

/// The peers beside the store in the figures of an executor that have some, by name: those of the
/// arguments, or those that the paper measures and are written (with arrays in host memory: that
/// would be measured there). REQUIRES: the executor is not auto.
/// @throws Error(kInvalidArgument) as FindPeer
std::vector<std::string> PaperPeers(const PaperArguments& arguments);

/// The highest load factor of a table that starts small, looked at as in figure 7.
double MaximumLoadFactor(const PaperArguments& arguments, const Geometry& geometry);

}  // namespace gpm::bench

#endif  // GPM_BENCH_PAPER_FIGURES_H_
