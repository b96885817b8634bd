#ifndef GPM_BENCH_OPTIONS_H_
#define GPM_BENCH_OPTIONS_H_

#include <string>

#include "gpmstore/options.h"

namespace CLI {
class App;
}

namespace gpm::bench {

// Options that several subcommands have, with the same names and meanings. What they set outlives
// the command.

/// --executor and --threads. @param does what the executor does, such as "What runs batches"
void AddExecutorOptions(CLI::App& command, ExecutorKind* executor, unsigned* threads,
                        const std::string& does = "What runs batches");
/// --pool. @param more what else is said of the file, behind a full stop and a space
void AddPoolOption(CLI::App& command, std::string* pool, const std::string& more = {});
/// --json
void AddJsonOption(CLI::App& command, std::string* json);

}  // namespace gpm::bench

#endif  // GPM_BENCH_OPTIONS_H_
