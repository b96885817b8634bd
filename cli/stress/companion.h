#ifndef GPM_CLI_STRESS_COMPANION_H_
#define GPM_CLI_STRESS_COMPANION_H_

#include "cli/stress/round_state.h"

namespace gpm::stress {

/// What else goes on beside the batches, until the round ends: cache loadings, visits of all items,
/// figures, reservations, compactions. What is visited must be whole items, each key once. @throws
/// Error
void RunCompanion(RoundState& round);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_COMPANION_H_
