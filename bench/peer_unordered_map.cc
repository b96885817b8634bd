#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "bench/peer.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kValueBytes = 128;
constexpr unsigned kShards = 64;
using Value = std::array<std::byte, kValueBytes>;

/// The least that a peer should be faster than: std::unordered_map in shards, each under a lock.
class UnorderedMapAdapter : public KvAdapter {
 public:
  UnorderedMapAdapter(std::uint64_t capacity, unsigned threads) : threads_(threads) {
    for (Shard& shard : shards_) shard.map.reserve(capacity / kShards + capacity / kShards / 8);
  }

  std::vector<double> Run(const Arrays& arrays) override {
    return {SecondsInThreads(threads_, arrays.results.size(),
                             [&](std::uint64_t first, std::uint64_t last) {
                               for (std::uint64_t i = first; i < last; ++i) RunOne(arrays, i);
                             })};
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Value> map;
  };

  void RunOne(const Arrays& arrays, std::uint64_t i) {
    const std::uint64_t key = reinterpret_cast<const std::uint64_t*>(arrays.keys.data())[i];
    const auto* values = reinterpret_cast<const Value*>(arrays.values.data());
    Shard& shard = shards_[(key * 0x9E3779B97F4A7C15ull) >> 58];
    const std::lock_guard lock(shard.mutex);
    const auto item = arrays.op == Op::kInsert || arrays.op == Op::kUpsert ? shard.map.end()
                                                                           : shard.map.find(key);
    Result result = item == shard.map.end() ? Result::kNotFound : Result::kOk;
    switch (arrays.op) {
      case Op::kFind:
        if (result == Result::kOk) reinterpret_cast<Value*>(arrays.found.data())[i] = item->second;
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
    arrays.results[i] = result;
  }

  unsigned threads_;
  std::array<Shard, kShards> shards_;
};

const RegisteredPeer registered({.name = "unordered_map",
                                 .value_bytes = kValueBytes,
                                 .make = [](std::uint64_t capacity, unsigned threads) {
                                   return std::unique_ptr<KvAdapter>(
                                       std::make_unique<UnorderedMapAdapter>(capacity, threads));
                                 }});

}  // namespace
}  // namespace gpm::bench
