#ifndef GPM_CRASH_SIM_FRAME_EXPLORER_H_
#define GPM_CRASH_SIM_FRAME_EXPLORER_H_

#include <cstdint>

#include "crash_sim/explore_seeds.h"

namespace gpm::crash {

struct FrameReport : SeedReport {
  std::uint64_t steps = 0;
  std::uint64_t hits = 0;  ///< values that readers found in the frame
};

/// Runs the cache's protocols (table/value_cache.h) without a store around them: one frame,
/// which a loader gives to one of two buckets and then to another, or fills again, while writers
/// put new values into them and readers read. Some races need three switches at certain steps: in
/// the few steps of these schedules they come up in one of ten thousand, in those of a whole store
/// hardly ever.
///
/// Checked is that what a reader finds in the frame is the value that the reference names. Cells
/// are used again as soon as nobody who ran when they were retired does so any more, the loader not
/// counted (which is Reclaim's part in a store).
FrameReport ExploreFrames(const SeedOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_FRAME_EXPLORER_H_
