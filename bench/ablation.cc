#include "bench/ablation.h"

#include <nlohmann/json.hpp>

namespace gpm::bench {

std::vector<Configuration> AblationSteps(ExecutorKind executor) {
  CacheOptions none;
  none.refresh_interval = 0;
  none.directory = false;
  none.policy = CachePolicy::kOff;
  CacheOptions directory = none;
  directory.directory = true;
  CacheOptions hot_values = directory;
  hot_values.policy = CachePolicy::kTinyLfu;
  hot_values.fraction = 0.2;
  constexpr AccessOptions kAsTheyCome{.by_address = false, .combine = false};
  constexpr AccessOptions kOrdered{.by_address = true, .combine = false};
  std::vector<Configuration> steps = {{"no accelerators", none, kAsTheyCome},
                                      {"+ directory", directory, kAsTheyCome},
                                      {"+ hot values", hot_values, kAsTheyCome},
                                      {"+ ordering", hot_values, kOrdered},
                                      {"+ combining", hot_values, AccessOptions{}}};
  if (executor == ExecutorKind::kCpu) {
    std::erase_if(steps, [](const Configuration& step) { return step.access.by_address; });
  }
  return steps;
}

void AddFactors(std::size_t steps, nlohmann::json& rows) {
  const std::size_t rows_each = rows.size() / steps;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i]["factor"] =
        rows[i].at("mops").get<double>() / rows[i % rows_each].at("mops").get<double>();
  }
}

}  // namespace gpm::bench
