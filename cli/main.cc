#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "gpmstore/error.h"
#include "gpmstore/version.h"
#include "pm/text.h"

namespace {

/// What a path may have in a message, and what a message may have in all.
constexpr std::size_t kPathBytes = 1024;
constexpr std::size_t kMessageBytes = 4 * kPathBytes;

/// `message`, in which no argument is longer than `most`.
std::string WithShortArguments(std::string message, int argc, char** argv, std::size_t most) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    // The value of --name=value stands alone in messages.
    const std::size_t equals = argument.starts_with('-') ? argument.find('=') : argument.npos;
    for (const std::string_view part :
         {argument, equals == argument.npos ? argument : argument.substr(equals + 1)}) {
      if (part.size() <= most) continue;
      const std::string quoted = gpm::Quoted(part);
      for (std::size_t at = 0; (at = message.find(part, at)) != message.npos; at += quoted.size()) {
        message.replace(at, part.size(), quoted);
      }
    }
  }
  return message;
}

/// `message`, in which no word is much longer than what Quoted shows: CLI11 changes some arguments,
/// such as their case, before it names them.
std::string WithShortWords(const std::string& message) {
  constexpr std::size_t kWordBytes = 2 * gpm::kQuotedBytes;
  std::string text;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t end = std::min(message.find(' ', at), message.size() - 1) + 1;
    const std::string_view word = std::string_view(message).substr(at, end - at);
    text += word.size() <= kWordBytes ? std::string(word) : gpm::Quoted(word) + " ";
    at = end;
  }
  return text;
}

int Fail(std::string_view message) {
  const bool whole = message.size() <= kMessageBytes;
  std::fputs(
      fmt::format("gpmstore: {}{}\n", message.substr(0, kMessageBytes), whole ? "" : "...").c_str(),
      stderr);
  return gpm::cli::kExitError;
}

/// Opens the standard streams that are closed, so that no pool gets their descriptors: messages
/// would be written into it. Writing to them stays an error.
void OpenStandardStreams() {
  int fd = -1;
  do {
    fd = open("/dev/null", O_RDONLY);  // the lowest one that is free
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

int Main(int argc, char** argv) {
  CLI::App app("GPMStore: a persistent key-value store whose index GPU kernels read and write",
               "gpmstore");
  app.set_version_flag("--version", fmt::format("gpmstore {}", gpm::Version()));
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0; 1 when the answer is no (not found, check failed); 2 for wrong usage or\n"
      "input, and errors of the system; 3 when memory ran out.\n"
      "Each command explains itself: gpmstore ycsb --help");
  gpm::cli::Commands commands;
  gpm::cli::AddYcsbCommand(app, commands);
  gpm::cli::AddReplayCommand(app, commands);
  gpm::cli::AddInspectCommands(app, commands);
  gpm::cli::AddItemCommands(app, commands);
  gpm::cli::AddSearchCommand(app, commands);
  gpm::cli::AddPoolCommands(app, commands);
  gpm::cli::AddSnapshotCommands(app, commands);
  gpm::cli::AddCrashExploreCommand(app, commands);
  gpm::cli::AddCrashTestCommand(app, commands);
  gpm::cli::AddStressCommand(app, commands);
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (!arguments.empty() && (arguments[0] == "restore" || arguments[0] == "snapshot")) {
    // CLI11 would take the file [x] for a list with x, as these commands name several.
    for (std::string& path : arguments) {
      if (path.starts_with('[') && path.ends_with(']')) path.insert(0, "./");
    }
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return Fail(fmt::format("there is no command {}; see gpmstore --help", gpm::Quoted(argv[1])));
    }
    return Fail(fmt::format(
        "{}; see gpmstore --help, gpmstore COMMAND --help",
        WithShortWords(WithShortArguments(error.what(), argc, argv, gpm::kQuotedBytes))));
  }
  for (const gpm::cli::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return gpm::cli::kExitError;
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  // A file beyond the limit of their size (ulimit -f) is then an error, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int status = Main(argc, argv);
    gpm::cli::FlushOutput();
    return status;
  } catch (const std::bad_alloc&) {  // so no text is put together here
    const std::string_view command = argc > 1 ? argv[1] : "";
    const bool has_batches = command == "ycsb" || command == "replay";
    std::fputs(has_batches ? "gpmstore: out of memory; smaller batches (--batch) need less\n"
                           : "gpmstore: out of memory\n",
               stderr);
    return gpm::cli::kExitNoMemory;
  } catch (const std::exception& error) {
    return Fail(WithShortArguments(error.what(), argc, argv, kPathBytes));
  }
}
