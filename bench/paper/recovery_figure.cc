// How long resizing and recovery take: by the part of `recovery`.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/kv_adapter.h"
#include "bench/paper/figures.h"
#include "bench/recovery_bench.h"

namespace gpm::bench {

using nlohmann::json;

void MeasureFigure14(const PaperArguments& arguments, json& report) {
  constexpr std::uint64_t kFewest = 1000;  // records
  for (const unsigned share : {16, 8, 4, 2, 1}) {
    PoolSpec spec;
    spec.path = TemporaryPoolPath();
    spec.records = std::max(kFewest, arguments.records() / share);
    spec.executor = arguments.executor;
    spec.threads = arguments.threads;
    json measured = MeasureRecovery(spec, arguments.repeats, false);
    for (json& row : measured.at("rows")) {
      row["series"] = row.at("what");
      row["items"] = spec.records;
      row["slots"] = measured.at("capacity_slots");
      report["rows"].push_back(std::move(row));
    }
    report["store"] = measured.at("store");
  }
}

}  // namespace gpm::bench
