#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/common.h"
#include "cli/item_rows.h"
#include "cli/pool_files.h"
#include "gpmstore/error.h"
#include "pm/attributes.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "table/geometry.h"
#include "ycsb/report.h"

namespace gpm::cli {
namespace {

/// CheckPool, with progress on the terminal.
CheckReport Check(const std::string& pool) {
  Progress progress;
  return CheckPool(
      pool, [&](std::uint64_t done, std::uint64_t total) { progress.Show("check", done, total); });
}

/// What `part` says of a pool as JSON, or of each pool of a folder: then under "shards".
/// @param part of a pool; its JSON is written here, and nowhere else
template <class Part>
nlohmann::ordered_json OfEachPool(const PoolFiles& files, const Part& part) {
  if (files.folder() == nullptr) return part(files.paths().front(), 0);
  nlohmann::ordered_json json;
  json["pool"] = files.folder()->path();
  json["uuid"] = files.folder()->manifest().uuid;
  json["shards"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < files.paths().size(); ++i) {
    json["shards"].push_back(part(files.paths()[i], i));
  }
  return json;
}

struct InspectArguments {
  std::string pool;
  std::string json;
};

std::unique_ptr<Pool> OpenReadOnly(const std::string& path) {
  Pool::Options options;
  options.read_only = true;
  return Pool::Open(path, options);
}

nlohmann::ordered_json ToJson(const CheckReport& report) {
  nlohmann::ordered_json json;
  json["sound"] = report.defects.empty();
  json["clean"] = report.clean;
  json["resizing"] = report.resizing;
  json["items"] = report.items;
  json["slots"] = report.slots;
  json["insert_slots"] = report.insert_slots;
  json["duplicates"] = report.duplicates;
  json["value_cells"] = report.value_cells;
  json["cells_in_use"] = report.cells_in_use;
  json["defects"] = report.defects;
  return json;
}

/// @param prints its lines
nlohmann::ordered_json Info(const std::string& path, bool prints) {
  const CheckReport report = Check(path);
  const std::unique_ptr<Pool> pool = OpenReadOnly(path);
  const Superblock& superblock = pool->superblock();
  const MediumInfo& medium = pool->mapping().medium();
  const std::uint64_t bytes = pool->mapping().mapped_bytes();
  std::string uuid;
  for (const std::uint8_t byte : superblock.uuid) uuid += fmt::format("{:02x}", byte);
  const double load_factor =
      report.slots == 0 ? 0 : static_cast<double>(report.items) / static_cast<double>(report.slots);

  std::uint64_t segment_bytes = 0;
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    segment_bytes += superblock.segments[i].bytes;
  }

