#include "ycsb/report.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "table/geometry.h"

namespace gpm::ycsb {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<const char*, double>, 4> kPercentiles = {
    {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}}};

double Microseconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

Json ToJson(const Histogram& histogram) {
  Json json;
  json["count"] = histogram.count();
  for (const auto& [name, fraction] : kPercentiles) {
    json[name] = Microseconds(histogram.Percentile(fraction));
  }
  json["max"] = Microseconds(histogram.max());
  return json;
}

std::string_view KindName(std::size_t kind) {
  return kind == kSearchKind ? "search" : OpName(static_cast<Op>(kind));
}

/// Calls visit(name, histogram) for the batches and for each kind of operation that there was.
template <class Visit>
void ForEachLatency(const PhaseReport& report, Visit&& visit) {
  visit(std::string("batch"), report.batch_latency);
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (report.op_latency[kind].count() > 0) {
      visit(std::string(KindName(kind)), report.op_latency[kind]);
    }
  }
  if (report.read_modify_write_latency.count() > 0) {
    visit(std::string("read-modify-write"), report.read_modify_write_latency);
  }
}

std::string Promise(const MediumInfo& medium) {
  if (medium.survives_power_loss) return "survives power loss";
  return medium.survives_process_crash ? "survives a process crash" : "volatile";
}

}  // namespace

Json ToJson(const PhaseReport& report) {
  Json json;
  json["operations"] = report.operations;
  json["store_operations"] = report.store_operations;
  json["batches"] = report.batches;
  json["seconds"] = report.seconds;
  json["wall_seconds"] = report.wall_seconds;
  json["mops"] = report.mops();
  Json& latency = json["latency_us"] = Json::object();
  ForEachLatency(report, [&](const std::string& name, const Histogram& histogram) {
    latency[name] = ToJson(histogram);
  });
  Json& outcomes = json["outcomes"] = Json::object();
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    for (std::size_t result = 0; result < kResults; ++result) {
      const std::uint64_t count = report.outcomes[kind][result];
      if (count == 0) continue;
      outcomes[std::string(KindName(kind))][std::string(ResultName(static_cast<Result>(result)))] =
          count;
    }
  }
  json["verified"] = report.verified;
  json["values_compared"] = report.values_compared;
  json["wrong"] = report.wrong;
  if (report.wrong > 0) json["first_wrong"] = report.first_wrong;
  return json;
}

Json ToJson(const StoreStats& stats) {
  Json json;
  json["executor"] = ExecutorName(stats.executor);
  json["threads"] = stats.threads;
  json["medium"] = MediumName(stats.medium.medium);
  json["survives_process_crash"] = stats.medium.survives_process_crash;
  json["survives_power_loss"] = stats.medium.survives_power_loss;
  json["memory_node"] = stats.medium.memory_node;
  json["key_size"] = stats.key_size;
  json["value_size"] = stats.value_size;
  json["geometry"] = GeometryName(stats.geometry);
  json["items"] = stats.items;
  json["capacity_slots"] = stats.capacity_slots;
  json["load_factor"] = stats.load_factor;
  json["level_buckets"] = stats.level_buckets;
  json["buckets_to_drain"] = stats.buckets_to_drain;
  json["resizes"] = stats.resizes;
  json["composed_resizes"] = stats.composed_resizes;
  json["resize_seconds"] = stats.resize_seconds;
  json["growth_seconds"] = stats.growth_seconds;
  json["composing_seconds"] = stats.composing_seconds;
  json["directory_seconds"] = stats.directory_seconds;
  if (stats.capacity_items > 0) {
    json["capacity"] = {{"items", stats.capacity_items},
                        {"evicted", stats.evicted},
                        {"evictions", stats.evictions},
                        {"seconds", stats.eviction_seconds}};
  }
  json["value_cells"] = stats.value_cells;
  json["free_cells"] = stats.free_cells;
  json["pm_bytes"] = stats.pm_bytes;
  json["gpu_bytes"] = stats.gpu_bytes;
  json["read_by_host"] = stats.read_by_host;
  json["written_by_host"] = stats.written_by_host;
  Json& cache = json["cache"] = Json::object();
  cache["policy"] = CachePolicyName(stats.cache.policy);
  cache["directory_bytes"] = stats.cache.directory_bytes;
  cache["blocks"] = stats.cache.frames;
  cache["bytes"] = stats.cache.bytes;
  cache["loads"] = stats.cache.refreshes;
  cache["load_seconds"] = stats.cache.refresh_seconds;
  cache["found"] = stats.cache.found;
  cache["hits"] = stats.cache.hits;
  Json& recovery = json["recovery"] = Json::object();
  recovery["was_clean"] = stats.recovery.was_clean;
  recovery["resize_continued"] = stats.recovery.resize_continued;
  recovery["insert_slots_cleared"] = stats.recovery.insert_slots_cleared;
  recovery["duplicates_removed"] = stats.recovery.duplicates_removed;
  recovery["seconds"] = stats.recovery.seconds;
  return json;
}

