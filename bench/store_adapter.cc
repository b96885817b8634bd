#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "bench/kv_adapter.h"
#include "bench/removed_at_end.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "support/signals.h"

namespace gpm::bench {
namespace {

/// A store whose file is unlinked as soon as it is mapped: an interrupted run leaves nothing.
Store CreateUnlinked(std::string path, const CreateOptions& create, const OpenOptions& open) {
  if (path.empty()) path = TemporaryPoolPath();
  RequireNoDevice(path);
  const RemovedOnSignal name(path);
  Store store = Store::Create(path, create, open);
  if (store.Stats().medium.medium != Medium::kHostPinned) std::filesystem::remove(path);
  return store;
}

}  // namespace

std::string TemporaryPoolPath() {
  namespace fs = std::filesystem;
  const fs::path memory = "/dev/shm";
  const fs::path folder = fs::is_directory(memory) ? memory : fs::temp_directory_path();
  return folder / ("gpmstore_bench." + std::to_string(getpid()) + ".pool");
}

std::vector<double> SecondsOfBatches(KvAdapter& adapter, const Batch& all, std::uint64_t batch) {
  using Clock = std::chrono::steady_clock;
  const std::uint64_t n = all.results.size();
  if (n == 0) return {};
  std::vector<double> seconds;
  seconds.reserve(n / batch + 1);
  const std::uint64_t key_bytes = all.keys.size() / n;
  const std::uint64_t value_bytes = std::max(all.values.size(), all.found.size()) / n;
  for (std::uint64_t first = 0; first < n; first += batch) {
    const Batch part = PartOf(all, first, std::min(batch, n - first), key_bytes, value_bytes);
    const auto begin = Clock::now();
    adapter.Apply(part);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

Batch PartOf(const Batch& all, std::uint64_t first, std::uint64_t rows, std::uint64_t key_bytes,
             std::uint64_t value_bytes) {
  Batch part = all;
  if (!all.ops.empty()) part.ops = all.ops.subspan(first, rows);
  part.keys = all.keys.subspan(first * key_bytes, rows * key_bytes);
  part.results = all.results.subspan(first, rows);
  if (!all.values.empty()) {
    part.values = all.values.subspan(first * value_bytes, rows * value_bytes);
  }
  if (!all.found.empty()) part.found = all.found.subspan(first * value_bytes, rows * value_bytes);
  return part;
}

void KvAdapter::Search(const QueryArray&, Matches*) {
  throw Error(ErrorCode::kUnsupported, "there is no search by attributes");
}

CountedMemory StoreAdapter::Persistent() {
  if (Stats().executor != ExecutorKind::kCuda) return {};
  return {.all = store_.impl()->memory()};
}

void StoreAdapter::Search(const QueryArray& queries, Matches* matches) {
  store_.Search(queries, ~std::uint64_t{0}, matches);
  if (matches->answered == queries.count()) return;
  throw Error(ErrorCode::kNoSpace,
              std::to_string(matches->rows) + " items match, and there is no room for their keys");
}

StoreAdapter::StoreAdapter(const std::string& path, const CreateOptions& create,
                           const OpenOptions& open)
    : store_(CreateUnlinked(path, create, open)) {}

Capabilities StoreAdapter::CapabilitiesOf(ycsb::Memory memory) {
  return {.memory = memory,
          .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase},
          .key_bytes = 0,
          .mixed_erases = true,
          .sequential = true,
          .caches = true,
          .grows = true,
          .durable = true,
          .searches = Searches::kValues};
}

}  // namespace gpm::bench
