#ifndef GPM_CRASH_SIM_CRASH_CHECK_H_
#define GPM_CRASH_SIM_CRASH_CHECK_H_

#include <cstdint>
#include <string>

#include "crash_sim/crash_batch.h"
#include "crash_sim/promise.h"
#include "gpmstore/store.h"

namespace gpm::crash {

/// What became of a pool that a crash left.
struct Recovered {
  bool refused = false;  ///< Open said that it is damaged: its creation was interrupted
  RecoveryStats stats;
  Contents contents;
};

/// Does to a pool what its user would do after a crash, on the machine as it is: the offline check,
/// open with recovery, the contents compared with the promise, then more operations compared with a
/// model, sometimes until a resize; close, and check again.
/// @param choice which operations; the same give the same
/// @throws Violation; Error and others that the store should not have thrown
Recovered CheckCrashedPool(const std::string& path, const Shape& shape, const Promise& promise,
                           std::uint64_t last_tag, std::uint64_t choice);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_CHECK_H_
