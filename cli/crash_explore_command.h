#ifndef GPM_CLI_CRASH_EXPLORE_COMMAND_H_
#define GPM_CLI_CRASH_EXPLORE_COMMAND_H_

#include "crash_sim/crash_explorer.h"

namespace gpm::cli {

/// Explores until it is done or a signal comes, and prints what came of it. @return the exit status
/// @throws Error
int RunCrashExplore(crash::CrashOptions options);

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_EXPLORE_COMMAND_H_
