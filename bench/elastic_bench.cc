#include "bench/elastic_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "bench/blocks.h"
#include "bench/contest.h"
#include "bench/peer.h"
#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "ycsb/device_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// Operations of the batches beside a compaction, and batches by which their rate is taken before.
constexpr std::uint64_t kBesideBatch = 4096;
constexpr double kAloneBatches = 200;

/// The workload, on one container.
class ElasticRun {
 public:
  ElasticRun(const ElasticOptions& options, KvAdapter& target, const Capabilities& can)
      : options_(options),
        target_(target),
        insertion_(can.Has(Op::kInsert) ? Op::kInsert : Op::kUpsert),
        random_(options.seed),
        threads_(ThreadsOf(options.threads)) {
    const ycsb::BatchBuffers::Shape shape{.rows = options.batch,
                                          .key_size = options.key_size,
                                          .value_size = options.value_size,
                                          .values = true,
                                          .found = true};
    buffers_ = options.gpu_arrays ? std::make_unique<ycsb::DeviceBatchBuffers>(shape)
                                  : std::make_unique<ycsb::BatchBuffers>(shape);
  }

  const std::vector<std::uint64_t>& items() const { return items_; }
  bool full() const { return full_; }          ///< whether an insert found no slot
  double slowest() const { return slowest_; }  ///< seconds, of the last step's calls

  /// Counts and throughputs. @param number of the step, from 0
  json Step(unsigned number) {
    const bool grows = number < options_.steps / 2;
    const auto fewer =
        static_cast<std::uint64_t>(options_.erases * static_cast<double>(options_.batch));
    slowest_ = 0;
    json row = {{"step", number + 1}};
    const std::uint64_t inserts = grows ? options_.batch : fewer;
    const std::uint64_t erases = grows ? fewer : options_.batch;
    row["insert_count"] = inserts;
    row["insert_mops"] = Insert(inserts);
    row["find_count"] = options_.batch;
    row["find_mops"] = Find(options_.batch);
    row["erase_count"] = std::min<std::uint64_t>(erases, items_.size());
    row["erase_mops"] = Erase(row["erase_count"]);
    return row;
  }

  /// Compacts the store beside batches of finds. @return seconds @param row gets their rates,
  /// alone and beside it
  double Compact(Store& store, json* row) {
    const std::uint64_t count =
        std::min<std::uint64_t>({kBesideBatch, options_.batch, items_.size()});
    PutKeys(Draw(count));
    const auto run = [&](const auto& more) {
      const Clock::time_point start = Clock::now();
      double batches = 0;
      for (; more(batches); ++batches) Apply(Op::kFind, count);
      return batches * static_cast<double>(count) / SecondsSince(start) / 1e6;
    };
    (*row)["alone_find_mops"] = run([](double batches) { return batches < kAloneBatches; });
    const double slowest = std::exchange(slowest_, 0);
    const Clock::time_point start = Clock::now();
    auto compacting = std::async(std::launch::async, [&] { store.Compact(); });
    (*row)["beside_find_mops"] = run([&](double) {
      return compacting.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    });
    compacting.get();
    (*row)["beside_slowest_ms"] = 1e3 * slowest_;
    slowest_ = std::max(slowest_, slowest);
    return SecondsSince(start);
  }

  /// Finds every item.
  void FindAll() {
    for (std::uint64_t first = 0; first < items_.size(); first += options_.batch) {
      const std::uint64_t count = std::min<std::uint64_t>(options_.batch, items_.size() - first);
      FindRecords(std::span(items_).subspan(first, count));
    }
  }

