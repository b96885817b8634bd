#ifndef GPM_CLI_STRESS_BATCH_PLAN_H_
#define GPM_CLI_STRESS_BATCH_PLAN_H_

#include <cstdint>
#include <string>

#include "cli/stress/arrays.h"
#include "cli/stress/random.h"
#include "cli/stress/round_plan.h"
#include "cli/stress/rows.h"
#include "cli/stress/watched_keys.h"

namespace gpm::stress {

std::string KeyName(std::uint64_t id);  ///< "shared key 7"

/// How a batch is given to the store.
enum class Call { kApplyAsync, kApply, kBulkLoad, kScope };

/// A batch, before it is carried out.
struct BatchPlan {
  Call call = Call::kApplyAsync;
  std::uint32_t n = 0;
  const std::uint64_t* operations = nullptr;  ///< n, as Planned
  std::uint64_t first_version = 0;
  bool mixed = false;  ///< the kinds are an array
  Op op = Op::kFind;   ///< of all, when they are not
  bool finds_only = false;
  bool has_values = false;
  bool has_found = false;
  Element element = Element::kNone;      ///< one that values consist of, if there is any
  std::uint32_t group = 1;               ///< in a scope: operations on one key, side by side
  std::uint64_t writes = 0, erases = 0;  ///< in a scope
  Place keys = Place::kPageable;
  Place values = Place::kPageable;
  Place ops = Place::kPageable;
  Place answers = Place::kPageable;  ///< found and results
};
std::string Describe(const BatchPlan& batch);

/// Who draws.
struct Drawer {
  const RoundPlan& round;
  WatchedKeys& watched;
  unsigned lane;
  unsigned thread;
};

/// What comes before the operations: call, places, number. @param loads all of the lane's keys
BatchPlan DrawBatch(const Drawer& drawer, Random& random, bool scope_allowed, bool loads);
/// Fills `operations` (batch->n) and what of the batch follows from them.
void DrawOperations(const Drawer& drawer, Random& random, std::uint64_t* operations,
                    BatchPlan* batch);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_BATCH_PLAN_H_
