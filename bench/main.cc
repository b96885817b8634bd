// gpmstore_bench: measures the store. Exit status 0, or 2 when the command line can't be used or
// something failed (the message is on stderr).

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>

#include "bench/commands.h"
#include "gpmstore/version.h"

int main(int argc, char** argv) {
  CLI::App program("Benchmarks of GPMStore. Every figure is checked: wrong results end the run.");
  program.set_version_flag("--version", fmt::format("gpmstore_bench {}", gpm::Version()));
  program.require_subcommand(1);
  gpm::bench::AddCpuCommand(program);
  gpm::bench::AddPeersCommand(program);
  gpm::bench::AddWorkloadsCommand(program);
  gpm::bench::AddPaperCommand(program);
  gpm::bench::AddUserCommand(program);
  gpm::bench::AddAblationCommand(program);
  gpm::bench::AddRecoveryCommand(program);
  gpm::bench::AddElasticCommand(program);
  gpm::bench::AddCacheCommand(program);
  gpm::bench::AddSnapshotCommand(program);
  gpm::bench::AddFindOrInsertCommand(program);
  gpm::bench::AddCapacityCommand(program);
  gpm::bench::AddSearchCommand(program);
  gpm::bench::AddScaleCommand(program);
  gpm::bench::AddSweepCommand(program);
  gpm::bench::AddRooflineCommand(program);
  // A file beyond the limit of their size (ulimit -f) is then an error, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const auto finish = [](int status) {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return status;
    fmt::print(stderr, "gpmstore_bench: the standard output can't be written\n");
    return 2;
  };
  try {
    program.parse(argc, argv);
    return finish(0);
  } catch (const CLI::ParseError& error) {
    return finish(program.exit(error) == 0 ? 0 : 2);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpmstore_bench: {}\n", error.what());
    return 2;
  }
}
