#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <functional>
#include <libcuckoo/cuckoohash_map.hh>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>

#include "bench/peer.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kValueBytes = 128;
using Value = std::array<std::byte, kValueBytes>;
using ShortKey = std::uint64_t;
template <unsigned kWords>
using KeyOf = std::conditional_t<kWords == 1, ShortKey, std::array<std::byte, 8 * kWords>>;

/// The standard library's, which libcuckoo takes by default.
struct HashOf {
  std::size_t operator()(ShortKey key) const { return std::hash<ShortKey>{}(key); }
  template <std::size_t kBytes>
  std::size_t operator()(const std::array<std::byte, kBytes>& key) const {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(key.data()), key.size()});
  }
};

/// Memory of huge pages, as the store's pools have them, where there is so much.
template <class T>
struct HugePages {
  using value_type = T;
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}
  static std::align_val_t AlignmentOf(std::size_t bytes) {
    return std::align_val_t{bytes < kHugePageBytes ? alignof(T) : kHugePageBytes};
  }
  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, AlignmentOf(bytes));
    // (A hint.)
    if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    ::operator delete(memory, AlignmentOf(count * sizeof(T)));
  }
  friend bool operator==(const HugePages&, const HugePages&) { return true; }
};

/// libcuckoo::cuckoohash_map from such keys to 128-byte values: `threads`
/// threads, each over its own part of a batch. Space for the items and a tenth more (a cuckoo table
/// that is filled to the brim would grow), which the map rounds up to a power of two, is taken
/// beforehand. In DRAM, as it persists nothing. Left out is what no workload asks for.
/// @tparam Memory an allocator
template <unsigned kWords, template <class> class Memory>
class LibcuckooAdapter : public KvAdapter {
  using Key = KeyOf<kWords>;

 public:
  explicit LibcuckooAdapter(const PeerSpec& spec)
      : threads_(spec.threads), map_(spec.items + spec.items / 10) {}

  void Apply(const Batch& batch) override {
    const std::uint64_t n = batch.results.size();
    const std::uint64_t parts = threads_.threads();
    threads_.Run(parts, [&](std::uint64_t part) {
      ApplyPart(batch, n * part / parts, n * (part + 1) / parts);
    });
  }

  std::uint64_t SlotCount() const override { return map_.capacity(); }

 private:
  void ApplyPart(const Batch& batch, std::uint64_t first, std::uint64_t last) {
    const auto* keys = reinterpret_cast<const Key*>(batch.keys.data());
    const auto* values = reinterpret_cast<const Value*>(batch.values.data());
    auto* found = reinterpret_cast<Value*>(batch.found.data());
    const std::span<Result> results = batch.results;
    if (!batch.ops.empty()) {
      for (std::uint64_t i = first; i < last; ++i) {
        Batch one = batch;
        one.op = batch.ops[i];
        one.ops = {};
        ApplyPart(one, i, i + 1);
      }
      return;
    }
    // One loop for each kind, so that what is measured is the map and not the dispatch.
    switch (batch.op) {
      case Op::kFind:
        for (std::uint64_t i = first; i < last; ++i) {
          results[i] = map_.find(keys[i], found[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kInsert:
        for (std::uint64_t i = first; i < last; ++i) {
          results[i] = map_.insert(keys[i], values[i]) ? Result::kOk : Result::kExists;
        }
        return;
      case Op::kUpdate:
        for (std::uint64_t i = first; i < last; ++i) {
          results[i] = map_.update(keys[i], values[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kUpsert:
        for (std::uint64_t i = first; i < last; ++i) {
          map_.insert_or_assign(keys[i], values[i]);
          results[i] = Result::kOk;
        }
        return;
      case Op::kErase:
        for (std::uint64_t i = first; i < last; ++i) {
          results[i] = map_.erase(keys[i]) ? Result::kOk : Result::kNotFound;
        }
        return;
      case Op::kFindOrInsert:
      case Op::kAccumulate:  // not measured
        std::ranges::fill(results.subspan(first, last - first), Result::kInvalid);
        return;
    }
  }

  ThreadPool threads_;
  libcuckoo::cuckoohash_map<Key, Value, HashOf, std::equal_to<Key>,
                            Memory<std::pair<const Key, Value>>>
      map_;
};

const Capabilities kCan = {.kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase},
                           .longer_keys = {kLongerKeys.begin(), kLongerKeys.end()},
                           .value_unit = kValueBytes,
                           .max_value_bytes = kValueBytes,
                           .grows = true};
template <unsigned kWords>
using InHugePages = LibcuckooAdapter<kWords, HugePages>;
template <unsigned kWords>
using AsItComes = LibcuckooAdapter<kWords, std::allocator>;

const RegisteredPeer huge({.name = "libcuckoo", .can = kCan, .make = MakePeerByKey<InHugePages>});
/// With the pages that malloc gives it.
const RegisteredPeer plain({.name = "libcuckoo-malloc",
                            .can = kCan,
                            .by_default = false,
                            .make = MakePeerByKey<AsItComes>});

}  // namespace
}  // namespace gpm::bench