Json ToJson(const WorkloadSpec& spec) {
  Json json;
  json["name"] = spec.name;
  json["records"] = spec.records;
  json["operations"] = spec.operations;
  json["distribution"] = DistributionName(spec.distribution);
  json["theta"] = spec.theta;
  json["order"] = spec.order == KeyOrder::kHashed ? "hashed" : "ordered";
  json["seed"] = spec.seed;
  Json& mix = json["mix"] = Json::object();
  const std::array<std::pair<const char*, double>, 7> shares = {
      {{"find", spec.mix.find},
       {"find-missing", spec.mix.missing},
       {"update", spec.mix.update},
       {"insert", spec.mix.insert},
       {"erase", spec.mix.erase},
       {"search", spec.mix.search},
       {"read-modify-write", spec.mix.read_modify_write}}};
  for (const auto& [name, share] : shares) {
    if (share > 0) mix[name] = share;
  }
  return json;
}

std::string BytesText(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

std::string StoreTable(const StoreStats& stats, bool removed) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<12}{}\n", name, value);
  };
  line("executor",
       stats.executor == ExecutorKind::kCpu
           ? fmt::format("cpu, {} thread{}", stats.threads, stats.threads == 1 ? "" : "s")
           : std::string(ExecutorName(stats.executor)));
  line("medium", fmt::format("{} ({})", MediumName(stats.medium.medium),
                             removed ? "the pool is removed at the end" : Promise(stats.medium)));
  line("format", fmt::format("keys {} B, values {} B, {}", stats.key_size, stats.value_size,
                             GeometryName(stats.geometry)));
  line("items", fmt::format("{} in {} slots, load factor {:.3f}", stats.items, stats.capacity_slots,
                            stats.load_factor));
  line("levels", fmt::format("{} buckets, resized {} time{}", fmt::join(stats.level_buckets, " + "),
                             stats.resizes, stats.resizes == 1 ? "" : "s"));
  line("space",
       fmt::format("{} PM, {} GPU memory", BytesText(stats.pm_bytes), BytesText(stats.gpu_bytes)));
  const CacheStats& cache = stats.cache;
  if (cache.directory) line("directory", BytesText(cache.directory_bytes));
  if (cache.policy != CachePolicy::kOff) {
    line("cache",
         fmt::format("{}, values of {} buckets, {}; loaded {} time{} (last {:.1f} ms); hit "
                     "rate {:.4f}",
                     CachePolicyName(cache.policy), cache.frames, BytesText(cache.bytes),
                     cache.refreshes, cache.refreshes == 1 ? "" : "s", 1e3 * cache.refresh_seconds,
                     cache.found == 0
                         ? 0.0
                         : static_cast<double>(cache.hits) / static_cast<double>(cache.found)));
  }
  return text;
}

std::string VerifiedLine(const PhaseReport& report) {
  return fmt::format("  {:<18}{} results, {} values compared, {} wrong\n", "verified",
                     report.verified, report.values_compared, report.wrong);
}

std::string PhaseTable(const std::string& title, const PhaseReport& report) {
  std::string text =
      fmt::format("{}: {} operations in {} batches, {:.3f} s, {:.3f} Mops/s\n", title,
                  report.operations, report.batches, report.seconds, report.mops());
  text += fmt::format("  {:<18}{:>12}", "latency in us", "count");
  for (const auto& percentile : kPercentiles) text += fmt::format("{:>12}", percentile.first);
  text += fmt::format("{:>12}\n", "max");
  ForEachLatency(report, [&](const std::string& name, const Histogram& histogram) {
    text += fmt::format("  {:<18}{:>12}", name, histogram.count());
    for (const auto& percentile : kPercentiles) {
      text += fmt::format("{:>12.1f}", Microseconds(histogram.Percentile(percentile.second)));
    }
    text += fmt::format("{:>12.1f}\n", Microseconds(histogram.max()));
  });
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    std::string counts;
    for (std::size_t result = 0; result < kResults; ++result) {
      const std::uint64_t count = report.outcomes[kind][result];
      if (count > 0) {
        counts += fmt::format(", {} {}", count, ResultName(static_cast<Result>(result)));
      }
    }
    if (!counts.empty()) {
      text += fmt::format("  outcomes {:<9}{}\n", KindName(kind), counts.substr(1));
    }
  }
  return text;
}

}  // namespace gpm::ycsb
