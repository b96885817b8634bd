#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/kv_adapter.h"
#include "bench/options.h"
#include "bench/report.h"
#include "gpmstore/distributed_store.h"
#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "pm/gpu_host.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/device_buffers.h"
#include "ycsb/generators.h"
#include "ycsb/items.h"
#ifdef GPM_HAVE_NCCL
#include "gpmstore/nccl_exchange.h"
#endif

namespace gpm::bench {
namespace {

using nlohmann::json;

struct ScaleArguments {
  std::string folder;
  std::vector<std::uint32_t> ranks = {0, 1, 2, 4};
  std::vector<int> devices;
  std::uint64_t records = 1'000'000;
  std::uint64_t batch = std::uint64_t{1} << 16;
  unsigned batches = 9;
  std::uint32_t value_size = 128;
  bool strong = false;
  std::string memory = "auto";
  std::string exchange = "threads";
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::uint64_t seed = 1;
  std::string json;
};

constexpr std::uint32_t kKeySize = 8;

/// What all ranks do in batches.
struct Work {
  const char* name;
  Op op;              ///< or, of mixed batches, every second operation
  bool updates_half;  ///< the others are updates
  bool zipf;          ///< 0.99 over the records, else uniform
  bool there;         ///< the keys are
};
constexpr Work kWorks[] = {
    {"find, uniform", Op::kFind, false, false, true}, {"find, Zipf", Op::kFind, false, true, true},
    {"missing", Op::kFind, false, false, false},      {"update", Op::kUpdate, false, false, true},
    {"A, Zipf", Op::kFind, true, true, true},
};

/// One rank, with the arrays of its parts; or a Store alone, of which all is local work. Made and
/// used by a thread of its own.
class Rank {
 public:
  /// @param exchange null: a Store
  Rank(const ScaleArguments& arguments, std::uint32_t rank, std::uint32_t ranks,
       std::unique_ptr<Exchange> exchange)
      : arguments_(arguments),
        records_(arguments.strong ? arguments.records : arguments.records * ranks),
        batch_(arguments.strong ? std::max<std::uint64_t>(arguments.batch / ranks, 1)
                                : arguments.batch),
        rank_(rank),
        ranks_(ranks),
        zipf_(records_) {
    OpenOptions open;
    open.executor = arguments.executor;
    open.threads = arguments.threads;
    if (!arguments.devices.empty()) open.device = DeviceOf(arguments, rank);
    const ycsb::BatchBuffers::Shape shape{
        .rows = batch_, .key_size = kKeySize, .value_size = arguments.value_size};
    if (arguments.memory == "device") {
      UseGpu(open.device);
      buffers_ = std::make_unique<ycsb::DeviceBatchBuffers>(shape);
    } else {
      buffers_ = std::make_unique<ycsb::BatchBuffers>(shape);
    }
    const CreateOptions create{.key_size = kKeySize, .value_size = arguments.value_size};
    if (exchange == nullptr) {
      alone_ = Store::Create(arguments.folder, create, open);
    } else {
      store_ = DistributedStore::Create(arguments.folder, std::move(exchange), create,
                                        {.shards = ranks}, open);
    }
  }

  static int DeviceOf(const ScaleArguments& arguments, std::uint32_t rank) {
    return arguments.devices[rank % arguments.devices.size()];
  }

  StoreStats Stats() const { return alone_ ? alone_.Stats() : store_.Stats(); }
  std::uint64_t batch() const { return batch_; }
  std::uint64_t records() const { return records_; }

  /// Inserts this rank's records, as many batches on every rank. @return seconds
  double Load() {
    const std::uint64_t all = (records_ + ranks_ - 1) / ranks_;
    double seconds = 0;
    for (std::uint64_t at = 0; at < all; at += batch_) {
      std::uint64_t n = 0;
      for (; n < std::min(batch_, all - at); ++n) {
        const std::uint64_t record = (at + n) * ranks_ + rank_;
        if (record >= records_) break;
        Put(n, record);
      }
      buffers_->Upload(n);
      Batch batch = buffers_->View(0, n, Op::kInsert);
      batch.found = {};
      seconds += Timed(batch);
      Require(n, Result::kOk);
    }
    return seconds;
  }

