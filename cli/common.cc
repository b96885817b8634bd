#include "cli/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/version.h"
#include "pm/format.h"
#include "pm/gpu_host.h"
#include "pm/text.h"
#include "shard/manifest.h"
#include "support/option_checks.h"
#include "table/geometry.h"

namespace gpm::cli {
namespace {

/// Of NAME:OFFSET:BYTES; what else is wrong is said when the pool is created.
Attribute AttributeOf(const std::string& text) {
  Attribute attribute;
  const std::size_t first = text.find(':');
  const char* const end = text.data() + text.size();
  if (first != std::string::npos) {
    attribute.name = text.substr(0, first);
    const auto offset = std::from_chars(text.data() + first + 1, end, attribute.offset);
    if (offset.ec == std::errc{} && offset.ptr != end && *offset.ptr == ':') {
      const auto bytes = std::from_chars(offset.ptr + 1, end, attribute.bytes);
      if (bytes.ec == std::errc{} && bytes.ptr == end) return attribute;
    }
  }
  RefuseArgument(
      fmt::format("--attribute {}: must be NAME:OFFSET:BYTES, such as session:0:8", Quoted(text)));
}

/// Of "0,1".
std::vector<int> DevicesOf(const std::string& text) {
  std::vector<int> devices;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int device = -1;
    const auto [stop, error] = std::from_chars(at, end, device);
    if (error != std::errc{} || device < 0 || (stop != end && *stop != ',')) {
      RefuseArgument(fmt::format(
          "--devices {}: must be numbers of CUDA devices with commas between, such as 0,1",
          Quoted(text)));
    }
    devices.push_back(device);
    if (stop == end) break;
    at = stop + 1;
  }
  const int there = GpuCount();
  for (const int device : devices) {
    if (device < there) continue;
    RefuseArgument(fmt::format("--devices {}: there is no CUDA device {}; this {} {}", Quoted(text),
                               device, BuiltWithCuda() ? "machine has" : "build, without CUDA, has",
                               there == 0 ? "none" : fmt::format("0 to {}", there - 1)));
  }
  return devices;
}

/// @param error an errno; 0: nobody knows
[[noreturn]] void ThrowOutputError(int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("standard output: can't be written{}{}", error == 0 ? "" : ": ",
                          error == 0 ? "" : std::strerror(error)));
}

}  // namespace

void PrintWarning(LogLevel level, std::string_view message) {
  if (level == LogLevel::kWarning) fmt::print(stderr, "warning: {}\n", message);
}

