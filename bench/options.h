#ifndef GPM_BENCH_OPTIONS_H_
#define GPM_BENCH_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "gpmstore/options.h"
#include "support/option_checks.h"

namespace gpm::bench {

// Options that several subcommands have, with the same names and meanings. What they set outlives
// the command.

/// A number, with its default in the help. @param range such as WholeNumber(1, 10)
template <class Value>
CLI::Option* AddNumber(CLI::App& command, const std::string& name, Value* value,
                       const CLI::Validator& range, const std::string& help) {
  return command.add_option(name, *value, help)->check(range)->capture_default_str();
}
/// Several of those, separated by commas.
template <class Value>
CLI::Option* AddNumbers(CLI::App& command, const std::string& name, std::vector<Value>* values,
                        const CLI::Validator& range, const std::string& help) {
  return AddNumber(command, name, values, range, help)->delimiter(',');
}

/// --key-size
void AddKeySizeOption(CLI::App& command, std::uint32_t* key_size);
/// --value-size
void AddValueSizeOption(CLI::App& command, std::uint32_t* value_size);
/// --repeats
void AddRepeatsOption(CLI::App& command, unsigned* repeats,
                      const std::string& help = "Repeats, of which medians are given");
/// --seed. @param of what, such as "Seed of the operations"
void AddSeedOption(CLI::App& command, std::uint64_t* seed, const std::string& of);
/// --theta, of a Zipfian choice
void AddThetaOption(CLI::App& command, double* theta, const std::string& help);

/// --executor and --threads. @param does what the executor does, such as "What runs batches"
void AddExecutorOptions(CLI::App& command, ExecutorKind* executor, unsigned* threads,
                        const std::string& does = "What runs batches");
/// --pool. Without it *pool is a temporary place in memory. @param more what else is said of the
/// file, behind a full stop and a space
void AddPoolOption(CLI::App& command, std::string* pool, const std::string& more = {});
/// --json
void AddJsonOption(CLI::App& command, std::string* json);

}  // namespace gpm::bench

#endif  // GPM_BENCH_OPTIONS_H_
