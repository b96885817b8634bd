#include "crash_sim/crash_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <random>
#include <span>

#include "crash_sim/crash_workload.h"
#include "gpmstore/error.h"
#include "recovery/check.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kOneInReopens = 8;
constexpr std::uint64_t kOneInGrows = 16;
/// Batches of new keys after which a table this small must have been resized, or be at its limit.
constexpr int kBatchesToGrow = 256;

OpenOptions Options(std::uint64_t max_bytes, const Shape& shape) {
  OpenOptions options;
  options.executor = ExecutorKind::kCpu;
  options.threads = 1;
  options.max_bytes = max_bytes;
  options.cache.directory = shape.directory;
  options.growth = shape.growth;
  options.growth_pause = shape.growth_pause;
  options.grow_above = shape.grow_above;
  return options;
}

/// @return what a session of a shape may take, but all that an earlier one took
std::uint64_t LaterMost(const std::string& path, const Shape& shape) {
  return std::max<std::uint64_t>(shape.max_bytes_later, std::filesystem::file_size(path));
}

/// Opens the pool. A resize that needs more room than the pool may take is gone on with when it may
/// take more, as the error says.
Store Open(const std::string& path, std::uint64_t max_bytes, const Shape& shape) {
  try {
    return Store::Open(path, Options(max_bytes, shape));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace) throw;
    return Store::Open(path, Options(kMaxPoolBytes, shape));
  }
}

Contents ContentsOf(Store& store) {
  Contents contents;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    const auto text = [](std::span<const std::byte> bytes) {
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    if (!contents.emplace(text(key), text(value)).second) throw Violation("a key is there twice");
  });
  return contents;
}

void CheckStats(const Store& store, std::size_t items) {
  const StoreStats stats = store.Stats();
  if (stats.items != items) {
    throw Violation(fmt::format("{} items, by Stats {}", items, stats.items));
  }
  if (stats.value_cells != 0 && stats.items + stats.free_cells != stats.value_cells) {
    throw Violation(fmt::format("{} items and {} free cells, but {} value cells", stats.items,
                                stats.free_cells, stats.value_cells));
  }
}

/// The offline check finds no defect, and this many items.
CheckReport CheckOffline(const std::string& path, std::optional<std::size_t> items) {
  CheckReport report = CheckPool(path);
  if (!report.defects.empty()) throw Violation("check: " + report.defects.front());
  if (items && report.items != *items) {
    throw Violation(fmt::format("{} items, by check {}", *items, report.items));
  }
  return report;
}

/// Goes on using a store that has `contents`.
class User {
 public:
  User(const std::string& path, const Shape& shape, Store& store, Contents& contents,
       std::uint64_t last_tag, std::uint64_t choice)
      : path_(path),
        shape_(shape),
        store_(store),
        contents_(contents),
        tag_(last_tag),
        random_(choice) {}

  void Use() {
    BatchData batch(shape_);
    batch.Fill(random_, 6, &tag_);
    for (int i = 0; i < 2; ++i) batch.Add(Op::kFind, random_() % shape_.keys, ++tag_);
    Apply(batch);
    if (random_() % kOneInGrows == 0) Grow();
    CheckStats(store_, contents_.size());
  }

 private:
  /// Inserts until the table is resized, or the pool is full.
  void Grow() {
    const std::uint64_t slots = store_.Stats().capacity_slots;
    std::uint64_t key = shape_.keys;
    for (int i = 0; store_.Stats().capacity_slots == slots && no_space_ == 0; ++i) {
      if (i == kBatchesToGrow) throw Violation("the table did not grow");
      BatchData batch(shape_);
      for (int n = 0; n < 8; ++n) batch.Add(Op::kInsert, key++, ++tag_);
      Apply(batch);
    }
  }

  void Apply(BatchData& batch) {
    Promise promise{.acknowledged = contents_, .in_flight = {}};
    bool given_up = false;
    try {
      store_.Apply(batch.View());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoSpace) throw;
      given_up = true;
    }
    no_space_ += batch.Apply(contents_, &promise.in_flight, given_up);
    if (!given_up) return;
    // A resize can't be finished with so little room. With more, opening goes on with it.
    store_.Close();
    store_ = Store::Open(path_, Options(kMaxPoolBytes, shape_));
    contents_ = ContentsOf(store_);
    promise.Check(contents_);
  }

  const std::string& path_;
  const Shape& shape_;
  Store& store_;
  Contents& contents_;
  std::uint64_t tag_;
  std::mt19937_64 random_;
  std::size_t no_space_ = 0;
};

}  // namespace

Recovered CheckCrashedPool(const std::string& path, const Shape& shape, const Promise& promise,
                           std::uint64_t last_tag, std::uint64_t choice) {
  Recovered recovered;
  std::optional<CheckReport> before;
  try {
    before = CheckOffline(path, std::nullopt);
  } catch (const Error& error) {
    if (!promise.being_created || error.code() != ErrorCode::kDamaged) throw;
    try {
      Store::Open(path, Options(LaterMost(path, shape), shape));
    } catch (const Error& refused) {
      if (refused.code() != ErrorCode::kDamaged) throw;
      recovered.refused = true;
      return recovered;
    }
    throw Violation("a pool that check refuses can be opened");
  }
  Contents contents;
  {
    Store store = Open(path, LaterMost(path, shape), shape);
    contents = ContentsOf(store);
    promise.Check(contents);
    if (before->items != contents.size()) {
      throw Violation(
          fmt::format("{} items, by check before recovery {}", contents.size(), before->items));
    }
    recovered.stats = store.Stats().recovery;
    recovered.contents = contents;
    CheckStats(store, contents.size());
    User(path, shape, store, contents, last_tag, choice).Use();
    store.Close();
  }
  const CheckReport after = CheckOffline(path, contents.size());
  if (!after.clean || after.insert_slots + after.duplicates != 0 || after.resizing) {
    throw Violation("check finds something to repair after an orderly close");
  }
  if (choice % kOneInReopens == 0) {
    Store store = Store::Open(path, Options(kMaxPoolBytes, shape));
    Promise{.acknowledged = contents, .in_flight = {}}.Check(ContentsOf(store));
    if (!store.Stats().recovery.was_clean) throw Violation("not clean after an orderly close");
  }
  return recovered;
}

}  // namespace gpm::crash