void OpenArguments::AddTo(CLI::App& app) {
  app.add_option("--executor", executor, "What runs batches: cpu, cuda, or auto (cuda if it can)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  threads_option =
      app.add_option("--threads", threads, "Threads of the cpu executor; 0: one for each core")
          ->check(WholeNumber(0, 4096))
          ->capture_default_str();
  app.add_option("--pool-max", pool_max,
                 "The pool may grow up to here, such as 512M or 8G; default: what its medium holds")
      ->transform(ByteCount());
}

void OpenArguments::AddCacheTo(CLI::App& app) {
  app.add_option("--growth", growth,
                 "A full table gets a level with so many times the buckets of its newest: 1.1 to 4")
      ->check(NumberBetween(1.1, 4))
      ->capture_default_str();
  app.add_option("--grow-above", grow_above,
                 "In a table that is less full, items are moved for inserts that find no slot; a "
                 "fuller one grows: 0 to 1")
      ->check(NumberBetween(0, 1))
      ->capture_default_str();
  app.add_option("--compact-below", compact_below,
                 "A batch that leaves fewer items, and a load factor below this, compacts the "
                 "pool: 0 (never) to 0.4")
      ->check(NumberBetween(0, 0.4))
      ->capture_default_str();
  directory_option =
      app.add_flag("--directory,!--no-directory", directory,
                   "Keep a directory of all slots in the executor's memory; default: on executor "
                   "cuda. Without one there is no cache");
  cache_fraction_option =
      app.add_option("--cache", cache_fraction,
                     "Share of the buckets of which the values are cached in the executor's "
                     "memory, 0 to 1; default: on executor cuda what a tenth of the GPU's "
                     "memory holds, else 0")
          ->check(NumberBetween(0, 1));
  cache_bytes_option =
      app.add_option(
             "--cache-bytes", cache_bytes,
             "What the store may take of GPU memory, but for the workspaces of batches, such as "
             "512M: first the directory, then the cache; default: what they need")
          ->transform(ByteCount());
  cache_policy_option =
      app.add_option(
             "--cache-policy", cache_policy,
             "Which buckets are cached: tinylfu or lfu (used most), lru (used last), random or off")
          ->check(CLI::IsMember(CachePolicyNames()))
          ->capture_default_str();
  cache_interval_option = app.add_option("--cache-interval", cache_interval,
                                         "Operations after which the cache is refreshed; 0: only "
                                         "when asked; default: when it pays")
                              ->check(WholeNumber())
                              ->capture_default_str();
}

void OpenArguments::AddCapacityTo(CLI::App& app) {
  CLI::Option* const items = app.add_option(
      "--capacity", capacity,
      "Items that the store may have: a batch that would make them more evicts others; default: as "
      "many as there is room for");
  items->check(WholeNumber(1));
  // (Scores would have to be in the values.)
  app.add_option("--capacity-policy", capacity_policy,
                 "Which items go first: lru (used longest ago), lfu (used least) or oldest")
      ->check(CLI::IsMember({"lru", "lfu", "oldest"}))
      ->needs(items)
      ->capture_default_str();
}

void OpenArguments::AddSnapshotsTo(CLI::App& app) {
  CLI::Option* const folder = app.add_option(
      "--snapshots", snapshot.path,
      "A folder, in which the store keeps snapshots of itself while it runs and when it is closed");
  app.add_option("--snapshot-interval", snapshot.interval, "Seconds from one to the next")
      ->check(NumberBetween(1e-3, kMostSeconds))
      ->needs(folder)
      ->capture_default_str();
  app.add_option("--snapshot-chains", snapshot.chains,
                 "That are kept, each a whole snapshot and its increments")
      ->check(WholeNumber(1, 1000))
      ->needs(folder)
      ->capture_default_str();
}

OpenOptions OpenArguments::Options() const {
  OpenOptions options;
  options.snapshot = snapshot;
  if (!snapshot.path.empty()) options.log = PrintWarning;
  options.executor = executor == "cpu"    ? ExecutorKind::kCpu
                     : executor == "cuda" ? ExecutorKind::kCuda
                                          : ExecutorKind::kAuto;
  options.threads = threads;
  options.max_bytes = pool_max;
  options.growth = growth;
  options.grow_above = grow_above;
  options.compact_below = compact_below;
  options.capacity = {.items = capacity, .policy = EvictionPolicyOf(capacity_policy)};
  options.cache.policy = CachePolicyOf(cache_policy);
  if (directory_option != nullptr && directory_option->count() > 0) {
    options.cache.directory = directory;
  }
  if (cache_fraction_option != nullptr && cache_fraction_option->count() > 0) {
    options.cache.fraction = cache_fraction;
  }
  options.cache.bytes = cache_bytes;
  if (cache_interval_option != nullptr && cache_interval_option->count() > 0) {
    options.cache.refresh_interval = cache_interval;
  }
  const bool no_gpu = options.executor == ExecutorKind::kAuto && GpuCount() == 0;
  RequireCacheEffect(no_gpu ? ExecutorKind::kCpu : options.executor);
  return options;
}

void CreateArguments::AddKeySizeTo(CLI::App& app, std::uint32_t least_key) {
  key_size_option = app.add_option("--key-size", key_size,
                                   fmt::format("Bytes of a key: {} to {}", least_key, kMaxKeyBytes))
                        ->check(WholeNumber(least_key, kMaxKeyBytes))
                        ->capture_default_str();
}

void CreateArguments::AddSizesTo(CLI::App& app, std::uint32_t least_key) {
  AddKeySizeTo(app, least_key);
  value_size_option = app.add_option("--value-size", value_size, "Bytes of a value: 1 to 16777216")
                          ->check(WholeNumber(1, kMaxValueBytes))
                          ->capture_default_str();
}

void CreateArguments::AddLayoutTo(CLI::App& app) {
  geometry_option = app.add_option("--geometry", geometry,
                                   "Levels, hash locations and slots a bucket of a new pool: "
                                   "powers of two with a product of at most 32")
                        ->check(GeometryText())
                        ->capture_default_str();
  initial_capacity_option =
      app.add_option("--initial-capacity", initial_capacity,
                     "Items that a new pool holds without resizing; 0: it starts small")
          ->check(WholeNumber());
}

void CreateArguments::AddShardsTo(CLI::App& app) {
  app.add_option("--shards", shards,
                 "Spread the items over so many pools, in a folder, which POOL names; default: one "
                 "pool, or as many as an existing folder has")
      ->check(WholeNumber(1, kMaxShards));
}

void CreateArguments::AddDevicesTo(CLI::App& app) {
  devices_option = app.add_option(
      "--devices", devices,
      "GPUs of the shards, in turn, such as 0,1: where their batches run, on executor cuda; their "
      "pools take memory next to them; default: the first GPU");
}

ShardOptions CreateArguments::Shards(ExecutorKind executor) const {
  ShardOptions options;
  options.shards = shards;
  if (!Given(devices_option)) return options;
  RequireDevicesEffect(executor);
  options.devices = DevicesOf(devices);
  return options;
}

void CreateArguments::RequireDevicesEffect(ExecutorKind executor) const {
  if (!Given(devices_option) || executor != ExecutorKind::kCpu) return;
  RefuseArgument("--devices has no effect: executor cpu uses no GPU");
}

void CreateArguments::AddAttributesTo(CLI::App& app) {
  app.add_option("--attribute", attributes,
                 "NAME:OFFSET:BYTES: a number in the values that items are searched by "
                 "(gpmstore search); of 4 or 8 bytes, unsigned, little-endian; up to 8 of them")
      ->allow_extra_args(false);
}

CreateOptions CreateArguments::Options() const {
  CreateOptions options;
  options.key_size = key_size;
  options.value_size = value_size;
  options.geometry = ParseGeometry(geometry);
  options.initial_capacity = initial_capacity;
  for (const std::string& text : attributes) options.attributes.push_back(AttributeOf(text));
  return options;
}

void AddBatchOption(CLI::App& app, std::size_t& batch, const std::string& description) {
  app.add_option("--batch", batch, description)
      ->check(WholeNumber(1, kMaxBatchOperations))
      ->capture_default_str();
}

void RefuseArgument(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool Given(const CLI::Option* option) { return option != nullptr && option->count() > 0; }

void RequireOtherFile(const char* option, const std::string& path, const UsedPaths& used) {
  if (path.empty() || path == "-") return;
  namespace fs = std::filesystem;
  std::error_code ignored;
  // Nothing is replaced in a terminal, which several options may name.
  const bool is_file = !fs::exists(path, ignored) || fs::is_regular_file(path, ignored);
  // Without links and dots: also of a file that is not there yet.
  const auto real = [&](const std::string& name) {
    return fs::weakly_canonical(fs::absolute(name, ignored), ignored);
  };
  const fs::path file = real(path);
  for (const auto& [other, other_path] : used) {
    if (other_path.empty()) continue;
    const fs::path place = real(other_path);
    if (path == other_path ||
        (is_file && (file == place || fs::equivalent(path, other_path, ignored)))) {
      RefuseArgument(fmt::format("{} and {} are the same file", option, other));
    }
    if (fs::is_directory(place, ignored) &&
        std::mismatch(place.begin(), place.end(), file.begin(), file.end()).first == place.end()) {
      RefuseArgument(fmt::format("{}: {} is in the folder of {}", option, path, other));
    }
  }
}

void AddJsonOption(CLI::App& app, std::string& path, std::function<UsedPaths()> used) {
  app.add_option("--json", path,
                 "Write the figures as JSON to this file; - for the standard output, where they "
                 "then stand alone");
  app.parse_complete_callback([&path, used = std::move(used)] {
    RequireOtherFile("--json", path, used());
    RequireWritable("--json", path);
  });
}

void WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  nlohmann::ordered_json report;
  report["gpmstore_version"] = Version();
  report.update(json);
  // Text from outside (such as a path) need not be UTF-8.
  const std::string text =
      report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (path == "-") return Print(text);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: can't be written: {}", path, std::strerror(errno)));
  }
}

