#ifndef GPM_EXAMPLES_STORE_OPTIONS_H_
#define GPM_EXAMPLES_STORE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>

#include "gpmstore/options.h"

namespace examples {

/// Where an application has its store.
struct StoreOptions {
  std::string pool = "pinned:";
  gpm::OpenOptions open{};
};

/// --pool, --executor, --threads and --cache. @param options outlives the parsing
inline void AddStoreOptions(CLI::App& app, StoreOptions* options) {
  app.add_option("--pool", options->pool,
                 "Pool file, made if it is not there; by default memory that goes with the process")
      ->option_text("FILE");
  const std::map<std::string, gpm::ExecutorKind> executors{{"auto", gpm::ExecutorKind::kAuto},
                                                           {"cpu", gpm::ExecutorKind::kCpu},
                                                           {"cuda", gpm::ExecutorKind::kCuda}};
  app.add_option("--executor", options->open.executor,
                 "What carries out batches; auto, the default: cuda when it can")
      ->transform(CLI::CheckedTransformer(executors))
      ->option_text("auto|cpu|cuda");
  app.add_option("--threads", options->open.threads,
                 "Threads of executor cpu; 0, the default: all cores")
      ->check(CLI::Range(0u, 4096u));
  app.add_option_function<double>(
         "--cache",
         [options](double fraction) {
           options->open.cache.directory = true;
           options->open.cache.fraction = fraction;
         },
         "Share of the buckets whose values are cached (GPHash has 0.2); by default the store's "
         "own "
         "choice, on executor cpu none")
      ->check(CLI::Range(0.0, 1.0));
}

/// @param option names a file that is written @param used what is read, or the pool; may be empty
/// @throws std::invalid_argument where those are one file, under whatever names
inline void RequireOtherFile(const char* option, const std::string& file,
                             std::initializer_list<std::string> used) {
  namespace fs = std::filesystem;
  const auto real = [](const std::string& path) {  // also of what is not there yet
    std::error_code ignored;
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  };
  for (const std::string& other : used) {
    std::error_code ignored;
    if (file.empty() || other.empty()) continue;
    if (real(file) != real(other) && !fs::equivalent(file, other, ignored)) continue;
    throw std::invalid_argument(std::string(option) + ": " + file + " is used otherwise, too");
  }
}

/// Parses arguments and runs what they ask for. @return of main: 0; 1 if `run` says that something
/// is wrong, 2 after an error, more for bad arguments
template <class Run>
int Main(CLI::App& app, int argc, char** argv, Run&& run) {
  CLI11_PARSE(app, argc, argv);
  try {
    return run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return 2;
  }
}

}  // namespace examples

#endif  // GPM_EXAMPLES_STORE_OPTIONS_H_