  nlohmann::ordered_json json;
  json["pool"] = path;
  json["version"] = superblock.version;
  json["uuid"] = uuid;
  json["medium"] = MediumName(medium.medium);
  json["survives_process_crash"] = medium.survives_process_crash;
  json["survives_power_loss"] = medium.survives_power_loss;
  json["key_size"] = superblock.key_size;
  json["value_size"] = superblock.value_size;
  json["geometry"] = GeometryName(superblock.geometry);
  const std::vector<Attribute> fields = ReadAttributes(superblock.attributes);
  json["attributes"] = nlohmann::ordered_json::array();
  std::string attributes;
  for (const Attribute& field : fields) {
    json["attributes"].push_back(
        {{"name", field.name}, {"offset", field.offset}, {"bytes", field.bytes}});
    attributes += fmt::format("{}{} ({} bytes at {})", attributes.empty() ? "" : ", ", field.name,
                              field.bytes, field.offset);
  }
  json["levels"] = nlohmann::ordered_json::array();
  std::string levels;
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    const std::uint64_t buckets = superblock.levels[i].buckets;
    const double fill = static_cast<double>(report.level_items[i]) /
                        static_cast<double>(buckets * superblock.geometry.slots);
    const bool drained = i >= superblock.geometry.levels;
    json["levels"].push_back({{"buckets", buckets},
                              {"items", report.level_items[i]},
                              {"fill", fill},
                              {"being_drained", drained}});
    levels += fmt::format("{}{} buckets {:.3f} full{}", i == 0 ? "" : ", ", buckets, fill,
                          drained ? " (being drained)" : "");
  }
  json["load_factor"] = load_factor;
  json["pm_bytes"] = bytes;
  json["pm_bytes_levels"] = LevelsBytes(superblock, SizesOf(superblock));
  json["pm_bytes_cells"] = segment_bytes;
  json["pm_bytes_free"] = bytes - std::min(bytes, UsedBytes(superblock));
  json.update(ToJson(report));
  if (prints) {
    std::string text;
    const auto line = [&](const char* name, const std::string& value) {
      text += fmt::format("{:<12}{}\n", name, value);
    };
    line("pool", path);
    line("format", fmt::format("version {}, uuid {}", superblock.version, uuid));
    line("medium",
         fmt::format("{} (survives a process crash: {}, power loss: {})", MediumName(medium.medium),
                     medium.survives_process_crash ? "yes" : "no",
                     medium.survives_power_loss ? "yes" : "no"));
    line("keys", fmt::format("{} bytes", superblock.key_size));
    line("values", fmt::format("{} bytes", superblock.value_size));
    if (!attributes.empty()) line("attributes", attributes);
    line("geometry", GeometryName(superblock.geometry));
    line("levels", levels);
    line("items", fmt::format("{} in {} slots, load factor {:.3f}", report.items, report.slots,
                              load_factor));
    line("cells", fmt::format("{} of {} in use", report.cells_in_use, report.value_cells));
    line("space", fmt::format("{}: {} of levels, {} of cells, {} free", ycsb::BytesText(bytes),
                              ycsb::BytesText(json["pm_bytes_levels"]),
                              ycsb::BytesText(json["pm_bytes_cells"]),
                              ycsb::BytesText(json["pm_bytes_free"])));
    line("closed", report.clean ? "in order" : "no: recovery runs when a store opens it");
    if (report.insert_slots > 0 || report.duplicates > 0 || report.resizing) {
      line("recovery",
           fmt::format("{} half-inserted slots, {} duplicates{}", report.insert_slots,
                       report.duplicates, report.resizing ? ", a resize under way" : ""));
    }
    if (!report.defects.empty()) {
      line("defects", fmt::format("{} or more: see gpmstore check", report.defects.size()));
    }
    Print(text);
  }
  return json;
}

int RunInfo(const InspectArguments& arguments) {
  const PoolFiles files(arguments.pool, ShardFolder::Use::kRead);
  WriteJson(arguments.json, OfEachPool(files, [&](const std::string& path, std::size_t shard) {
              if (shard > 0 && arguments.json != "-") Print("\n");
              return Info(path, arguments.json != "-");
            }));
  return kExitOk;
}

constexpr const char* kNotSeen =
    "not seen: damage in the bytes of values, and a slot that was emptied by damage: neither "
    "values "
    "nor empty slots have a checksum\n";

/// Keys that are in a shard to which they do not belong.
std::string MisplacedKeys(const PoolFiles& files, std::size_t shard) {
  std::uint64_t count = 0;
  VisitPool(*OpenReadOnly(files.paths()[shard]),
            [&](std::span<const std::byte> key, auto) { count += files.ShardOf(key) != shard; });
  return count == 0 ? "" : fmt::format("{} keys belong to another shard", count);
}

CheckReport CheckShard(const PoolFiles& files, std::size_t shard) {
  CheckReport report;
  try {
    if (files.folder() != nullptr) files.folder()->RequirePool(static_cast<std::uint32_t>(shard));
    report = Check(files.paths()[shard]);
    if (files.folder() != nullptr) {
      const std::string misplaced = MisplacedKeys(files, shard);
      if (!misplaced.empty()) report.defects.push_back(misplaced);
    }
  } catch (const Error& error) {
    // No superblock to go by is an answer to the question, too; so is a shard that is not there.
    const bool is_missing = files.folder() != nullptr && error.code() == ErrorCode::kNotFound;
    if (error.code() != ErrorCode::kDamaged && !is_missing) throw;
    report.defects.emplace_back(error.what());
  }
  return report;
}

