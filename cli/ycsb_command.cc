#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/common.h"
#include "cli/work_pool.h"
#include "pm/gpu_host.h"
#include "pm/mapping.h"
#include "support/option_checks.h"
#include "ycsb/device_buffers.h"
#include "ycsb/generators.h"
#include "ycsb/held_records.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"
#include "ycsb/workload.h"

namespace gpm::cli {
namespace {

struct YcsbArguments {
  std::string workload;
  std::string property_file;
  std::uint64_t records = 0;
  std::uint64_t operations = 0;
  std::size_t batch = 4096;
  std::string distribution;
  double theta = 0;
  std::uint64_t seed = 0;
  std::string verify = "sample";
  std::string memory = "auto";
  std::string pool;
  bool keep = false;
  std::string json;
  OpenArguments open;
  CreateArguments create;
  CLI::Option* records_option = nullptr;
  CLI::Option* operations_option = nullptr;
  CLI::Option* theta_option = nullptr;
};

/// Refuses what says how records are chosen where none is chosen so.
void RequireChoiceEffect(const YcsbArguments& arguments, const ycsb::WorkloadSpec& spec) {
  const bool chooses = !spec.load_only() && spec.mix.insert < 1;
  if (!chooses && (!arguments.distribution.empty() || Given(arguments.theta_option))) {
    RefuseArgument(
        fmt::format("{} has no effect: this workload chooses no records, as it only adds "
                    "new ones",
                    arguments.distribution.empty() ? "--theta" : "--distribution"));
  }
  if (Given(arguments.theta_option) && !ycsb::HasSkew(spec.distribution)) {
    RefuseArgument(
        fmt::format("--theta has no effect: distribution {} has no skew; zipf, zipfian and latest "
                    "do (--distribution)",
                    ycsb::DistributionName(spec.distribution)));
  }
}

/// The workload of -P, -w and the options, in that order: the later ones win.
ycsb::WorkloadSpec MakeSpec(YcsbArguments& arguments) {
  if (arguments.workload.empty() && arguments.property_file.empty()) {
    RefuseArgument("ycsb needs a workload: -w a (or b, c, d, f, load, ...) or -P FILE");
  }
  ycsb::WorkloadSpec spec;
  if (!arguments.property_file.empty()) {
    const ycsb::PropertyWorkload properties =
        ycsb::ReadPropertyWorkload(ycsb::Properties::Read(arguments.property_file));
    for (const std::string& warning : properties.warnings) {
      std::fputs(fmt::format("gpmstore: warning: {}\n", warning).c_str(), stderr);
    }
    spec = properties.spec;
    spec.name = std::filesystem::path(arguments.property_file).filename().string();
    if (arguments.create.value_size_option->count() == 0) {
      arguments.create.value_size = properties.value_size;
    }
  }
  if (!arguments.workload.empty()) {
    const ycsb::WorkloadSpec preset = ycsb::PresetWorkload(arguments.workload);
    spec.name = preset.name;
    spec.mix = preset.mix;
    spec.distribution = preset.distribution;
    if (preset.load_only()) spec.operations = 0;
  }
  if (arguments.records_option->count() > 0) spec.records = arguments.records;
  const bool load_only = arguments.workload == "load";
  if (Given(arguments.operations_option)) {
    if (load_only) RefuseArgument("--operations has no effect: workload load runs none");
    spec.operations = arguments.operations;
  }
  if (!arguments.distribution.empty()) {
    spec.distribution = ycsb::ParseDistribution(arguments.distribution);
  }
  if (arguments.theta_option->count() > 0) spec.theta = arguments.theta;
  spec.seed = arguments.seed;
  RequireChoiceEffect(arguments, spec);
  return spec;
}

AnyStore OpenOrCreate(YcsbArguments& arguments, WorkPool& pool, const ycsb::WorkloadSpec& spec) {
  OpenOptions open = arguments.open.Options();
  if (spec.mix.search > 0) open.search_index_bytes = ~std::uint64_t{0};
  const ShardOptions shards = arguments.create.Shards(open.executor);
  if (pool.existed()) {
    AnyStore store = pool.OpenAny(open, shards);
    const StoreStats stats = store.Stats();
    arguments.create.RequireMatch(arguments.pool, stats);
    if (!arguments.property_file.empty() && arguments.create.value_size != stats.value_size) {
      RefuseArgument(fmt::format(
          "{}: the pool's values have {} bytes, and {} asks for records of {} (fieldcount * "
          "fieldlength); add --value-size {}, or use another pool",
          arguments.pool, stats.value_size, arguments.property_file, arguments.create.value_size,
          stats.value_size));
    }
    arguments.open.RequireEffect(stats);
    arguments.create.RequireDevicesEffect(stats.executor);
    return store;
  }
  CreateOptions create = arguments.create.Options();
  if (arguments.create.initial_capacity_option->count() == 0) {
    create.initial_capacity =
        open.capacity.items > 0 ? std::min(spec.records, open.capacity.items) : spec.records;
  }
  if (spec.mix.search > 0) {
    if (arguments.create.shards > 0) {
      throw Error(ErrorCode::kUnsupported,
                  "--shards: a workload with searches runs on one pool, not on several shards");
    }
    create.attributes = {ycsb::RecordAttribute()};
    if (create.value_size < ycsb::kLeastSearchedBytes) {
      RefuseArgument(fmt::format(
          "--value-size {}: the workload searches by the numbers of records, which values of at "
          "least {} bytes have",
          create.value_size, ycsb::kLeastSearchedBytes));
    }
  }
  AnyStore store = pool.CreateAny(create, open, shards);
  arguments.open.RequireEffect(store.Stats());
  arguments.create.RequireDevicesEffect(store.Stats().executor);
  return store;
}

ycsb::RunnerOptions MakeRunnerOptions(const YcsbArguments& arguments, ExecutorKind executor,
                                      Progress& progress) {
  ycsb::RunnerOptions options;
  options.batch_rows = arguments.batch;
  options.generator_threads = arguments.open.threads;
  options.verify = arguments.verify == "none"  ? ycsb::Verify::kNone
                   : arguments.verify == "all" ? ycsb::Verify::kAll
                                               : ycsb::Verify::kSample;
  if (arguments.memory == "device" ||
      (arguments.memory == "auto" && executor == ExecutorKind::kCuda)) {
    options.buffers = [](const ycsb::BatchBuffers::Shape& shape) {
      return std::make_unique<ycsb::DeviceBatchBuffers>(shape);
    };
  }
  options.progress = [&progress](ycsb::Phase phase, std::uint64_t done, std::uint64_t total) {
    progress.Show(phase == ycsb::Phase::kLoad ? "load" : "run", done, total);
  };
  return options;
}

/// Reports results that were not what they must be. @return the exit status
int ReportWrong(const char* phase, const std::optional<ycsb::PhaseReport>& report) {
  if (!report || report->wrong == 0) return kExitOk;
  std::fputs(fmt::format("gpmstore: {}: {} of {} verified results were wrong, first {}\n", phase,
                         report->wrong, report->verified, report->first_wrong)
                 .c_str(),
             stderr);
  return kExitNo;
}

int RunYcsb(YcsbArguments& arguments) {
  ycsb::WorkloadSpec spec = MakeSpec(arguments);
  if (arguments.keep && arguments.pool == Mapping::kPinnedPath) {
    RefuseArgument("--keep has no effect: a pool in pinned memory ends with this command");
  }
  if (arguments.open.capacity > 0 && arguments.verify != "none") {
    RefuseArgument(
        "--capacity: what was evicted reads as missing, so that results can't be verified; add "
        "--verify none");
  }
  if (arguments.memory == "device" && GpuCount() == 0) {
    RefuseArgument("--memory device: there is no usable CUDA device; leave the option out");
  }
  WorkPool pool(arguments.pool, arguments.keep, arguments.open.Options().executor);
  const bool records_given =
      arguments.records_option->count() > 0 || !arguments.property_file.empty();
  const auto cap_erases = [&] {
    if (spec.mix.erase == 1 && arguments.operations_option->count() == 0) {
      spec.operations = std::min(spec.operations, spec.records);
    }
  };
  cap_erases();
  if (!pool.existed()) ycsb::ValidateWorkload(spec);
  AnyStore store = OpenOrCreate(arguments, pool, spec);
  const std::uint64_t items_before = store.Stats().items;
  const bool loads = items_before == 0;
  if (!loads && !records_given) {
    spec.records = items_before;
    cap_erases();
  }
  if (!loads) {
    const std::string missing = ycsb::MissingRecords(store.target(), spec);
    if (!missing.empty()) {
      RefuseArgument(
          fmt::format("{}: {}; ask for the records that it has (--records), or use "
                      "another pool",
                      arguments.pool, missing));
    }
  }

  std::optional<ycsb::PhaseReport> load;
  std::optional<ycsb::PhaseReport> run;
  {
    Progress progress;
    ycsb::RunnerOptions options = MakeRunnerOptions(arguments, store.Stats().executor, progress);
    options.contents_known = loads;
    ycsb::Runner runner(store.target(), spec, options);
    if (loads) load = runner.Load();
    if (!spec.load_only()) run = runner.Run();
  }
  const StoreStats stats = store.Stats();
  store.Close();

  nlohmann::ordered_json json;
  json["command"] = "ycsb";
  json["workload"] = ycsb::ToJson(spec);
  json["batch"] = arguments.batch;
  json["verify"] = arguments.verify;
  json["pool"] = pool.name();
  if (load) json["load"] = ycsb::ToJson(*load);
  if (run) json["run"] = ycsb::ToJson(*run);
  json["store"] = ycsb::ToJson(stats);
  if (arguments.json != "-") {
    std::string text = fmt::format(
        "workload {}: {} records, {} operations, {} order, {}, batch {}\n", spec.name, spec.records,
        spec.operations, spec.order == ycsb::KeyOrder::kHashed ? "hashed" : "ordered",
        ycsb::DistributionName(spec.distribution), arguments.batch);
    text += fmt::format("pool {}\n", pool.name()) + ycsb::StoreTable(stats, pool.removed_at_end());
    if (!loads) text += fmt::format("load: skipped, the pool held {} items\n", items_before);
    if (load) text += ycsb::PhaseTable("load", *load) + ycsb::VerifiedLine(*load);
    if (run) text += ycsb::PhaseTable("run", *run) + ycsb::VerifiedLine(*run);
    Print(text);
  }
  WriteJson(arguments.json, json);
  const int no_space = run ? ReportNoSpace("run", *run) : kExitOk;
  return std::max({ReportWrong("load", load), ReportWrong("run", run), no_space});
}

}  // namespace

void AddYcsbCommand(CLI::App& app, Commands& commands) {
  CLI::App* ycsb = app.add_subcommand("ycsb", "Load a pool and run a YCSB workload against it");
  const auto arguments = std::make_shared<YcsbArguments>();
  YcsbArguments& a = *arguments;
  ycsb->add_option(
      "-w,--workload", a.workload,
      "a, b, c, d, f (YCSB's), load, find, find-missing, insert, update, erase, churn, ghsh1, "
      "ghsh2 or ghsh3 (with searches by an attribute); e is refused, as a hash index can't scan");
  ycsb->add_option("-P,--property-file", a.property_file,
                   "YCSB property file; -w replaces its mix and distribution, and options its "
                   "counts and sizes. Values have fieldcount * fieldlength bytes");
  a.records_option =
      ycsb->add_option("--records", a.records, "Records to load first; default 1000000")
          ->check(WholeNumber());
  a.operations_option =
      ycsb->add_option("--operations", a.operations, "Operations to run; default 1000000")
          ->check(WholeNumber());
  AddBatchOption(*ycsb, a.batch, "Operations of a batch");
  ycsb->add_option("--distribution", a.distribution,
                   "How records are chosen: zipfian (YCSB's, over 10^10 ranks folded into the "
                   "records), zipf (over the records themselves: more skewed), uniform, latest, "
                   "hotspot, sequential or exponential; default: the workload's");
  a.theta_option =
      ycsb->add_option("--theta", a.theta, "Skew of zipf, zipfian and latest; default 0.99")
          ->check(NumberBetween(0, ycsb::Zipfian::kMaxTheta));
  ycsb->add_option("--seed", a.seed, "Seed of everything random")
      ->check(WholeNumber())
      ->capture_default_str();
  ycsb->add_option("--verify", a.verify,
                   "Compare what comes back with what must: none, sample (all outcomes, one value "
                   "in 16) or all; outcomes of records that were there before are known once this "
                   "run has written them; not timed")
      ->check(CLI::IsMember({"none", "sample", "all"}))
      ->capture_default_str();
  ycsb->add_option("--memory", a.memory,
                   "Where the arrays of batches are: host, device (GPU memory), or auto, which is "
                   "device with executor cuda and one pool")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
  a.create.AddSizesTo(*ycsb, ycsb::kLeastKeyBytes);
  a.create.AddLayoutTo(*ycsb);
  a.create.AddShardsTo(*ycsb);
  a.create.AddDevicesTo(*ycsb);
  a.create.initial_capacity_option->description(
      "Items that a new pool holds without resizing; default: the records; 0: it starts small");
  a.open.AddTo(*ycsb);
  a.open.AddCacheTo(*ycsb);
  a.open.AddCapacityTo(*ycsb);
  a.open.AddSnapshotsTo(*ycsb);
  ycsb->add_option("--pool", a.pool,
                   "Pool file, folder of shards, or pinned: for volatile memory. One that exists "
                   "is used as it is: "
                   "loading is skipped when it holds items, which must be the workload's records; "
                   "default: a temporary pool");
  ycsb->add_flag("--keep", a.keep, "Keep the pool if this run creates it");
  AddJsonOption(*ycsb, a.json, [&a] {
    return UsedPaths{{"--property-file", a.property_file},
                     {"--pool", a.pool},
                     {"--snapshots", a.open.snapshot.path}};
  });
  ycsb->footer(
      "Throughput counts the time of the batches alone: they are generated ahead. The latency of\n"
      "an operation is its batch's.\n\n"
      "Examples:\n"
      "  gpmstore ycsb -w a --records 1000000 --operations 1000000\n"
      "  gpmstore ycsb -w load --records 16000000 --batch 65536 --pool /dev/shm/p --keep\n"
      "  gpmstore ycsb -w c --pool /dev/shm/p --distribution uniform --json -\n"
      "  gpmstore ycsb -P ycsb/workloads/workloadb --records 100000 --executor cpu");
  commands.push_back({ycsb, [arguments] { return RunYcsb(*arguments); }});
}

}  // namespace gpm::cli