 private:
  /// Those that find no slot are not there.
  double Insert(std::uint64_t count) {
    ForBlocks(threads_, count, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t i = first; i < end; ++i) {
        PutKey(i, next_ + i);
        ycsb::WriteValue(next_ + i, 0, buffers_->value(i));
      }
    });
    const double mops = Apply(insertion_, count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (buffers_->results()[i] == Result::kOk) items_.push_back(next_ + i);
    }
    next_ += count;
    return mops;
  }

  /// Of any items.
  double Find(std::uint64_t count) { return FindRecords(Draw(items_.empty() ? 0 : count)); }

  std::vector<std::uint64_t> Draw(std::uint64_t count) {
    std::vector<std::uint64_t> records(count);
    for (std::uint64_t& record : records) record = items_[random_() % items_.size()];
    return records;
  }

  double FindRecords(std::span<const std::uint64_t> records) {
    PutKeys(records);
    const double mops = Apply(Op::kFind, records.size());
    ForBlocks(threads_, records.size(), [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t i = first; i < end; ++i) {
        if (ycsb::CheckValue(records[i], 0, buffers_->found(i))) continue;
        throw Error(ErrorCode::kDamaged, fmt::format("record {} has a wrong value", records[i]));
      }
    });
    return mops;
  }

  /// Of any items.
  double Erase(std::uint64_t count) {
    std::vector<std::uint64_t> records(count);
    for (std::uint64_t& record : records) {
      std::swap(items_[random_() % items_.size()], items_.back());
      record = items_.back();
      items_.pop_back();
    }
    PutKeys(records);
    return Apply(Op::kErase, count);
  }

  void PutKeys(std::span<const std::uint64_t> records) {
    ForBlocks(threads_, records.size(), [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t i = first; i < end; ++i) PutKey(i, records[i]);
    });
  }

  void PutKey(std::uint64_t row, std::uint64_t record) {
    ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers_->key(row));
  }

  /// @return million operations/s
  double Apply(Op op, std::uint64_t count) {
    if (count == 0) return 0;
    buffers_->Upload(count);
    const Clock::time_point start = Clock::now();
    target_.Apply(buffers_->View(0, count, op));
    const double seconds = SecondsSince(start);
    slowest_ = std::max(slowest_, seconds);
    buffers_->Download(count);
    const std::span<const Result> results = buffers_->results().first(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (results[i] == Result::kOk) continue;
      const bool no_space = op == insertion_ && results[i] == Result::kNoSpace;
      full_ = full_ || no_space;
      if (no_space && options_.end == ElasticEnd::kFull) continue;
      throw Error(no_space ? ErrorCode::kNoSpace : ErrorCode::kDamaged,
                  fmt::format("operation {} of {} {} was {}", i, count, OpName(op),
                              ResultName(results[i])));
    }
    return static_cast<double>(count) / seconds / 1e6;
  }

  const ElasticOptions& options_;
  KvAdapter& target_;
  const Op insertion_;
  std::mt19937_64 random_;
  ThreadPool threads_;
  std::unique_ptr<ycsb::BatchBuffers> buffers_;
  std::vector<std::uint64_t> items_;  ///< records that there are
  std::uint64_t next_ = 0;            ///< record to be inserted
  double slowest_ = 0;                ///< seconds, of the step's calls
  bool full_ = false;
};

/// A store that is opened elsewhere.
class OpenStore : public KvAdapter {
 public:
  explicit OpenStore(Store& store) : store_(store) {}
  void Apply(const Batch& batch) override { store_.Apply(batch); }

 private:
  Store& store_;
};