  /// The median of several batches, in seconds.
  double Measure(const Work& work) {
    std::vector<double> seconds;
    for (std::uint64_t i = 0; i < batch_; ++i) {
      buffers_->ops()[i] = i % 2 == 0 ? work.op : Op::kUpdate;
    }
    for (unsigned repeat = 0; repeat <= arguments_.batches; ++repeat) {
      for (std::uint64_t i = 0; i < batch_; ++i) {
        const std::uint64_t record = work.zipf ? zipf_.Draw(random_) : random_.NextBelow(records_);
        Put(i, work.there ? record : records_ + record);
      }
      buffers_->Upload(batch_);
      Batch batch =
          buffers_->View(0, batch_, work.updates_half ? std::nullopt : std::optional(work.op));
      if (!work.updates_half && work.op == Op::kFind) batch.values = {};
      if (work.op != Op::kFind) batch.found = {};
      const double took = Timed(batch);
      Require(batch_, work.there ? Result::kOk : Result::kNotFound);
      if (repeat > 0) seconds.push_back(took);  // memory is allocated
      if (repeat == 0) before_ = AllExchanged();
    }
    return Median(seconds);
  }
  /// What was exchanged since the first batch of the last Measure.
  ExchangeStats Exchanged() const {
    ExchangeStats now = AllExchanged();
    now.split_seconds -= before_.split_seconds;
    now.send_seconds -= before_.send_seconds;
    now.local_seconds -= before_.local_seconds;
    now.return_seconds -= before_.return_seconds;
    now.asked -= before_.asked;
    now.sent -= before_.sent;
    now.carried_out -= before_.carried_out;
    return now;
  }

