#include <algorithm>
#include <array>
#include <libcuckoo/cuckoohash_map.hh>

#include "bench/peer.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kValueBytes = 128;
using Value = std::array<std::byte, kValueBytes>;

/// libcuckoo::cuckoohash_map from 8-byte keys to 128-byte values with its default hash: `threads`
/// threads, each over its own part of the arrays. Space for `capacity` items, which the map rounds
/// up to a power of two, is taken beforehand, so that it never grows.
class LibcuckooAdapter : public KvAdapter {
 public:
  LibcuckooAdapter(std::uint64_t capacity, unsigned threads) : threads_(threads), map_(capacity) {}

  std::vector<double> Run(const Arrays& arrays) override {
    return {SecondsInThreads(
        threads_, arrays.results.size(),
        [&](std::uint64_t first, std::uint64_t last) { RunPart(arrays, first, last); })};
  }

 private:
  void RunPart(const Arrays& arrays, std::uint64_t first, std::uint64_t last) {
    const auto* keys = reinterpret_cast<const std::uint64_t*>(arrays.keys.data());
    const auto* values = reinterpret_cast<const Value*>(arrays.values.data());
    auto* found = reinterpret_cast<Value*>(arrays.found.data());
    // One loop for each kind, so that what is measured is the map and not the dispatch.
    switch (arrays.op) {
      case Op::kFind:
        for (std::uint64_t i = first; i < last; ++i) {
          arrays.results[i] = map_.find(keys[i], found[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kInsert:
        for (std::uint64_t i = first; i < last; ++i) {
          arrays.results[i] = map_.insert(keys[i], values[i]) ? Result::kOk : Result::kExists;
        }
        return;
      case Op::kUpdate:
        for (std::uint64_t i = first; i < last; ++i) {
          arrays.results[i] = map_.update(keys[i], values[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kUpsert:
        for (std::uint64_t i = first; i < last; ++i) {
          map_.insert_or_assign(keys[i], values[i]);
          arrays.results[i] = Result::kOk;
        }
        return;
      case Op::kErase:
        for (std::uint64_t i = first; i < last; ++i) {
          arrays.results[i] = map_.erase(keys[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kFindOrInsert:
      case Op::kAccumulate:  // not measured
        std::fill(&arrays.results[first], &arrays.results[first] + (last - first),
                  Result::kInvalid);
        return;
    }
  }

  unsigned threads_;
  libcuckoo::cuckoohash_map<std::uint64_t, Value> map_;
};

const RegisteredPeer registered({.name = "libcuckoo",
                                 .value_bytes = kValueBytes,
                                 .make = [](std::uint64_t capacity, unsigned threads) {
                                   return std::unique_ptr<KvAdapter>(
                                       std::make_unique<LibcuckooAdapter>(capacity, threads));
                                 }});

}  // namespace
}  // namespace gpm::bench