/// A step of a store, compacted where that is asked for, and what it is like then.
json StoreStep(const ElasticOptions& options, unsigned number, Store& store, ElasticRun& run) {
  json row = run.Step(number);
  double compact = 0;
  if (store.Stats().load_factor < options.compact_below) compact = run.Compact(store, &row);
  const StoreStats stats = store.Stats();
  if (stats.items != run.items().size()) {
    throw Error(ErrorCode::kDamaged, fmt::format("the store counts {} items, there are {}",
                                                 stats.items, run.items().size()));
  }
  row["slowest_ms"] = 1e3 * run.slowest();
  row["compact_ms"] = 1e3 * compact;
  row["items"] = stats.items;
  row["load_factor"] = stats.load_factor;
  row["resizes"] = stats.resizes;
  row["composed_resizes"] = stats.composed_resizes;
  row["resize_ms"] = 1e3 * stats.resize_seconds;
  row["growth_ms"] = 1e3 * stats.growth_seconds;
  row["composing_ms"] = 1e3 * stats.composing_seconds;
  row["directory_ms"] = 1e3 * stats.directory_seconds;
  row["pm_bytes"] = stats.pm_bytes;
  // What those are made of, with the cells in use and the superblocks.
  row["pm_bytes_ready"] = stats.pm_bytes_ready;
  row["pm_bytes_free"] = stats.pm_bytes_free;
  row["value_cells"] = stats.value_cells;
  row["free_cells"] = stats.free_cells;
  row["level_buckets"] = stats.level_buckets;
  row["gpu_bytes"] = stats.gpu_bytes;
  row["displaced_items"] = stats.displaced_items;
  row["displacing_ms"] = 1e3 * stats.displacing_seconds;
  row["pool_growths"] = stats.pool_growths;
  row["pool_growth_waits"] = stats.pool_growth_waits;
  row["pool_growth_wait_ms"] = 1e3 * stats.pool_growth_wait_seconds;
  return row;
}

/// What a run was as a whole. @param growing steps, the first ones
json Summary(const json& steps, unsigned growing) {
  double lowest = 1, most_bytes_of_item = 0, slowest = 0, seconds = 0, operations = 0;
  for (const json& step : steps) {
    const double items = step.at("items");
    if (step.at("resizes") > 0 && step.at("step") <= growing) {
      lowest = std::min<double>(lowest, step.at("load_factor"));
      most_bytes_of_item = std::max(most_bytes_of_item, step.at("pm_bytes").get<double>() / items);
    }
    slowest = std::max<double>(slowest, step.at("slowest_ms"));
    for (const char* kind : {"insert", "find", "erase"}) {
      const double count = step.at(fmt::format("{}_count", kind));
      if (count == 0) continue;
      operations += count;
      seconds += count / 1e6 / step.at(fmt::format("{}_mops", kind)).get<double>();
    }
    seconds += step.at("compact_ms").get<double>() / 1e3;
  }
  return {{"lowest_load_factor_while_growing", lowest},
          {"most_bytes_of_item", most_bytes_of_item},
          {"slowest_ms", slowest},
          {"mops", operations / seconds / 1e6},
          {"last_pm_bytes", steps.back().at("pm_bytes")},
          {"resizes", steps.back().at("resizes")}};
}

CreateOptions Shape(const ElasticOptions& options) {
  CreateOptions create;
  create.key_size = options.key_size;
  create.value_size = options.value_size;
  create.geometry = options.geometry;
  create.initial_capacity = options.initial_capacity;
  return create;
}

