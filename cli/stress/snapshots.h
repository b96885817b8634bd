#ifndef GPM_CLI_STRESS_SNAPSHOTS_H_
#define GPM_CLI_STRESS_SNAPSHOTS_H_

#include <memory>
#include <span>

#include "cli/stress/lane.h"
#include "cli/stress/round_state.h"

namespace gpm::stress {

/// Takes snapshots at random moments until the round ends, whole ones and increments, restores each
/// chain into a pool of its own and compares. There is one moment, while the snapshot was taken, at
/// which it may have been the state of the store: of every lane it has a number of whole batches,
/// and a batch that had returned before another one began that is in it, is in it too. It is a read
/// of the watched keys in their histories, at that moment. What else is there is whole.
/// @throws Error as the store
void RunSnapshots(RoundState& round, std::span<const std::unique_ptr<Lane>> lanes);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_SNAPSHOTS_H_
