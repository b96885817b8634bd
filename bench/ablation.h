#ifndef GPM_BENCH_ABLATION_H_
#define GPM_BENCH_ABLATION_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "bench/workload_bench.h"

namespace gpm::bench {

/// A store with no accelerators, then with one more at each step. Those that are measured are the
/// ones that OpenOptions can turn off.
/// @param executor that runs the batches; cpu has no more than the first three
std::vector<Configuration> AblationSteps(ExecutorKind executor);

/// Gives each row its `factor` over the first step.
/// @param rows of one workload, as WorkloadBench::Measure has them of `steps` configurations
void AddFactors(std::size_t steps, nlohmann::json& rows);

}  // namespace gpm::bench

#endif  // GPM_BENCH_ABLATION_H_
