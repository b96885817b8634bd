#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/common.h"
#include "cli/work_pool.h"
#include "table/geometry.h"
#include "gpmstore/error.h"
#include "ycsb/device_buffers.h"
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

/// The workload of -P, -w and the options, in that order: the later ones win.
ycsb::WorkloadSpec MakeSpec(YcsbArguments& arguments) {
  if (arguments.workload.empty() && arguments.property_file.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "ycsb needs a workload: -w a (or b, c, d, f, load, ...) or -P FILE");
  }
  ycsb::WorkloadSpec spec;
  if (!arguments.property_file.empty()) {
    const ycsb::PropertyWorkload properties =
        ycsb::ReadPropertyWorkload(ycsb::Properties::Read(arguments.property_file));
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
  if (arguments.operations_option->count() > 0 && !load_only) {
    spec.operations = arguments.operations;
  }
  if (!arguments.distribution.empty()) {
    spec.distribution = ycsb::ParseDistribution(arguments.distribution);
  }
  if (arguments.theta_option->count() > 0) spec.theta = arguments.theta;
  spec.seed = arguments.seed;
  return spec;
}

/// An existing pool must be what the command line says explicitly.
void RequireMatch(const YcsbArguments& arguments, const StoreStats& stats) {
  const auto require = [&](const CLI::Option* option, const std::string& asked,
                           const std::string& is) {
    if (option->count() > 0 && asked != is) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: the pool has {} {}, not {}; leave the option out, or use "
                              "another pool",
                              arguments.pool, option->get_name(), is, asked));
    }
  };
  const CreateArguments& create = arguments.create;
  require(create.key_size_option, std::to_string(create.key_size), std::to_string(stats.key_size));
  require(create.value_size_option, std::to_string(create.value_size),
          std::to_string(stats.value_size));
  require(create.geometry_option, GeometryName(ParseGeometry(create.geometry)),
          GeometryName(stats.geometry));
}

Store OpenOrCreate(YcsbArguments& arguments, WorkPool& pool, const ycsb::WorkloadSpec& spec) {
  const OpenOptions open = arguments.open.Options();
  if (pool.existed()) {
    Store store = pool.Open(open);
    RequireMatch(arguments, store.Stats());
    return store;
  }
  CreateOptions create = arguments.create.Options();
  if (arguments.create.initial_capacity_option->count() == 0) {
    create.initial_capacity = spec.records;
  }
  return pool.Create(create, open);
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
  WorkPool pool(arguments.pool, arguments.keep, arguments.open.Options().executor);
  const bool records_given =
      arguments.records_option->count() > 0 || !arguments.property_file.empty();
  const auto cap_erases = [&] {
    if (spec.mix.erase > 0 && arguments.operations_option->count() == 0) {
      spec.operations = std::min(spec.operations, spec.records);
    }
  };
  cap_erases();
  if (!pool.existed()) ycsb::ValidateWorkload(spec);
  Store store = OpenOrCreate(arguments, pool, spec);
  const std::uint64_t items_before = store.Stats().items;
  const bool loads = items_before == 0;
  if (!loads && !records_given) {
    spec.records = items_before;
    cap_erases();
  }

  std::optional<ycsb::PhaseReport> load;
  std::optional<ycsb::PhaseReport> run;
  {
    Progress progress;
    ycsb::RunnerOptions options = MakeRunnerOptions(arguments, store.Stats().executor, progress);
    options.contents_known = loads;
    ycsb::Runner runner(store, spec, options);
    if (loads) load = runner.Load();
    if (!spec.load_only()) run = runner.Run();
  }
  const StoreStats stats = store.Stats();
  store.Close();

  nlohmann::ordered_json json;
  json["command"] = "ycsb";
  json["workload"] = ycsb::ToJson(spec);
  json["batch"] = arguments.batch;
  json["pool"] = pool.name();
  if (load) json["load"] = ycsb::ToJson(*load);
  if (run) json["run"] = ycsb::ToJson(*run);
  json["store"] = ycsb::ToJson(stats);
  if (arguments.json != "-") {
    std::string text = fmt::format(
        "workload {}: {} records, {} operations, {} order, {}, batch {}\n", spec.name, spec.records,
        spec.operations, spec.order == ycsb::KeyOrder::kHashed ? "hashed" : "ordered",
        ycsb::DistributionName(spec.distribution), arguments.batch);
    text += fmt::format("pool {}\n", pool.name()) + ycsb::StoreTable(stats);
    if (!loads) text += fmt::format("load: skipped, the pool held {} items\n", items_before);
    if (load) text += ycsb::PhaseTable("load", *load);
    if (run) text += ycsb::PhaseTable("run", *run);
    Print(text);
  }
  WriteJson(arguments.json, json);
  return std::max(ReportWrong("load", load), ReportWrong("run", run));
}

}  // namespace