int CheckFiles(const InspectArguments& arguments, const PoolFiles& files) {
  bool sound = true;
  std::string text;
  const auto json = OfEachPool(files, [&](const std::string& path, std::size_t shard) {
    const CheckReport report = CheckShard(files, shard);
    sound &= report.defects.empty();
    for (const std::string& defect : report.defects) text += fmt::format("defect: {}\n", defect);
    text += fmt::format(
        "{}: {}; {} items in {} slots, {} of {} value cells in use, {} half-inserted slots, {} "
        "duplicates{}{}\n",
        path, report.defects.empty() ? "sound" : "broken", report.items, report.slots,
        report.cells_in_use, report.value_cells, report.insert_slots, report.duplicates,
        report.resizing ? ", a resize under way" : "", report.clean ? "" : ", not closed in order");
    return ToJson(report);
  });
  if (arguments.json != "-") Print(text + kNotSeen);
  WriteJson(arguments.json, json);
  return sound ? kExitOk : kExitNo;
}

int RunCheck(const InspectArguments& arguments) {
  std::optional<PoolFiles> files;
  try {
    files.emplace(arguments.pool, ShardFolder::Use::kRead, PoolFiles::Pools::kAsTheyAre);
  } catch (const Error& error) {  // a manifest that names no pools is an answer, too
    if (error.code() != ErrorCode::kDamaged) throw;
    if (arguments.json != "-") {
      Print(fmt::format("defect: {}\n{}: broken\n", error.what(), arguments.pool));
    }
    WriteJson(arguments.json, {{"pool", arguments.pool},
                               {"sound", false},
                               {"defects", nlohmann::ordered_json::array({error.what()})}});
    return kExitNo;
  }
  return CheckFiles(arguments, *files);
}

int RunDump(const InspectArguments& arguments) {
  const PoolFiles files(arguments.pool, ShardFolder::Use::kRead);
  std::unique_ptr<ItemRows> rows;
  for (const std::string& path : files.paths()) {
    const std::unique_ptr<Pool> pool = OpenReadOnly(path);
    if (rows == nullptr) {
      rows = std::make_unique<ItemRows>(pool->superblock().key_size, pool->superblock().value_size);
    }
    Progress progress;
    VisitPool(
        *pool,
        [&](std::span<const std::byte> key, std::span<const std::byte> value) {
          rows->Add(key, value);
        },
        [&](std::uint64_t done, std::uint64_t total) { progress.Show("dump", done, total); });
  }
  rows->Print(true);
  return kExitOk;
}

CLI::App* AddInspectCommand(CLI::App& app, Commands& commands, const char* name,
                            const char* description, int (*run)(const InspectArguments&),
                            bool figures) {
  CLI::App* command = app.add_subcommand(name, description);
  const auto arguments = std::make_shared<InspectArguments>();
  command
      ->add_option("POOL", arguments->pool,
                   "Pool file, or folder of shards, that no store has open")
      ->required();
  if (figures) {
    AddJsonOption(*command, arguments->json, [&a = *arguments] {
      return UsedPaths{{"POOL", a.pool}};
    });
  }
  commands.push_back({command, [arguments, run] { return run(*arguments); }});
  return command;
}

}  // namespace

void AddInspectCommands(CLI::App& app, Commands& commands) {
  AddInspectCommand(app, commands, "info", "Show what a pool is and holds, writing nothing",
                    RunInfo, true)
      ->footer("Examples:\n  gpmstore info /dev/shm/p\n  gpmstore info /dev/shm/p --json -");
  AddInspectCommand(app, commands, "check", "Verify every invariant of a pool, writing nothing",
                    RunCheck, true)
      ->footer(
          "A pool left by a crash is sound: what recovery will clear is counted, not a defect.\n"
          "What it can't see: other bytes in a value, and items whose slot reads as empty, as\n"
          "neither have a checksum.\n"
          "Exit status 1 when there are defects; the first ones are named. Of a folder each shard\n"
          "is checked; one that is missing, or another pool, is a defect, and so is a manifest\n"
          "that can't be read as one.\n\n"
          "Examples:\n  gpmstore check /dev/shm/p && echo sound");
  AddInspectCommand(app, commands, "dump", "Write out all items of a pool, ordered by key", RunDump,
                    false)
      ->footer(
          "One line an item: the key, a tab, the value. Keys of 8 bytes are unsigned decimal\n"
          "numbers, in that order; longer ones are ordered as bytes. They and values are text,\n"
          "without zero bytes at the end, when all of it is printable UTF-8 and does not begin\n"
          "with 0x, else 0x and hex digits: as put reads them. A pool left by a crash is not\n"
          "recovered: its valid items are written, each key once.\n\n"
          "Examples:\n  gpmstore dump /dev/shm/p | head");
}

}  // namespace gpm::cli
