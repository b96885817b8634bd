// gpmstore_bench: measures the store. Exit status 0, or 2 when the command line can't be used or
// something failed (the message is on stderr).

#include <fmt/format.h>
#include <gpmstore/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "bench/commands.h"

int main(int argc, char** argv) {
  CLI::App program("Benchmarks of GPMStore. Every figure is checked: wrong results end the run.");
  program.set_version_flag("--version", fmt::format("gpmstore_bench {}", gpm::Version()));
  program.require_subcommand(1);
  gpm::bench::AddCpuCommand(program);
  gpm::bench::AddWorkloadsCommand(program);
  gpm::bench::AddAblationCommand(program);
  gpm::bench::AddRecoveryCommand(program);
  gpm::bench::AddCacheCommand(program);
  gpm::bench::AddRooflineCommand(program);
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpmstore_bench: {}\n", error.what());
    return 2;
  }
}