void AddYcsbCommand(CLI::App& app, Commands& commands) {
  CLI::App* ycsb = app.add_subcommand("ycsb", "Load a pool and run a YCSB workload against it");
  const auto arguments = std::make_shared<YcsbArguments>();
  YcsbArguments& a = *arguments;
  ycsb->add_option("-w,--workload", a.workload,
                   "a, b, c, d, f (YCSB's), load, find, find-missing, insert, update or erase; e "
                   "is refused, as a hash index can't scan");
  ycsb->add_option("-P,--property-file", a.property_file,
                   "YCSB property file; -w replaces its mix and distribution, and options its "
                   "counts and sizes. Values have fieldcount * fieldlength bytes");
  a.records_option =
      ycsb->add_option("--records", a.records, "Records to load first; default 1000000");
  a.operations_option =
      ycsb->add_option("--operations", a.operations, "Operations to run; default 1000000");
  ycsb->add_option("--batch", a.batch, "Operations of a batch")->capture_default_str();
  ycsb->add_option("--distribution", a.distribution,
                   "How records are chosen: zipfian (YCSB's, over 10^10 ranks folded into the "
                   "records), zipf (over the records themselves: more skewed), uniform, latest, "
                   "hotspot, sequential or exponential; default: the workload's");
  a.theta_option =
      ycsb->add_option("--theta", a.theta, "Skew of zipf, zipfian and latest; default 0.99");
  ycsb->add_option("--seed", a.seed, "Seed of everything random")->capture_default_str();
  ycsb->add_option("--verify", a.verify,
                   "Compare what comes back with what must: none, sample (all outcomes, one value "
                   "in 16) or all; not timed")
      ->check(CLI::IsMember({"none", "sample", "all"}))
      ->capture_default_str();
  ycsb->add_option("--memory", a.memory,
                   "Where the arrays of batches are: host, device (GPU memory), or auto, which is "
                   "device with executor cuda")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
  a.create.AddSizesTo(*ycsb);
  a.create.AddLayoutTo(*ycsb);
  a.create.initial_capacity_option->description(
      "Items that a new pool holds without resizing; default: the records; 0: it starts small");
  a.open.AddTo(*ycsb);
  a.open.AddCacheTo(*ycsb);
  ycsb->add_option("--pool", a.pool,
                   "Pool file, or pinned: for volatile memory. One that exists is used as it is "
                   "(loading is skipped when it holds items); default: a temporary pool");
  ycsb->add_flag("--keep", a.keep, "Keep the pool if this run creates it");
  AddJsonOption(*ycsb, a.json);
  ycsb->footer(
      "Throughput counts the time of the batches alone: they are generated ahead. The latency of\n"
      "an operation is its batch's.\n\n"
      "Examples:\n"
      "  gpmstore ycsb -w a --records 1000000 --operations 1000000\n"
      "  gpmstore ycsb -w load --records 16000000 --batch 65536 --pool /dev/shm/p --keep\n"
      "  gpmstore ycsb -w c --pool /dev/shm/p --distribution uniform --json -\n"
      "  gpmstore ycsb -P workloads/workloadb --records 100000 --executor cpu");
  commands.push_back({ycsb, [arguments] { return RunYcsb(*arguments); }});
}

}  // namespace gpm::cli
