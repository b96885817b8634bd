// How a pool is made of snapshots (Store::Restore, RestoreNewest).

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/as_created.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "gpmstore/store.h"
#include "pm/attributes.h"
#include "pm/gpu_host.h"
#include "pm/mapping.h"
#include "snapshot/chain_items.h"
#include "snapshot/folder.h"
#include "snapshot/new_file.h"
#include "snapshot/reader.h"

namespace gpm {
namespace {

/// (In a table that is fuller than a reserved one there may be room all the same: there was.)
void ReserveIfThereIsRoom(StoreImpl& store, std::uint64_t items) {
  try {
    store.Reserve(items);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace) throw;
  }
}

/// Creates a pool with the initial capacity, or, where there is no room for that, with none.
Store CreateRoomy(const std::string& path, CreateOptions* create, const OpenOptions& open) {
  try {
    return Store::Create(path, *create, open);
  } catch (const Error& error) {
    const bool may_lack_room =
        error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kInvalidArgument;
    if (!may_lack_room || create->initial_capacity == 0) throw;
  }
  create->initial_capacity = 0;
  return Store::Create(path, *create, open);
}

/// Inserts the items of a chain into a new store.
class Loading {
 public:
  Loading(const SnapshotChain& chain, ChainItems& items, Store& store)
      : chain_(chain),
        key_size_(chain.newest().key_size),
        value_size_(chain.newest().value_size),
        items_(items),
        store_(store) {}

  /// @param reserves room for all of them first, if there is so much
  /// @throws Error(kNoSpace); kDamaged: there are not as many items as the newest snapshot says
  void Run(bool reserves) {
    StoreImpl& impl = *store_.impl();
    const std::uint64_t total = chain_.newest().total_items;
    if (impl.executor().kind() == ExecutorKind::kCuda) items_.RegisterGpu();
    const auto next = [this] {
      Note();
      return Next();
    };
    if (!impl.MayCompose(total) || !impl.ComposeParts(total, next)) {
      if (reserves) ReserveIfThereIsRoom(impl, total);
      while (const std::optional<Batch> batch = Next()) {
        store_.Apply(*batch);
        Note();
        if (!left_.empty()) break;
      }
    } else if (!left_.empty()) {
      InsertLeft();
    }
    if (left_.empty() && loaded_ == total && store_.Stats().items == total) return;
    // (Levels that were composed may lack room; else it was reserved for as many as were told of.)
    if (!left_.empty() && loaded_ < total) {
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("no room for the {} items of the snapshots", total));
    }
    const std::string found =
        fmt::format("{}{}", left_.empty() ? "" : "more than ", left_.empty() ? loaded_ : total);
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged snapshot: {} items are in it and those before it, not {}",
                            chain_.file(chain_.files() - 1).path(), found, total));
  }

 private:
  /// Items that found no slot, to be inserted when the table is there.
  struct Rows {
    std::vector<std::byte> keys;
    std::vector<std::byte> values;
    bool empty() const { return keys.empty(); }
  };

  /// Inserts of the next piece, or none: the one before is not used any more.
  std::optional<Batch> Next() {
    for (;;) {
      if (piece_) items_.GiveBack();
      piece_ = items_.Next();
      if (!piece_) return {};
      if (piece_->items == 0) continue;
      results_.assign(piece_->items, Result::kInvalid);
      return Batch{.op = Op::kInsert,
                   .keys = {piece_->keys, piece_->items * key_size_},
                   .values = {piece_->values, piece_->items * value_size_},
                   .results = results_};
    }
  }

  /// Counts the items of the last piece that are in the store, and keeps those that lacked room.
  void Note() {
    const auto ok =
        static_cast<std::uint64_t>(std::count(results_.begin(), results_.end(), Result::kOk));
    loaded_ += ok;
    for (std::uint64_t i = 0; ok < results_.size() && i < results_.size(); ++i) {
      if (results_[i] != Result::kNoSpace) continue;
      const std::byte* const key = piece_->keys + i * key_size_;
      const std::byte* const value = piece_->values + i * value_size_;
      left_.keys.insert(left_.keys.end(), key, key + key_size_);
      left_.values.insert(left_.values.end(), value, value + value_size_);
    }
    results_.clear();
  }

  void InsertLeft() {
    const Rows rows = std::exchange(left_, {});
    results_.assign(rows.keys.size() / key_size_, Result::kInvalid);
    store_.Apply(
        {.op = Op::kInsert, .keys = rows.keys, .values = rows.values, .results = results_});
    for (const Result result : results_) {
      loaded_ += result == Result::kOk ? 1 : 0;
      if (result == Result::kNoSpace) left_ = rows;
    }
  }

  const SnapshotChain& chain_;
  const std::uint64_t key_size_;
  const std::uint64_t value_size_;
  ChainItems& items_;
  Store& store_;
  std::optional<ChainItems::Piece> piece_;
  std::vector<Result> results_;  ///< of the last piece, until they are noted
  std::uint64_t loaded_ = 0;     ///< items
  Rows left_;
};

