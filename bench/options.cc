#include "bench/options.h"

#include <filesystem>
#include <map>

#include "bench/kv_adapter.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/format.h"
#include "ycsb/generators.h"

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
    const std::string path = option != nullptr ? option->as<std::string>() : "";
    if (path.empty()) continue;
    const fs::path removed = real(path);
    if (report != removed && report.parent_path() != removed) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("--json: ") + json + " would be removed with what " + name + " names");
  }
}

}  // namespace

void AddKeySizeOption(CLI::App& command, std::uint32_t* key_size) {
  AddNumber(command, "--key-size", key_size, WholeNumber(1, kMaxKeyBytes), "Bytes of a key");
}

void AddValueSizeOption(CLI::App& command, std::uint32_t* value_size) {
  AddNumber(command, "--value-size", value_size, WholeNumber(1, kMaxValueBytes),
            "Bytes of a value");
}

void AddRepeatsOption(CLI::App& command, unsigned* repeats, const std::string& help) {
  AddNumber(command, "--repeats", repeats, WholeNumber(1, 1000), help);
}

void AddSeedOption(CLI::App& command, std::uint64_t* seed, const std::string& of) {
  AddNumber(command, "--seed", seed, WholeNumber(), of);
}

void AddThetaOption(CLI::App& command, double* theta, const std::string& help) {
  AddNumber(command, "--theta", theta, NumberBetween(0.0, ycsb::Zipfian::kMaxTheta), help);
}

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
  const auto take = [pool](const std::string& path) {
    *pool = path.empty() ? TemporaryPoolPath() : path;
  };
  command
      .add_option_function<std::string>(
          "--pool", take,
          "Pool file, which must not exist and is removed; default: one in memory" + more)
      ->force_callback();  // where it was not given, too
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