/// Seconds to load records into a pool of their own.
double Rebuild(const ElasticOptions& options, const OpenOptions& open,
               const std::vector<std::uint64_t>& records) {
  ycsb::BatchBuffers buffers({.rows = records.size(),
                              .key_size = options.key_size,
                              .value_size = options.value_size,
                              .values = true,
                              .found = false});
  for (std::size_t i = 0; i < records.size(); ++i) {
    ycsb::WriteKey(ycsb::KeyWord(records[i], ycsb::KeyOrder::kHashed), buffers.key(i));
    ycsb::WriteValue(records[i], 0, buffers.value(i));
  }
  RemovedAtEnd pool(options.pool + ".rebuilt");
  const Clock::time_point start = Clock::now();
  Store store = Store::Create(pool.path(), Shape(options), open);
  pool.Made();
  if (store.BulkLoad(buffers.keys(), buffers.values(), buffers.results()) != 0) {
    throw Error(ErrorCode::kDamaged, "a new pool did not take all items");
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  store.Close();
  return seconds;
}

json MeasurePeer(ElasticOptions options) {
  options.executor = ResolveExecutor(options.executor);
  const Peer& peer = FindPeer(options.peer, MemoryOf(options.executor));
  RequireItems(peer, options.key_size, options.value_size);
  if (!peer.can.Has(Op::kFind) || peer.can.builds_once ||
      (options.erases > 0 && !peer.can.Has(Op::kErase))) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--peer {}: it has not the operations", peer.name));
  }
  // A subtable that is halved makes the table up to 4/3 as full.
  if (const auto& bounds = options.peer_bounds;
      !bounds.empty() && 4 * bounds.at(0) >= 3 * bounds.at(1)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--peer-bounds: a table that has just shrunk would be above the upper one");
  }
  options.gpu_arrays = peer.can.memory == ycsb::Memory::kDevice;
  const bool shrinks = options.end == ElasticEnd::kShrunk;
  const unsigned growing = options.steps / 2;
  const auto added = static_cast<std::uint64_t>((1 - options.erases) * growing *
                                                static_cast<double>(options.batch));
  const std::unique_ptr<KvAdapter> adapter =
      peer.make({.items = std::max(options.initial_capacity, options.batch),
                 .max_batch = options.batch,
                 .key_bytes = options.key_size,
                 .value_bytes = options.value_size,
                 .fill = options.peer_fill,
                 .shrink_below = options.peer_bounds.empty() ? 0 : options.peer_bounds[0],
                 .grow_above = options.peer_bounds.empty() ? 0 : options.peer_bounds[1],
                 .threads = ThreadsOf(options.threads),
                 .most_items = std::max(added + options.batch, options.initial_capacity)});
  if (adapter->SlotCount() == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--peer {}: it does not say how many slots it has", peer.name));
  }
  ElasticRun run(options, *adapter, peer.can);
  json steps = json::array();
  for (unsigned step = 0; step < (shrinks ? options.steps : growing); ++step) {
    ShowProgress(fmt::format("{}, step {}", peer.name, step + 1));
    json row = run.Step(step);
    if (run.full()) break;
    const std::uint64_t slots = adapter->SlotCount();
    row["slowest_ms"] = 1e3 * run.slowest();
    row["items"] = run.items().size();
    row["slots"] = slots;
    row["load_factor"] = static_cast<double>(run.items().size()) / static_cast<double>(slots);
    steps.push_back(std::move(row));
  }
  run.FindAll();
  ShowProgress("");
  return {{"steps", std::move(steps)}};
}

}  // namespace

json MeasureElastic(const ElasticOptions& options) {
  if (!options.peer.empty()) return MeasurePeer(options);
  json report = {{"steps", json::array()}, {"runs", json::array()}};
  for (const double growth : options.growths) {
    OpenOptions open;
    open.executor = options.executor;
    open.threads = options.threads;
    open.growth = growth;
    open.growth_pause = options.growth_pause;
    open.grow_above = options.grow_above;
    RemovedAtEnd pool(options.pool);
    Store store = Store::Create(options.pool, Shape(options), open);
    pool.Made();
    OpenStore target(store);
    ElasticRun run(options, target, StoreAdapter::CapabilitiesOf({}));
    json steps = json::array();
    const bool shrinks = options.end == ElasticEnd::kShrunk;
    const unsigned last = shrinks ? options.steps : options.steps / 2;
    for (unsigned step = 0; step < last; ++step) {
      ShowProgress(fmt::format("growth {}, step {} of {}", growth, step + 1, last));
      steps.push_back(StoreStep(options, step, store, run));
      steps.back()["growth"] = growth;
      if (step + 1 == options.steps / 2 && shrinks && !report.contains("rebuild")) {
        const double seconds = Rebuild(options, open, run.items());
        report["rebuild"] = {{"items", run.items().size()},
                             {"seconds", seconds},
                             {"mops", static_cast<double>(run.items().size()) / seconds / 1e6}};
      }
      if (options.end == ElasticEnd::kResized && steps.back().at("resizes") > 0) break;
    }
    report["runs"].push_back(Summary(steps, options.steps / 2));
    report["runs"].back()["growth"] = growth;
    report["store"] = StoreFacts(store.Stats());
    for (json& step : steps) report["steps"].push_back(std::move(step));
    store.Close();
  }
  ShowProgress("");
  return report;
}

}  // namespace gpm::bench