/// Loads a chain into a new pool, which has its name when all is in it.
/// @param named called before that
Store RestoreChain(const SnapshotChain& chain, ChainItems& items, const std::string& path,
                   const OpenOptions& open, const std::function<void(const SnapshotId&)>& named) {
  const SnapshotHeader& newest = chain.newest();
  CreateOptions create;
  create.key_size = newest.key_size;
  create.value_size = newest.value_size;
  create.geometry = newest.geometry;
  // An executor that composes levels makes room for them as they come.
  const bool composes = open.executor != ExecutorKind::kCpu && GpuCount() > 0;
  create.initial_capacity = composes ? 0 : newest.total_items;
  create.attributes = ReadAttributes(newest.attributes);
  ValidateGrowth(open);
  CapacityInItems(open.capacity, newest.key_size, newest.value_size, {newest.geometry, open.growth},
                  open.grow_above);
  OpenOptions loading = open;
  loading.capacity = {};  // a snapshot may have more items
  const bool is_file = path != Mapping::kPinnedPath;
  if (is_file) RemoveAbandoned(path, "restoring");
  const std::string temporary = is_file ? TemporaryName(path, "restoring") : path;
  try {
    Store store = CreateRoomy(temporary, &create, loading);
    StoreImpl& impl = *store.impl();
    Loading(chain, items, store).Run(composes || create.initial_capacity > 0);
    impl.EndRestoring();
    impl.SetCapacity(open.capacity);
    named(impl.PoolId());
    if (is_file) impl.GiveName(path);
    return store;
  } catch (...) {
    if (is_file) RemoveFile(temporary);
    throw;
  }
}

/// Where a pool is to be restored, also after the process has changed its directory.
std::string NewPoolPath(const std::string& path) {
  if (path == Mapping::kPinnedPath) return path;
  std::string absolute = AbsolutePath(path);
  RequireNoFile(absolute);
  return absolute;
}

/// What a snapshot's pool is like, as a store tells it.
struct SnapshotShape {
  const SnapshotHeader& header;
  std::uint32_t key_size() const { return header.key_size; }
  std::uint32_t value_size() const { return header.value_size; }
  std::vector<Attribute> attributes() const { return ReadAttributes(header.attributes); }
};

OpenOptions WithoutSchedule(const OpenOptions& open) {
  OpenOptions options = open;
  options.snapshot = {};
  return options;
}

}  // namespace

Store Store::Restore(std::span<const std::string> files, const std::string& path,
                     const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  const std::string pool = NewPoolPath(path);
  const SnapshotChain chain(files);
  std::unique_ptr<SnapshotFolder> folder = EmptyFolder(open.snapshot);
  ChainItems items(chain, ThreadsForChain());
  Store store = RestoreChain(chain, items, pool, WithoutSchedule(open), [](auto&) {});
  if (folder != nullptr) store.impl_->KeepSnapshotsOfNew(std::move(folder), open.snapshot, true);
  return store;
}

