#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "bench/peer.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kValueBytes = 128;
constexpr unsigned kShards = 64;
using Value = std::array<std::byte, kValueBytes>;

/// The least that a peer should be faster than: std::unordered_map in shards, each under a lock.
class UnorderedMapAdapter : public KvAdapter {
 public:
  explicit UnorderedMapAdapter(const PeerSpec& spec) : threads_(spec.threads) {
    for (Shard& shard : shards_) shard.map.reserve(spec.items / kShards + spec.items / kShards / 8);
  }

  void Apply(const Batch& batch) override {
    const std::uint64_t n = batch.results.size();
    const std::uint64_t parts = threads_.threads();
    threads_.Run(parts, [&](std::uint64_t part) {
      const std::uint64_t last = n * (part + 1) / parts;
      for (std::uint64_t i = n * part / parts; i < last; ++i) ApplyOne(batch, i);
    });
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Value> map;
  };

  void ApplyOne(const Batch& batch, std::uint64_t i) {
    const Op op = batch.ops.empty() ? batch.op : batch.ops[i];
    const std::uint64_t key = reinterpret_cast<const std::uint64_t*>(batch.keys.data())[i];
    const auto* values = reinterpret_cast<const Value*>(batch.values.data());
    Shard& shard = shards_[(key * 0x9E3779B97F4A7C15ull) >> 58];
    const std::lock_guard lock(shard.mutex);
    const auto item =
        op == Op::kInsert || op == Op::kUpsert ? shard.map.end() : shard.map.find(key);
    Result result = item == shard.map.end() ? Result::kNotFound : Result::kOk;
    switch (op) {
      case Op::kFind:
        if (result == Result::kOk) reinterpret_cast<Value*>(batch.found.data())[i] = item->second;
        break;
      case Op::kInsert:
        result = shard.map.emplace(key, values[i]).second ? Result::kOk : Result::kExists;
        break;
      case Op::kUpdate:
        if (result == Result::kOk) item->second = values[i];
        break;
      case Op::kUpsert:
        shard.map[key] = values[i];
        result = Result::kOk;
        break;
      case Op::kErase:
        if (result == Result::kOk) shard.map.erase(item);
        break;
      case Op::kFindOrInsert:
      case Op::kAccumulate:  // not measured
        result = Result::kInvalid;
        break;
    }
    batch.results[i] = result;
  }

  ThreadPool threads_;
  std::array<Shard, kShards> shards_;
};

const RegisteredPeer registered({.name = "unordered_map",
                                 .can = {.kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert,
                                                   Op::kErase},
                                         .value_unit = kValueBytes,
                                         .max_value_bytes = kValueBytes,
                                         .grows = true},
                                 .make = MakePeer<UnorderedMapAdapter>});

}  // namespace
}  // namespace gpm::bench
