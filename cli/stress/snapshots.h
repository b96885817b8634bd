#ifndef GPM_CLI_STRESS_SNAPSHOTS_H_
#define GPM_CLI_STRESS_SNAPSHOTS_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/key_log.h"
#include "cli/stress/contents.h"
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

/// From the first to the last moment at which the lanes' keys, all of them, may have been as they
/// are in a snapshot.
/// @param logs by lane @param taken_at when the snapshot was taken
/// @param wrong set if there is no such moment
std::optional<cli::Interval> InstantOf(const Contents& contents,
                                       std::span<const cli::KeyLog* const> logs,
                                       const cli::Interval& taken_at, std::string* wrong);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_SNAPSHOTS_H_
