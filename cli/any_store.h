#ifndef GPM_CLI_ANY_STORE_H_
#define GPM_CLI_ANY_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "gpmstore/sharded_store.h"
#include "gpmstore/store.h"
#include "ycsb/target.h"

namespace gpm::cli {

/// A store of one pool, or one over several. Calls, errors and thread safety: those of the store.
class AnyStore {
  template <class Call>
  auto Visit(const Call& call) {
    return std::visit(call, store_);
  }

 public:
  AnyStore(Store store) : store_(std::move(store)) {}         // NOLINT: a store is one
  AnyStore(ShardedStore store) : store_(std::move(store)) {}  // NOLINT

  /// @param shards how many, in a folder; 0: a pool at this path
  /// @throws Error(kInvalidArgument) where one pool is given devices; so do the others
  static AnyStore Create(const std::string& path, const CreateOptions& create,
                         const OpenOptions& open, const ShardOptions& shards);
  /// @param shards 0: as many as there are
  static AnyStore Open(const std::string& path, const OpenOptions& open,
                       const ShardOptions& shards = {});
  /// @param files of the snapshot and its increments, or one folder: that of a snapshot of shards,
  ///        or of those that a store keeps, of which the newest is meant
  /// @param shards their devices, if there are several
  static AnyStore Restore(std::span<const std::string> files, const std::string& path,
                          const OpenOptions& open, const ShardOptions& shards = {});

  /// The store, if it is one of one pool; else null.
  Store* one() { return std::get_if<Store>(&store_); }
  ycsb::Target target() {
    return Visit([](auto& store) { return ycsb::Target(store); });
  }

  std::uint64_t Apply(const Batch& batch) {
    return Visit([&](auto& store) { return store.Apply(batch); });
  }
  /// @param stream of a store of one pool; one over several is in the order of the default stream
  [[nodiscard]] Ticket ApplyAsync(const Batch& batch, Stream stream) {
    Store* const store = one();
    return store != nullptr ? store->ApplyAsync(batch, stream)
                            : std::get<ShardedStore>(store_).ApplyAsync(batch);
  }
  std::uint64_t BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                         std::span<Result> results) {
    return Visit([&](auto& store) { return store.BulkLoad(keys, values, results); });
  }
  std::uint64_t Find(std::span<const std::byte> keys, std::span<std::byte> found,
                     std::span<Result> results) {
    return Visit([&](auto& store) { return store.Find(keys, found, results); });
  }
  void ForEach(const Store::Visitor& visit) {
    Visit([&](auto& store) { store.ForEach(visit); });
  }
  void Compact() {
    Visit([](auto& store) { store.Compact(); });
  }
  /// @param base of an increment; empty: a whole one. REQUIRES: empty, or it is of one pool
  SnapshotResult Snapshot(const std::string& path, const std::string& base) {
    Store* const store = one();
    return store != nullptr ? store->Snapshot(path, {.base = base})
                            : std::get<ShardedStore>(store_).Snapshot(path);
  }
  StoreStats Stats() {
    return Visit([](auto& store) { return store.Stats(); });
  }
  void Close() {
    Visit([](auto& store) { store.Close(); });
  }

 private:
  std::variant<Store, ShardedStore> store_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_ANY_STORE_H_
