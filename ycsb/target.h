#ifndef GPM_YCSB_TARGET_H_
#define GPM_YCSB_TARGET_H_

#include <cstdint>
#include <variant>

#include "gpmstore/error.h"
#include "gpmstore/sharded_store.h"
#include "gpmstore/store.h"

namespace gpm::ycsb {

/// What a workload works on: a store of one pool, or one over several, which outlives it.
class Target {
  template <class Call>
  auto Visit(const Call& call) const {
    return std::visit([&](auto* store) { return call(*store); }, store_);
  }

 public:
  Target(Store& store) : store_(&store) {}         // NOLINT: a store is one
  Target(ShardedStore& store) : store_(&store) {}  // NOLINT

  std::uint64_t Apply(const Batch& batch) const {
    return Visit([&](auto& store) { return store.Apply(batch); });
  }
  /// @throws as Store::Search; Error(kUnsupported) for a store over several pools
  void Search(const QueryArray& queries, Matches* matches) const {
    RequireSearches();
    std::get<Store*>(store_)->Search(queries, ~std::uint64_t{0}, matches);
  }
  /// @throws Error(kUnsupported) where Search does
  void RequireSearches() const {
    if (std::holds_alternative<Store*>(store_)) return;
    throw Error(ErrorCode::kUnsupported,
                "a workload with searches runs on one pool, not on several shards");
  }
  std::uint32_t key_size() const {
    return Visit([](auto& store) { return store.key_size(); });
  }
  std::uint32_t value_size() const {
    return Visit([](auto& store) { return store.value_size(); });
  }
  StoreStats Stats() const {
    return Visit([](auto& store) { return store.Stats(); });
  }

 private:
  std::variant<Store*, ShardedStore*> store_;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_TARGET_H_
