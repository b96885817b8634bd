#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "bench/kv_adapter.h"
#include "bench/removed_at_end.h"
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

StoreAdapter::StoreAdapter(const std::string& path, const CreateOptions& create,
                           const OpenOptions& open, std::uint64_t batch)
    : store_(CreateUnlinked(path, create, open)), batch_(batch) {}

std::vector<double> StoreAdapter::Run(const Arrays& arrays) {
  using Clock = std::chrono::steady_clock;
  const std::uint64_t n = arrays.results.size();
  const std::uint64_t value_size = store_.value_size();
  std::vector<double> seconds;
  seconds.reserve(n / batch_ + 1);
  for (std::uint64_t first = 0; first < n; first += batch_) {
    const std::uint64_t count = std::min(batch_, n - first);
    Batch batch;
    batch.op = arrays.op;
    batch.keys = arrays.keys.subspan(first * store_.key_size(), count * store_.key_size());
    batch.results = arrays.results.subspan(first, count);
    if (!arrays.values.empty()) {
      batch.values = arrays.values.subspan(first * value_size, count * value_size);
    }
    if (!arrays.found.empty()) {
      batch.found = arrays.found.subspan(first * value_size, count * value_size);
    }
    const auto begin = Clock::now();
    store_.Apply(batch);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace gpm::bench
