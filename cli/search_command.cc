#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/item_rows.h"
#include "cli/pool_files.h"
#include "engine/query_plan.h"
#include "gpmstore/error.h"
#include "gpmstore/pool_reader.h"
#include "gpmstore/search.h"
#include "pm/attributes.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "support/option_checks.h"

namespace gpm::cli {
namespace {

struct SearchArguments {
  std::string pool;
  std::string query;
  bool count = false;
  bool values = false;
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
};

int RunSearch(const SearchArguments& arguments) {
  const PoolFiles files(arguments.pool, ShardFolder::Use::kRead);
  std::uint64_t count = 0;
  std::unique_ptr<ItemRows> rows;
  for (const std::string& path : files.paths()) {
    const std::unique_ptr<Pool> pool = Pool::Open(path, {.read_only = true});
    const Superblock& superblock = pool->superblock();
    const std::vector<Attribute> attributes = ReadAttributes(superblock.attributes);
    const Query query = ParseQuery(arguments.query, attributes);
    const QueryPlan plan({&query, 1}, attributes);
    if (rows == nullptr) {
      rows = std::make_unique<ItemRows>(superblock.key_size, superblock.value_size);
    }
    Progress progress;
    VisitPool(
        *pool,
        [&](std::span<const std::byte> key, std::span<const std::byte> value) {
          plan.Ask(value.data(), [&](std::uint32_t) {
            ++count;
            if (!arguments.count) rows->Add(key, value);
          });
        },
        [&](std::uint64_t done, std::uint64_t total) { progress.Show("search", done, total); });
  }
  if (arguments.count) {
    Print(fmt::format("{}\n", count));
  } else {
    rows->Print(arguments.values, arguments.limit);
  }
  if (!arguments.count && count > arguments.limit) {
    std::fputs(
        fmt::format("gpmstore: {} of {} items that match; see --limit\n", arguments.limit, count)
            .c_str(),
        stderr);
  }
  return count > 0 ? kExitOk : kExitNo;
}

}  // namespace

void AddSearchCommand(CLI::App& app, Commands& commands) {
  CLI::App* const search =
      app.add_subcommand("search", "Write out the items that match a query, writing nothing else");
  const auto arguments = std::make_shared<SearchArguments>();
  search
      ->add_option("POOL", arguments->pool,
                   "Pool file, or folder of shards, that no store has open")
      ->required();
  search
      ->add_option("QUERY", arguments->query,
                   "Conditions on attributes, joined by and; \"\": all items")
      ->required();
  CLI::Option* const count =
      search->add_flag("--count", arguments->count, "Write how many there are, and no item");
  search->add_flag("--values", arguments->values, "Behind each key write its value, and a tab")
      ->excludes(count);
  search->add_option("--limit", arguments->limit, "Items that are written, at most")
      ->check(WholeNumber())
      ->excludes(count);
  search->footer(
      "A condition is an attribute (gpmstore create --attribute; gpmstore info shows them), one "
      "of\n"
      "= < <= > >=, and a whole number, decimal or 0x and hex digits. Keys and values, and their\n"
      "order, are as those of dump. All items are looked at. A pool left by a crash is not\n"
      "recovered: its valid items are looked at, each key once. Exit status 1 when none "
      "matches.\n\n"
      "Examples:\n"
      "  gpmstore search /dev/shm/p 'session = 7 and model < 3'\n"
      "  gpmstore search /dev/shm/p 'session = 7' --count");
  commands.push_back({search, [arguments] { return RunSearch(*arguments); }});
}

}  // namespace gpm::cli
