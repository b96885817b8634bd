#ifndef GPM_CLI_COMMON_H_
#define GPM_CLI_COMMON_H_

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpmstore/options.h"
#include "gpmstore/sharded_store.h"
#include "gpmstore/store.h"
#include "ycsb/phase_report.h"

namespace gpm::cli {

/// Exit statuses of the command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitNo = 1;     ///< the answer is no: not found, check failed
inline constexpr int kExitError = 2;  ///< usage, input, I/O: any gpm::Error
/// Memory ran out. Under crash-test, crash-explore and in their children also: the pool's medium is
/// full. It says nothing about the store.
inline constexpr int kExitNoMemory = 3;

/// A subcommand and what runs it, returning the exit status.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
using Commands = std::vector<Command>;

/// Each adds its subcommands to `app`.
void AddYcsbCommand(CLI::App& app, Commands& commands);
void AddReplayCommand(CLI::App& app, Commands& commands);
void AddInspectCommands(CLI::App& app, Commands& commands);  ///< info, check, dump
void AddItemCommands(CLI::App& app, Commands& commands);     ///< get, put, del
void AddSearchCommand(CLI::App& app, Commands& commands);
void AddPoolCommands(CLI::App& app, Commands& commands);      ///< create, compact, upgrade
void AddSnapshotCommands(CLI::App& app, Commands& commands);  ///< snapshot, restore
void AddCrashExploreCommand(CLI::App& app, Commands& commands);
void AddCrashTestCommand(CLI::App& app, Commands& commands);
void AddStressCommand(CLI::App& app, Commands& commands);

/// A store's log: what it warns of goes to the standard error.
void PrintWarning(LogLevel level, std::string_view message);

/// --executor, --threads, --pool-max, --growth, --grow-above, --compact-below, and those of the
/// cache: how a store is opened.
struct OpenArguments {
  std::string executor = "auto";
  unsigned threads = 0;
  std::uint64_t pool_max = 0;
  double growth = OpenOptions{}.growth;
  double grow_above = OpenOptions{}.grow_above;
  double compact_below = 0;
  std::string cache_policy{CachePolicyName(CacheOptions{}.policy)};
  bool directory = true;
  double cache_fraction = 0;
  std::uint64_t cache_bytes = 0;
  std::uint64_t cache_interval = 0;
  SnapshotSchedule snapshot;
  std::uint64_t capacity = 0;
  std::string capacity_policy{EvictionPolicyName(Capacity{}.policy)};
  CLI::Option* threads_option = nullptr;
  CLI::Option* directory_option = nullptr;
  CLI::Option* cache_fraction_option = nullptr;
  CLI::Option* cache_bytes_option = nullptr;
  CLI::Option* cache_policy_option = nullptr;
  CLI::Option* cache_interval_option = nullptr;

  void AddTo(CLI::App& app);
  void AddCacheTo(CLI::App& app);
  /// --capacity, --capacity-policy: how many items the store may have, and which go then.
  void AddCapacityTo(CLI::App& app);
  /// --snapshots, --snapshot-interval, --snapshot-chains: those that the store takes of itself.
  void AddSnapshotsTo(CLI::App& app);
  /// @throws Error(kInvalidArgument) as RequireEffect, as far as that is known before a store opens
  OpenOptions Options() const;
  /// @param stats of the store that was opened: what auto became, and the size of values
  /// @throws Error(kInvalidArgument) for an option of the cache that has no effect there
  void RequireEffect(const StoreStats& stats) const;

 private:
  void RequireCacheEffect(ExecutorKind kind) const;
};

/// --geometry, --initial-capacity, --key-size, --value-size, --attribute: how a pool is created.
/// Which of them were given is asked of the options.
struct CreateArguments {
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::string geometry = "2L-2H-8S";
  std::uint64_t initial_capacity = 0;
  CLI::Option* key_size_option = nullptr;
  CLI::Option* value_size_option = nullptr;
  CLI::Option* geometry_option = nullptr;
  CLI::Option* initial_capacity_option = nullptr;
  CLI::Option* devices_option = nullptr;
  std::uint32_t shards = 0;  ///< 0: one pool
  std::string devices;       ///< such as "0,1"
  std::vector<std::string> attributes;

  void AddShardsTo(CLI::App& app);
  void AddDevicesTo(CLI::App& app);
  void AddKeySizeTo(CLI::App& app, std::uint32_t least_key = 1);
  void AddSizesTo(CLI::App& app, std::uint32_t least_key = 1);  ///< key and value size
  void AddLayoutTo(CLI::App& app);                              ///< geometry and initial capacity
  void AddAttributesTo(CLI::App& app);
  /// @throws Error(kInvalidArgument) for a geometry, or an attribute, that can't be used
  CreateOptions Options() const;
  /// Of --shards and --devices.
  /// @param executor that is to run batches; kAuto also where none is
  /// @throws Error(kInvalidArgument) for devices that are not there, or are of no use to it
  ShardOptions Shards(ExecutorKind executor = ExecutorKind::kAuto) const;
  /// @param executor of the store that was opened
  /// @throws Error(kInvalidArgument) for --devices which it has no use for
  void RequireDevicesEffect(ExecutorKind executor) const;
  /// @throws Error(kInvalidArgument) when what was given is not what the existing pool is, or says
  ///         how a new one is made
  void RequireMatch(const std::string& pool, const StoreStats& stats) const;
};

/// Adds `--batch N`, from 1 to kMaxBatchOperations.
inline constexpr std::uint64_t kMaxBatchOperations = std::uint64_t{1} << 30;
void AddBatchOption(CLI::App& app, std::size_t& batch, const std::string& description);

/// Whether an option, which need not be there, was on the command line.
bool Given(const CLI::Option* option);

[[noreturn]] void RefuseArgument(const std::string& message);  ///< Error(kInvalidArgument)

/// A file or folder that a command uses, by the option that names it.
struct UsedPath {
  const char* option;
  std::string path;  ///< empty: none was named
};
using UsedPaths = std::vector<UsedPath>;

/// Refuses a file to be written that is one of the others, under whatever name, or in one of them
/// that is a folder: it would take the place of what is there. @param option that names the file
/// @throws Error(kInvalidArgument)
void RequireOtherFile(const char* option, const std::string& path, const UsedPaths& used);

/// Adds `--json FILE`. A file that can't be written, or that the command uses otherwise, is refused
/// before the command runs.
/// @param used asked when all options have their values
void AddJsonOption(CLI::App& app, std::string& path, std::function<UsedPaths()> used);

/// Writes `json`, with the version of the store, to a file, or to the standard output for "-";
/// nowhere for an empty path.
/// @throws Error(kIo)
void WriteJson(const std::string& path, const nlohmann::ordered_json& json);

/// Writes `text` to the standard output. @throws Error(kIo)
void Print(std::string_view text);
/// What was written to the standard output, by whomever, is there. @throws Error(kIo)
void FlushOutput();

/// Says on stderr how many operations of a phase found no space, where some did.
/// @return the exit status
int ReportNoSpace(const char* phase, const ycsb::PhaseReport& report);

/// A line on stderr that is redrawn while long work goes on; nothing unless stderr is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();  ///< clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(std::string_view what, std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool drawn_ = false;
  std::string what_;
  Clock::time_point started_;
  Clock::time_point last_drawn_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_COMMON_H_