void Print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) ThrowOutputError(errno);
  FlushOutput();
}

void FlushOutput() {
  // The streams' own flags remember what an earlier call could not write.
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return;
  ThrowOutputError(errno);
}

int ReportNoSpace(const char* phase, const ycsb::PhaseReport& report) {
  const std::uint64_t count = report.outcome(Result::kNoSpace);
  if (count == 0) return kExitOk;
  std::fputs(
      fmt::format("gpmstore: {}: {} of {} operations found no space: the pool is full; allow "
                  "it to grow (--pool-max) or use a medium with more space\n",
                  phase, count, report.operations)
          .c_str(),
      stderr);
  return kExitError;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1B[K", stderr);
}

void Progress::Show(std::string_view what, std::uint64_t done, std::uint64_t total) {
  if (!terminal_) return;
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const Clock::time_point now = Clock::now();
  if (what != what_) {
    what_ = what;
    started_ = now;
  } else if (now - last_drawn_ < kInterval && done < total) {
    return;
  }
  last_drawn_ = now;
  drawn_ = true;
  constexpr std::size_t kWidth = 30;
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto filled = static_cast<std::size_t>(share * kWidth);
  std::fputs(fmt::format("\r\x1B[K{:<7}[{}{}] {:3.0f}%  {} of {}  {:.1f} s", what,
                         std::string(filled, '='), std::string(kWidth - filled, ' '), share * 100,
                         done, total, std::chrono::duration<double>(now - started_).count())
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

}  // namespace gpm::cli