 private:
  void Put(std::uint64_t row, std::uint64_t record) {
    ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers_->key(row));
    ycsb::WriteValue(record, 0, buffers_->value(row));
  }
  double Timed(const Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    if (alone_) {
      alone_.Apply(batch);
    } else {
      store_.Apply(batch);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (alone_) {
      of_alone_.local_seconds += seconds;
      of_alone_.asked += batch.results.size();
      of_alone_.sent = of_alone_.carried_out = of_alone_.asked;
    }
    return seconds;
  }
  ExchangeStats AllExchanged() const { return alone_ ? of_alone_ : store_.Exchanged(); }
  void Require(std::uint64_t rows, Result expected) {
    buffers_->Download(rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
      if (buffers_->results()[i] == expected) continue;
      throw Error(ErrorCode::kDamaged,
                  fmt::format("operation {}: {} instead of {}", i,
                              ResultName(buffers_->results()[i]), ResultName(expected)));
    }
  }

  const ScaleArguments& arguments_;
  const std::uint64_t records_;
  const std::uint64_t batch_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const ycsb::RecordZipfian zipf_;
  ycsb::Random random_{arguments_.seed, rank_};
  std::unique_ptr<ycsb::BatchBuffers> buffers_;
  ExchangeStats before_;
  ExchangeStats of_alone_;
  DistributedStore store_;
  Store alone_;
};

/// Calls work(rank) on a thread for each. @throws what one threw, when all have ended
void OnAll(std::uint32_t ranks, const std::function<void(std::uint32_t)>& work) {
  std::vector<std::exception_ptr> errors(ranks);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

json Row(const char* name, std::uint32_t ranks, double operations, double seconds) {
  return {{"work", name},
          {"ranks", ranks},
          {"mops", operations / seconds / 1e6},
          {"batch_ms", 1e3 * seconds}};
}

std::vector<std::unique_ptr<Exchange>> MakeExchanges(const ScaleArguments& arguments,
                                                     std::uint32_t ranks) {
  std::vector<std::unique_ptr<Exchange>> exchanges = MakeThreadExchanges(ranks);
#ifdef GPM_HAVE_NCCL
  if (arguments.exchange == "nccl") {
    OnAll(ranks, [&](std::uint32_t i) {
      exchanges[i] = MakeNcclExchange(std::move(exchanges[i]), Rank::DeviceOf(arguments, i));
    });
  }
#else
  static_cast<void>(arguments);
#endif
  return exchanges;
}

/// A store of so many ranks, each a thread, that is there for this alone.
/// @param of how many ranks; 0: a Store
void MeasureRanks(const ScaleArguments& arguments, std::uint32_t of, json* report) {
  ShowProgress(fmt::format("{} ranks", of));
  const std::uint32_t ranks = std::max(of, 1u);
  std::vector<std::unique_ptr<Rank>> all(ranks);
  std::vector<std::unique_ptr<Exchange>> exchanges(ranks);
  if (of > 0) exchanges = MakeExchanges(arguments, of);
  std::vector<double> seconds(ranks);
  const auto slowest = [&] { return *std::max_element(seconds.begin(), seconds.end()); };
  OnAll(ranks, [&](std::uint32_t i) {
    all[i] = std::make_unique<Rank>(arguments, i, ranks, std::move(exchanges[i]));
    seconds[i] = all[i]->Load();
  });
  json& rows = (*report)["rows"];
  const double operations = static_cast<double>(all.front()->batch() * ranks);
  const double batches_of_load = static_cast<double>(all.front()->records()) / operations;
  rows.push_back(Row("load", of, operations, slowest() / batches_of_load));
  for (const Work& work : kWorks) {
    OnAll(ranks, [&](std::uint32_t i) { seconds[i] = all[i]->Measure(work); });
    json row = Row(work.name, of, operations, slowest());
    ExchangeStats sum;
    std::uint64_t busiest = 0;
    for (const auto& rank : all) {
      const ExchangeStats one = rank->Exchanged();
      sum.split_seconds += one.split_seconds;
      sum.send_seconds += one.send_seconds;
      sum.local_seconds += one.local_seconds;
      sum.return_seconds += one.return_seconds;
      sum.asked += one.asked;
      sum.sent += one.sent;
      sum.carried_out += one.carried_out;
      busiest = std::max(busiest, one.carried_out);
    }
    const double batches = arguments.batches * static_cast<double>(ranks) / 1e3;
    row.update(
        {{"split_ms", sum.split_seconds / batches},
         {"send_ms", sum.send_seconds / batches},
         {"local_ms", sum.local_seconds / batches},
         {"return_ms", sum.return_seconds / batches},
         {"sent", static_cast<double>(sum.sent) / static_cast<double>(sum.asked)},
         {"busiest", static_cast<double>(busiest) * ranks / static_cast<double>(sum.carried_out)}});
    rows.push_back(std::move(row));
  }
  if (!report->contains("store")) (*report)["store"] = StoreFacts(all.front()->Stats());
  OnAll(ranks, [&](std::uint32_t i) { all[i].reset(); });
}

void Print(const json& report) {
  fmt::print("{}: {} records and batches of {} {}, in {} memory; exchange: {}\n",
             report.at("strong").get<bool>() ? "strong scaling" : "weak scaling",
             report.at("records").get<std::uint64_t>(), report.at("batch").get<std::uint64_t>(),
             report.at("strong").get<bool>() ? "in all" : "a rank",
             report.at("memory").get<std::string>(), report.at("exchange").get<std::string>());
  fmt::print(
      "(0 ranks: a Store alone. Times in ms: of a batch, and of its phases on average.)\n\n");
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
}

void Run(ScaleArguments& arguments) {
  if (arguments.folder.empty()) arguments.folder = TemporaryPoolPath();
  if (std::filesystem::exists(arguments.folder)) {
    throw Error(ErrorCode::kExists,
                arguments.folder + ": exists already; --folder names a new one");
  }
  const bool on_gpu = arguments.executor != ExecutorKind::kCpu && GpuCount() > 0;
  if (arguments.memory == "auto") arguments.memory = on_gpu ? "device" : "host";
  if (on_gpu && arguments.devices.empty()) {
    for (int i = 0; i < GpuCount(); ++i) arguments.devices.push_back(i);
  }
  json report = {{"benchmark", "scale"},         {"machine", MachineFacts()},
                 {"records", arguments.records}, {"batch", arguments.batch},
                 {"strong", arguments.strong},   {"devices", arguments.devices},
                 {"memory", arguments.memory},   {"exchange", arguments.exchange},
                 {"seed", arguments.seed},       {"rows", json::array()}};
  const auto remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(arguments.folder, ignored);
  };
  for (const std::uint32_t ranks : arguments.ranks) {
    try {
      MeasureRanks(arguments, ranks, &report);
    } catch (...) {
      remove();
      throw;
    }
    remove();
  }
  ShowProgress("");
  if (!arguments.json.empty()) WriteJson(report, arguments.json);
  if (arguments.json != "-") Print(report);
}

}  // namespace

void AddScaleCommand(CLI::App& program) {
  auto arguments = std::make_shared<ScaleArguments>();
  CLI::App* command = program.add_subcommand(
      "scale",
      "A store over several ranks, each a thread with a shard: throughput, and where it "
      "goes");
  command
      ->add_option("--ranks", arguments->ranks,
                   "Numbers of ranks, one after the other; 0 is a store of one pool, without any")
      ->delimiter(',')
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  command
      ->add_option("--devices", arguments->devices,
                   "CUDA devices that the ranks use in turn; default: all")
      ->delimiter(',')
      ->check(CLI::Range(0, 1023));
  command->add_option("--records", arguments->records, "Items of each rank")
      ->check(CLI::Range(std::uint64_t{1000}, std::uint64_t{1} << 36))
      ->capture_default_str();
  command->add_option("--batch", arguments->batch, "Operations of each rank's parts")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--strong", arguments->strong,
                    "The same records and batches are divided by the ranks");
  command->add_option("--batches", arguments->batches, "Batches, of which the median counts")
      ->check(CLI::Range(1u, 10000u))
      ->capture_default_str();
  command->add_option("--value-size", arguments->value_size, "Bytes of a value")
      ->check(CLI::Range(1u, kMaxValueBytes))
      ->capture_default_str();
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
  command->add_option("--seed", arguments->seed, "Of the keys")->capture_default_str();
  AddExecutorOptions(*command, &arguments->executor, &arguments->threads);
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { Run(*arguments); });
}

}  // namespace gpm::bench
