#include "bench/options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>

#include "bench/report.h"
#include "gpmstore/error.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

/// @throws Error(kInvalidArgument) where the report would go with the pool, or the folder of pools
void RequireKeptReport(const CLI::App& command, const std::string& json) {
  namespace fs = std::filesystem;
  const auto real = [](const std::string& path) {  // also of what is not there yet
    std::error_code ignored;
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored).lexically_normal();
  };
  if (json.empty() || json == "-") return;
  const fs::path report = real(json);
  for (const char* name : {"--pool", "--folder"}) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option == nullptr || option->count() == 0) continue;
    const fs::path removed = real(option->as<std::string>());
    if (report != removed && report.parent_path() != removed) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("--json: ") + json + " would be removed with what " + name + " names");
  }
}

}  // namespace

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
  command.parse_complete_callback([&command, json] {
    RequireKeptReport(command, *json);
    RequireWritable("--json", *json);
  });
  command.add_option("--commit", NotedCommit(), "Noted in the report");
}

}  // namespace gpm::bench
