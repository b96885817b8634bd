#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/common.h"
#include "gpmstore/error.h"

namespace {

int Fail(const std::string& message) {
  std::fputs(fmt::format("gpmstore: {}\n", message).c_str(), stderr);
  return gpm::cli::kExitError;
}

int Main(int argc, char** argv) {
  CLI::App app("GPMStore: a persistent key-value store whose index GPU kernels read and write",
               "gpmstore");
  app.set_version_flag("--version", "gpmstore " GPMSTORE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0; 1 when the answer is no (not found, check failed); 2 for wrong usage or\n"
      "input, and errors of the system.\n"
      "Each command explains itself: gpmstore ycsb --help");
  gpm::cli::Commands commands;
  gpm::cli::AddYcsbCommand(app, commands);
  gpm::cli::AddReplayCommand(app, commands);
  gpm::cli::AddInspectCommands(app, commands);
  gpm::cli::AddItemCommands(app, commands);
  gpm::cli::AddCrashExploreCommand(app, commands);
  gpm::cli::AddCrashTestCommand(app, commands);
  gpm::cli::AddStressCommand(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return Fail(fmt::format("there is no command '{}'; see gpmstore --help", argv[1]));
    }
    return Fail(fmt::format("{}; see gpmstore --help, gpmstore COMMAND --help", error.what()));
  }
  for (const gpm::cli::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return gpm::cli::kExitError;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return Fail("out of memory; smaller batches (--batch) need less");
  } catch (const std::exception& error) {
    return Fail(error.what());
  }
}
