#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/any_store.h"
#include "cli/common.h"
#include "gpmstore/error.h"
#include "gpmstore/sharded_store.h"
#include "pm/format.h"
#include "pm/mapping.h"
#include "pm/upgrade.h"
#include "support/option_checks.h"
#include "ycsb/report.h"

namespace gpm::cli {
namespace {

struct PoolArguments {
  std::string pool;
  double growth = OpenOptions{}.growth;
  CreateArguments create;
  bool overwrite = false;
};

int RunCreate(const PoolArguments& arguments) {
  if (arguments.pool == Mapping::kPinnedPath) {
    throw Error(ErrorCode::kInvalidArgument,
                "create: a pool in pinned memory ends with this command; name a file");
  }
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.threads = 1;
  CreateOptions create = arguments.create.Options();
  create.overwrite = arguments.overwrite;
  AnyStore::Create(arguments.pool, create, open, arguments.create.Shards()).Close();
  return kExitOk;
}

int RunCompact(const PoolArguments& arguments) {
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.growth = arguments.growth;
  AnyStore store = AnyStore::Open(arguments.pool, open);
  const std::uint64_t before = store.Stats().pm_bytes;
  store.Compact();
  const StoreStats stats = store.Stats();
  store.Close();
  Print(fmt::format("{}: {} items in {}, {} given back\n", arguments.pool, stats.items,
                    ycsb::BytesText(stats.pm_bytes),
                    ycsb::BytesText(before - std::min(before, stats.pm_bytes))));
  return kExitOk;
}

int RunReshard(const PoolArguments& arguments) {
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  ShardedStore::Reshard(arguments.pool, arguments.create.Shards(), open);
  Print(fmt::format("{}: {} shards\n", arguments.pool, arguments.create.shards));
  return kExitOk;
}

int RunUpgrade(const PoolArguments& arguments) {
  Print(UpgradePool(arguments.pool)
            ? fmt::format("{}: now of format version {}\n", arguments.pool, kPoolVersion)
            : fmt::format("{}: is of format version {} already\n", arguments.pool, kPoolVersion));
  return kExitOk;
}

}  // namespace

void AddPoolCommands(CLI::App& app, Commands& commands) {
  const auto add = [&](const char* name, const char* description, const char* pool,
                       int (*run)(const PoolArguments&)) {
    CLI::App* command = app.add_subcommand(name, description);
    const auto arguments = std::make_shared<PoolArguments>();
    command->add_option("POOL", arguments->pool, pool)->required();
    commands.push_back({command, [arguments, run] { return run(*arguments); }});
    return std::pair(command, arguments);
  };
  {
    const auto [create, arguments] =
        add("create", "Create an empty pool", "File that does not exist yet, or a DAX device",
            RunCreate);
    arguments->create.AddSizesTo(*create);
    arguments->create.AddLayoutTo(*create);
    arguments->create.AddAttributesTo(*create);
    arguments->create.AddShardsTo(*create);
    arguments->create.AddDevicesTo(*create);
    create->add_flag("--overwrite", arguments->overwrite,
                     "Take a DAX device also where it is not empty: what it holds is lost");
    create->footer(
        "Examples:\n"
        "  gpmstore create /dev/shm/p --value-size 100\n"
        "  gpmstore create /dev/shm/s --shards 4\n"
        "  gpmstore create /dev/shm/s --shards 4 --devices 0,1\n"
        "  gpmstore create /dev/shm/b --attribute session:0:8 --attribute model:8:4\n"
        "  gpmstore create p --key-size 32 --geometry 1L-2H-16S --initial-capacity 1000000");
  }
  constexpr const char* kClosed = "Pool file that no store has open";
  {
    const auto [compact, arguments] =
        add("compact", "Give back the space of a pool that its items do not need",
            "Pool file, or folder of shards, that no store has open", RunCompact);
    compact
        ->add_option("--growth", arguments->growth,
                     "How many times the buckets of the one before a level has: 1.1 to 4")
        ->check(NumberBetween(1.1, 4))
        ->capture_default_str();
    compact->footer(
        "Makes the table smaller, moves values together, and cuts the file. A crash meanwhile\n"
        "loses nothing: the pool is larger than it need be.\n\n"
        "Examples:\n  gpmstore compact /dev/shm/p");
  }
  {
    const auto [reshard, arguments] = add("reshard", "Divide a store over another number of pools",
                                          "Folder of shards that no store has open", RunReshard);
    arguments->create.AddShardsTo(*reshard);
    arguments->create.AddDevicesTo(*reshard);
    CLI::Option* const shards = reshard->get_option("--shards");
    shards->required()->description("Pools that the items are spread over: 1 to 1024");
    reshard->footer(
        "Inserts all items into new pools beside the old ones, which go when those are whole: so\n"
        "there must be room for both. When this is interrupted, the store is the old one or the\n"
        "new one, and it can be called again.\n\n"
        "Examples:\n  gpmstore reshard /dev/shm/s --shards 8");
  }
  add("upgrade", "Make a pool of an earlier format version one of this build's", kClosed,
      RunUpgrade)
      .first->footer(
          "Writes the new pool to a file beside it, POOL.gpmstore-upgrade, which takes its place\n"
          "when it is whole: so there must be room for both. A pool that a crash left is not\n"
          "recovered: that is done when a store opens it. When this is interrupted, the pool is\n"
          "the old one or the new one, and it can be called again. Earlier builds can't open the\n"
          "pool any more.\n\n"
          "Examples:\n  gpmstore upgrade /dev/shm/p");
}

}  // namespace gpm::cli
