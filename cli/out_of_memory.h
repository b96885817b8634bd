#ifndef GPM_CLI_OUT_OF_MEMORY_H_
#define GPM_CLI_OUT_OF_MEMORY_H_

#include <exception>

namespace gpm::cli {

/// Whether an error says that memory, threads or the room on a pool's medium ran out.
bool IsOutOfMemory(const std::exception& error);

/// Says what the error is on the standard error. @return kExitNoMemory or kExitError
int ReportError(const std::exception& error);

}  // namespace gpm::cli

#endif  // GPM_CLI_OUT_OF_MEMORY_H_
