#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/any_store.h"
#include "cli/common.h"
#include "gpmstore/error.h"
#include "pm/mapping.h"
#include "ycsb/report.h"

namespace gpm::cli {
namespace {

struct SnapshotArguments {
  std::string pool;
  std::vector<std::string> files;
  std::vector<std::string> base;
  OpenArguments open;
  CreateArguments create;  ///< --devices alone
};

void RefuseMemory(const std::string& pool) {
  if (pool == Mapping::kPinnedPath) {
    RefuseArgument("a pool in pinned memory ends with its command; name a file");
  }
}

int RunSnapshot(const SnapshotArguments& arguments) {
  RefuseMemory(arguments.pool);
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  const std::string& file = arguments.files.front();
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.pool, ignored)) {
    if (!arguments.base.empty()) {
      RefuseArgument("--base: of a folder of shards there are whole snapshots alone");
    }
    ShardedStore store = ShardedStore::Open(arguments.pool, open);
    const SnapshotResult result = store.Snapshot(file);
    store.Close();
    Print(fmt::format("{}: {} items in {}, {:.3f} s\n", file, result.items,
                      ycsb::BytesText(result.bytes), result.seconds));
    return kExitOk;
  }
  Store store = Store::Open(arguments.pool, open);
  const SnapshotResult result =
      store.Snapshot(file, {.chain = arguments.base, .track_changes = false});
  store.Close();
  const std::string written = arguments.base.empty() ? "" : fmt::format("{} of ", result.written);
  Print(fmt::format("{}: {}{} items in {}, {:.3f} s\n", file, written, result.items,
                    ycsb::BytesText(result.bytes), result.seconds));
  return kExitOk;
}

int RunRestore(const SnapshotArguments& arguments) {
  RefuseMemory(arguments.pool);
  OpenOptions open = arguments.open.Options();
  open.log = PrintWarning;
  AnyStore store = AnyStore::Restore(arguments.files, arguments.pool, open,
                                     arguments.create.Shards(open.executor));
  const StoreStats stats = store.Stats();
  arguments.create.RequireDevicesEffect(stats.executor);
  store.Close();
  Print(fmt::format("{}: {} items in {}\n", arguments.pool, stats.items,
                    ycsb::BytesText(stats.pm_bytes)));
  return kExitOk;
}

}  // namespace

void AddSnapshotCommands(CLI::App& app, Commands& commands) {
  {
    CLI::App* command = app.add_subcommand("snapshot", "Write all items of a pool to a file");
    const auto arguments = std::make_shared<SnapshotArguments>();
    command
        ->add_option("POOL", arguments->pool,
                     "Pool file, or folder of shards, that no store has open")
        ->required();
    command->add_option("FILE", arguments->files, "File, of shards folder, that does not exist yet")
        ->required()
        ->expected(1);
    command
        ->add_option("--base", arguments->base,
                     "Write an increment: what changed since the last of these, which are a "
                     "whole snapshot of this pool and its increments, in their order")
        ->expected(1, CLI::detail::expected_max_vector_size);
    command->footer(
        "A store that is open writes snapshots of itself while its batches go on, and knows what\n"
        "changed since the one before: Store::Snapshot. Nobody keeps track of what changes in a\n"
        "pool that no store has open. So --base reads all of its files, and the pool, and "
        "compares\n"
        "them: that takes as long as restoring them would, and some memory, but little is "
        "written.\n\n"
        "Examples:\n  gpmstore snapshot /dev/shm/p whole.snap\n"
        "  gpmstore snapshot /dev/shm/p monday.snap --base whole.snap\n"
        "  gpmstore snapshot /dev/shm/p tuesday.snap --base whole.snap monday.snap");
    commands.push_back({command, [arguments] { return RunSnapshot(*arguments); }});
  }
  CLI::App* command = app.add_subcommand("restore", "Make a pool of a snapshot and its increments");
  const auto arguments = std::make_shared<SnapshotArguments>();
  command
      ->add_option("FILE", arguments->files,
                   "A whole snapshot, then its increments in their order; or a folder in which a "
                   "store keeps snapshots of itself, or that has one of shards. Then POOL, a file "
                   "that does not exist yet")
      ->required()
      ->expected(2, CLI::detail::expected_max_vector_size)
      ->type_name("TEXT ... POOL");
  arguments->open.AddTo(*command);
  arguments->create.AddDevicesTo(*command);
  command->footer(
      "All files are checked before anything is done. The pool gets its name when it is complete.\n"
      "Of a folder the newest chain is restored, up to the first file that is damaged or missing;\n"
      "or, if it has nothing that is whole, the one before. What can't be used is named.\n\n"
      "Examples:\n  gpmstore restore whole.snap monday.snap tuesday.snap /dev/shm/p\n"
      "  gpmstore restore /backup/p.snapshots /dev/shm/p");
  commands.push_back({command, [arguments] {
                        arguments->pool = arguments->files.back();
                        arguments->files.pop_back();
                        return RunRestore(*arguments);
                      }});
}

}  // namespace gpm::cli
