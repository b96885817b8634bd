#include "bench/options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "bench/report.h"
#include "support/option_checks.h"

namespace gpm::bench {

void AddExecutorOptions(CLI::App& command, ExecutorKind* executor, unsigned* threads,
                        const std::string& does) {
  const std::map<std::string, ExecutorKind> executors{
      {"auto", ExecutorKind::kAuto}, {"cpu", ExecutorKind::kCpu}, {"cuda", ExecutorKind::kCuda}};
  command.add_option("--executor", *executor, does + "; auto: cuda when it can")
      ->transform(CLI::CheckedTransformer(executors))
      ->option_text("auto|cpu|cuda");
  command.add_option("--threads", *threads, "Threads of the cpu executor; 0: all cores")
      ->check(WholeNumber(0, 4096));
}

void AddPoolOption(CLI::App& command, std::string* pool, const std::string& more) {
  command.add_option(
      "--pool", *pool,
      "Pool file, which must not exist and is removed; default: one in memory" + more);
}

void AddJsonOption(CLI::App& command, std::string* json) {
  command.add_option("--json", *json,
                     "File for the figures as JSON; - for the standard output, where they then "
                     "stand alone");
  command.parse_complete_callback([json] { RequireWritable("--json", *json); });
  command.add_option("--commit", NotedCommit(), "Noted in the report");
}

}  // namespace gpm::bench
