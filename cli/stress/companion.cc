#include "cli/stress/companion.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "cli/stress/contents.h"
#include "cli/stress/random.h"
#include "gpmstore/error.h"

namespace gpm::stress {
namespace {

void Visit(RoundState& round) {
  const Contents contents = VisitAll(round.store, round.plan.shape);
  if (!contents.defect.empty()) round.findings.Fail("beside batches, " + contents.defect);
}

void LookAtFigures(RoundState& round) {
  const StoreStats stats = round.store.Stats();
  if (stats.free_cells > stats.value_cells) {
    round.findings.Fail(fmt::format("beside batches, Stats says that {} of {} cells are free",
                                    stats.free_cells, stats.value_cells));
  }
}

void Reserve(RoundState& round, Random& random) {
  try {
    round.store.Reserve(round.store.Stats().items + random.Below(round.plan.shared_keys + 1));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace || !round.plan.tight) throw;
  }
}

void Compact(RoundState& round) {
  try {
    round.store.Compact();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace || !round.plan.tight) throw;
  }
}

}  // namespace

void RunCompanion(RoundState& round) {
  Random random(round.plan.seed ^ 0xC0FFEE);
  while (!round.ends()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(40)));
    switch (random.Below(16)) {
      case 0:
        Visit(round);
        break;
      case 1:
        Reserve(round, random);
        break;
      case 2:
        Compact(round);
        break;
      case 3:
      case 4:
        LookAtFigures(round);
        break;
      default: {
        Ticket ticket = round.store.RefreshCache();
        if (random.OneIn(2)) ticket.Wait();
      }
    }
    ++round.totals.steps;
  }
}

}  // namespace gpm::stress