Store Store::RestoreNewest(const std::string& folder, const std::string& path,
                           const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {  // which SnapshotFolder would make
    throw Error(ErrorCode::kNotFound, folder + ": there is no such folder of snapshots");
  }
  auto from = std::make_unique<SnapshotFolder>(folder);
  const std::string& kept_in = open.snapshot.path;
  if (kept_in.empty() || std::filesystem::equivalent(folder, kept_in, ignored)) {
    return RestoreFrom(std::move(from), path, open);
  }
  std::unique_ptr<SnapshotFolder> other = EmptyFolder(open.snapshot);
  Store store = RestoreFrom(std::move(from), path, WithoutSchedule(open));
  store.impl_->KeepSnapshotsOfNew(std::move(other), open.snapshot, true);
  return store;
}

/// Tries the newest chain first, and of each as much as is whole.
/// @param as_created what a pool has to be like, else nothing is done; null: as it is
Store Store::RestoreFrom(std::unique_ptr<SnapshotFolder> folder, const std::string& path,
                         const OpenOptions& open, const CreateOptions* as_created) {
  const std::string pool = NewPoolPath(path);
  const bool keeps = !open.snapshot.path.empty();
  Log log(open.log);
  const auto warn = [&](const std::string& text) {
    log.Add(LogLevel::kWarning, [&] { return text; });
  };
  if (keeps) {
    folder->RemovePartialFiles();  // which may fill the disk
  } else {                         // else who keeps them tells
    for (const std::string& warning : folder->warnings()) warn(warning);
  }
  const std::vector<SnapshotFolder::Chain> chains = folder->chains();
  std::vector<std::pair<SnapshotFolder::Chain, std::uint64_t>> damaged;  // from which place on
  std::string first_defect;
  for (auto of = chains.rbegin(); of != chains.rend(); ++of) {
    std::vector<std::string> files = folder->Files(*of);
    for (;;) {
      std::string why;
      std::optional<Store> store;
      std::size_t whole = 0;
      {
        const SnapshotChain chain(files, &why);
        whole = chain.files();
        if (whole > 0) {
          if (as_created != nullptr) {
            RequireAsCreated(path, "snapshot to restore it from", SnapshotShape{chain.newest()},
                             *as_created);
          }
          ChainItems items(chain, ThreadsForChain());
          try {
            store =
                RestoreChain(chain, items, pool, WithoutSchedule(open), [&](const SnapshotId& id) {
                  if (whole < of->files) damaged.emplace_back(*of, whole);
                  if (!keeps) return;
                  folder->Admit(id);
                  for (const auto& [of_folder, place] : damaged) folder->SetAside(of_folder, place);
                });
          } catch (const Error& error) {
            if (error.code() != ErrorCode::kDamaged) throw;
            why = error.what();
            // (Where each block is whole, the newest file does not have what it says.)
            whole = items.damaged_file().value_or(whole - 1);
          }
        }
      }
      if (!why.empty()) {
        if (first_defect.empty()) first_defect = why;
        warn(why);
      }
      if (store) {
        log.Add(damaged.empty() ? LogLevel::kInfo : LogLevel::kWarning, [&] {
          return fmt::format("{}: restored from {}, {} items{}", path, files[whole - 1],
                             store->Stats().items,
                             damaged.empty() ? "" : "; newer snapshots are damaged or missing");
        });
        log.Tell();
        if (!keeps) return std::move(*store);
        store->impl_->KeepSnapshotsOfNew(std::move(folder), open.snapshot, false);
        return std::move(*store);
      }
      if (whole == 0) break;
      files.resize(whole);
    }
    damaged.emplace_back(*of, 0);
  }
  log.Tell();
  if (chains.empty()) {
    throw Error(ErrorCode::kNotFound, folder->path() + ": no snapshots to restore from");
  }
  throw Error(ErrorCode::kDamaged,
              fmt::format("{}: none of the {} chains of snapshots is whole; the newest: {}",
                          folder->path(), chains.size(), first_defect));
}

}  // namespace gpm
