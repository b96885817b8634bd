#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/options.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "bench/scale_bounds.h"
#include "bench/scale_rank.h"
#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "pm/gpu_host.h"
#include "support/option_checks.h"
#ifdef GPM_HAVE_NCCL
#include "gpmstore/nccl_exchange.h"
#endif

namespace gpm::bench {
namespace {

using nlohmann::json;

constexpr ScaleWork kWorks[] = {
    {"find, uniform", Op::kFind, false, false, true}, {"find, Zipf", Op::kFind, false, true, true},
    {"missing", Op::kFind, false, false, false},      {"update", Op::kUpdate, false, false, true},
    {"A, Zipf", Op::kFind, true, true, true},         {"insert", Op::kInsert, false, false, false},
};

/// Calls work(rank) on a thread for each. @throws what one threw first, when all have ended
/// @param start where none waits for one that threw
void OnAll(std::uint32_t ranks, StartLine* start, const std::function<void(std::uint32_t)>& work) {
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
          start->Leave();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

json Row(const char* name, std::uint32_t ranks, double operations, double seconds) {
  return {{"work", name},
          {"ranks", ranks},
          {"mops", operations / seconds / 1e6},
          {"batch_ms", 1e3 * seconds}};
}

std::vector<std::unique_ptr<Exchange>> MakeExchanges(const ScaleArguments& arguments,
                                                     std::uint32_t ranks, StartLine* start) {
  std::vector<std::unique_ptr<Exchange>> exchanges = MakeThreadExchanges(ranks);
#ifdef GPM_HAVE_NCCL
  if (arguments.exchange == "nccl") {
    OnAll(ranks, start, [&](std::uint32_t i) {
      exchanges[i] = MakeNcclExchange(std::move(exchanges[i]), arguments.DeviceOf(i));
    });
  }
#else
  static_cast<void>(arguments);
  static_cast<void>(start);
#endif
  return exchanges;
}

/// A row of the report: what some work took on all ranks.
json Row(const ScaleWork& work, std::uint32_t of, double operations,
         const std::vector<ScaleRank::Measured>& measured) {
  ExchangeStats sum;
  double slowest = 0;
  std::uint64_t busiest = 0;
  for (const ScaleRank::Measured& rank : measured) {
    const ExchangeStats& one = rank.exchanged;
    slowest = std::max(slowest, rank.batch);
    sum += one;
    busiest = std::max(busiest, one.carried_out);
  }
  const double ranks = static_cast<double>(measured.size());
  json row = Row(work.name, of, operations, slowest);
  row.update(
      {{"split_ms", 1e3 * sum.split_seconds / ranks},
       {"send_ms", 1e3 * sum.send_seconds / ranks},
       {"local_ms", 1e3 * sum.local_seconds / ranks},
       {"return_ms", 1e3 * sum.return_seconds / ranks},
       {"sent", static_cast<double>(sum.sent) / static_cast<double>(sum.asked)},
       {"busiest", static_cast<double>(busiest) * ranks / static_cast<double>(sum.carried_out)}});
  return row;
}

/// What bounds so many ranks: of the one that is slowest at it.
json MeasureBounds(const ScaleArguments& arguments, std::uint32_t ranks) {
  ShowProgress(fmt::format("bounds of {} ranks", ranks));
  StartLine start(ranks);
  std::vector<std::unique_ptr<Exchange>> exchanges = MakeExchanges(arguments, ranks, &start);
  ScaleBoundsOfRank::Inboxes inboxes(ranks);
  std::vector<std::unique_ptr<ScaleBoundsOfRank>> all(ranks);
  std::vector<ScaleBounds> measured(ranks);
  OnAll(ranks, &start, [&](std::uint32_t i) {
    all[i] = std::make_unique<ScaleBoundsOfRank>(arguments, i, ranks, std::move(exchanges[i]),
                                                 &start, &inboxes);
  });
  OnAll(ranks, &start, [&](std::uint32_t i) { measured[i] = all[i]->Measure(); });
  OnAll(ranks, &start, [&](std::uint32_t i) { all[i].reset(); });
  ScaleBounds slowest = measured.front();
  for (const ScaleBounds& rank : measured) {
    for (double ScaleBounds::*rate :
         {&ScaleBounds::copy, &ScaleBounds::to_others, &ScaleBounds::from_host,
          &ScaleBounds::to_host, &ScaleBounds::multisplit, &ScaleBounds::exchange}) {
      slowest.*rate = std::min(slowest.*rate, rank.*rate);
    }
  }
  return ToJson(slowest, ranks);
}

/// A store of so many ranks, each a thread, that is there for this alone.
/// @param of how many ranks; 0: a Store
void MeasureRanks(const ScaleArguments& arguments, std::uint32_t of, json* report) {
  ShowProgress(fmt::format("{} ranks", of));
  const std::uint32_t ranks = std::max(of, 1u);
  StartLine start(ranks);
  std::vector<std::unique_ptr<ScaleRank>> all(ranks);
  std::vector<std::unique_ptr<Exchange>> exchanges(ranks);
  if (of > 0) exchanges = MakeExchanges(arguments, of, &start);
  std::vector<double> seconds(ranks);
  OnAll(ranks, &start, [&](std::uint32_t i) {
    all[i] = std::make_unique<ScaleRank>(arguments, i, ranks, std::move(exchanges[i]), &start);
    seconds[i] = all[i]->Load();
  });
  json& rows = (*report)["rows"];
  const double operations = static_cast<double>(all.front()->batch() * ranks);
  const double batches_of_load = static_cast<double>(all.front()->records()) / operations;
  rows.push_back(Row("load", of, operations,
                     *std::max_element(seconds.begin(), seconds.end()) / batches_of_load));
  std::vector<ScaleRank::Measured> measured(ranks);
  for (const ScaleWork& work : kWorks) {
    OnAll(ranks, &start, [&](std::uint32_t i) { measured[i] = all[i]->Measure(work); });
    rows.push_back(Row(work, of, operations, measured));
  }
  if (!report->contains("store")) (*report)["store"] = StoreFacts(all.front()->Stats());
  OnAll(ranks, &start, [&](std::uint32_t i) { all[i].reset(); });
}

void Print(const json& report) {
  fmt::print("{}: {} records and batches of {} {}, {} in flight, in {} memory; exchange: {}\n",
             report.at("strong").get<bool>() ? "strong scaling" : "weak scaling",
             report.at("records").get<std::uint64_t>(), report.at("batch").get<std::uint64_t>(),
             report.at("strong").get<bool>() ? "in all" : "a rank",
             report.at("in_flight").get<unsigned>(), report.at("memory").get<std::string>(),
             report.at("exchange").get<std::string>());
  fmt::print(
      "(0 ranks: a Store alone, in flight on streams that have no order. Medians in ms: of "
      "batches, on the slowest rank; of their phases, "
      "the mean of the ranks.)\n\n");
  fmt::print("{:>14}{:>7}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>7}{:>9}\n", "", "ranks", "M/s",
             "batch, ms", "split", "send", "local", "return", "sent", "busiest");
  for (const json& row : report.at("rows")) {
    fmt::print("{:>14}{:>7}{:>9.2f}{:>10.3f}", row.at("work").get<std::string>(),
               row.at("ranks").get<unsigned>(), row.at("mops").get<double>(),
               row.at("batch_ms").get<double>());
    for (const char* phase : {"split_ms", "send_ms", "local_ms", "return_ms"}) {
      if (row.contains(phase)) fmt::print("{:>9.3f}", row.at(phase).get<double>());
    }
    if (row.contains("sent")) {
      fmt::print("{:>7.2f}{:>9.2f}", row.at("sent").get<double>(), row.at("busiest").get<double>());
    }
    fmt::print("\n");
  }
  fmt::print(
      "\nWhat bounds it, with all ranks at once, in GB/s of each: copies in its own memory (read "
      "and "
      "written), to the\nothers, and over the link to the host; a multisplit of such a batch (read "
      "and written), and an exchange.\n\n{:>7}{:>9}{:>11}{:>11}{:>9}{:>22}{:>22}\n",
      "ranks", "copy", "to others", "from host", "to host", "multisplit (of copy)",
      "exchange (of copies)");
  for (const json& row : report.at("bounds")) {
    const auto rate = [&](const char* what) { return row.at(what).get<double>(); };
    const auto share = [&](const char* what, const char* of) {
      return rate(of) > 0 ? rate(what) / rate(of) : 0;
    };
    fmt::print("{:>7}{:>9.1f}{:>11.1f}{:>11.1f}{:>9.1f}{:>15.1f} ({:.2f}){:>15.1f} ({:.2f})\n",
               row.at("ranks").get<unsigned>(), rate("copy_gb_s"), rate("to_others_gb_s"),
               rate("from_host_gb_s"), rate("to_host_gb_s"), rate("multisplit_gb_s"),
               share("multisplit_gb_s", "copy_gb_s"), rate("exchange_gb_s"),
               share("exchange_gb_s", "to_others_gb_s"));
  }
}

void Run(ScaleArguments& arguments) {
  if (arguments.folder.empty()) arguments.folder = TemporaryPoolPath();
  const bool on_gpu = arguments.executor != ExecutorKind::kCpu && GpuCount() > 0;
  if (arguments.memory == "auto") arguments.memory = on_gpu ? "device" : "host";
  if (on_gpu && arguments.devices.empty()) {
    for (int i = 0; i < GpuCount(); ++i) arguments.devices.push_back(i);
  }
  json report = {{"records", arguments.records},
                 {"batch", arguments.batch},
                 {"strong", arguments.strong},
                 {"devices", arguments.devices},
                 {"memory", arguments.memory},
                 {"exchange", arguments.exchange},
                 {"in_flight", arguments.in_flight},
                 {"seed", arguments.seed},
                 {"rows", json::array()},
                 {"bounds", json::array()}};
  for (const std::uint32_t ranks : arguments.ranks) {
    const FolderRemovedAtEnd folder(arguments.folder);
    MeasureRanks(arguments, ranks, &report);
    if (ranks > 0) report["bounds"].push_back(MeasureBounds(arguments, ranks));
  }
  FinishReport("scale", std::move(report), arguments.json, Print);
}

}  // namespace

void AddScaleCommand(CLI::App& program) {
  auto arguments = std::make_shared<ScaleArguments>();
  CLI::App* command = program.add_subcommand(
      "scale",
      "A store over several ranks, each a thread with a shard: throughput, and where it "
      "goes");
  AddNumbers(*command, "--ranks", &arguments->ranks, WholeNumber(0, 64),
             "Numbers of ranks, one after the other; 0 is a store of one pool, without any");
  command
      ->add_option("--devices", arguments->devices,
                   "CUDA devices that the ranks use in turn; default: all")
      ->delimiter(',')
      ->check(WholeNumber(0, 1023));
  AddNumber(*command, "--records", &arguments->records, WholeNumber(1000, 1ull << 36),
            "Items of each rank");
  AddNumber(*command, "--batch", &arguments->batch, WholeNumber(1, 1u << 24),
            "Operations of each rank's parts");
  command->add_flag("--strong", arguments->strong,
                    "The same records and batches are divided by the ranks");
  AddNumber(*command, "--batches", &arguments->batches, WholeNumber(1, 10000),
            "Batches, of which the median counts");
  AddNumber(*command, "--in-flight", &arguments->in_flight, WholeNumber(1, 16),
            "Batches that each rank has in flight, with arrays of their own; 1: each is waited for "
            "before the next one");
  AddValueSizeOption(*command, &arguments->value_size);
  command->add_option("--folder", arguments->folder,
                      "Folder for the pools, which is removed at the end; default: a new one on "
                      "tmpfs");
  command
      ->add_option("--memory", arguments->memory,
                   "Where the arrays of batches are: host, device (of the rank's GPU), or auto, "
                   "which is device with executor cuda")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
#ifdef GPM_HAVE_NCCL
  const std::vector<std::string> exchanges = {"threads", "nccl"};
#else
  const std::vector<std::string> exchanges = {"threads"};
#endif
  command
      ->add_option("--exchange", arguments->exchange,
                   "How rows in GPU memory are exchanged: by copies that threads make, or by NCCL, "
                   "where it was found when this was built")
      ->check(CLI::IsMember(exchanges))
      ->capture_default_str();
  AddSeedOption(*command, &arguments->seed, "Of the keys");
  AddExecutorOptions(*command, &arguments->executor, &arguments->threads);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
