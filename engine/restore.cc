// How a pool is made of snapshots (Store::Restore, RestoreNewest).

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "gpmstore/store.h"
#include "pm/attributes.h"
#include "pm/mapping.h"
#include "snapshot/block_buffer.h"
#include "snapshot/folder.h"
#include "snapshot/new_file.h"
#include "snapshot/reader.h"

namespace gpm {
namespace {

constexpr unsigned kMostThreads = 8;
/// Of keys and values that are inserted at a time, while the next are read: enough for large
/// batches. Its memory is used over and over.
constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

/// Some items of a chain, in the shape of a batch.
class Piece {
 public:
  Piece(const SnapshotHeader& header, std::uint64_t room)
      : room_(room),
        key_size_(header.key_size),
        value_size_(header.value_size),
        keys_(new std::byte[room * key_size_]),
        values_(new std::byte[room * value_size_]) {}

  /// Takes the items of a block that count; several threads may.
  void Add(const SnapshotChain& chain, std::size_t file, std::uint64_t count,
           const std::byte* things) {
    const std::byte* const values = things + count * key_size_;
    if (file + 1 == chain.files()) {
      Put(items_.fetch_add(count), count, things, values);
      return;
    }
    std::vector<std::uint64_t> counts;
    counts.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (chain.Counts(file, things + i * key_size_)) counts.push_back(i);
    }
    // (A place for each alone is a counter that all threads write.)
    std::uint64_t at = items_.fetch_add(counts.size());
    for (const std::uint64_t i : counts) {
      Put(at++, 1, things + i * key_size_, values + i * value_size_);
    }
  }
  std::uint64_t room() const { return room_; }
  std::uint64_t items() const { return items_; }
  void Clear() { items_ = 0; }

  /// @return items of it that are now in the store
  std::uint64_t InsertInto(Store& store) {
    if (items_ == 0) return 0;
    std::vector<Result> results(items_);
    return items_ - store.Insert(std::span(keys_.get(), items_ * key_size_),
                                 std::span(values_.get(), items_ * value_size_), results);
  }

 private:
  void Put(std::uint64_t at, std::uint64_t count, const std::byte* keys, const std::byte* values) {
    std::memcpy(keys_.get() + at * key_size_, keys, count * key_size_);
    std::memcpy(values_.get() + at * value_size_, values, count * value_size_);
  }

  const std::uint64_t room_;  ///< items
  const std::uint64_t key_size_;
  const std::uint64_t value_size_;
  const std::unique_ptr<std::byte[]> keys_;
  const std::unique_ptr<std::byte[]> values_;
  std::atomic<std::uint64_t> items_{0};
};

/// The blocks of items of a chain, one after the other.
class Pieces {
 public:
  Pieces(const SnapshotChain& chain, ThreadPool& threads) : chain_(chain), threads_(threads) {
    for (std::size_t i = 0; i < chain.files(); ++i) {
      const SnapshotLayout& layout = chain.file(i).layout();
      for (std::uint64_t b = layout.range_blocks(); b < layout.blocks(); ++b) {
        blocks_.push_back({i, b, layout.At(b).count});
      }
    }
  }

  /// @param piece one that is used again, or null @return null: there is no more
  std::unique_ptr<Piece> Next(std::unique_ptr<Piece> piece) {
    if (next_ == blocks_.size()) return nullptr;
    const SnapshotHeader& header = chain_.newest();
    const std::uint64_t item_bytes = std::uint64_t{header.key_size} + header.value_size;
    const std::size_t first = next_;
    std::uint64_t room = 0;
    do {
      room += blocks_[next_++].count;
    } while (next_ < blocks_.size() && (room + blocks_[next_].count) * item_bytes <= kPieceBytes);
    if (piece == nullptr || piece->room() < room) {
      piece.reset();
      piece = std::make_unique<Piece>(header, room);
    }
    piece->Clear();
    std::atomic<std::size_t> next{first};
    threads_.Run(threads_.threads(), [&](std::size_t) {
      BlockBuffer buffer(SnapshotLayout(header).block_bytes());
      for (std::size_t i = 0; (i = next++) < next_;) {
        const Block& block = blocks_[i];
        piece->Add(chain_, block.file, block.count,
                   chain_.file(block.file).Read(block.index, buffer.data()));
      }
    });
    return piece;
  }

 private:
  struct Block {
    std::size_t file;
    std::uint64_t index;
    std::uint64_t count;  ///< items
  };
  const SnapshotChain& chain_;
  ThreadPool& threads_;
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
};

void Load(const SnapshotChain& chain, ThreadPool& threads, Store& store) {
  Pieces pieces(chain, threads);
  std::uint64_t loaded = 0;
  std::unique_ptr<Piece> piece = pieces.Next(nullptr);
  std::unique_ptr<Piece> former;
  while (piece != nullptr) {
    std::unique_ptr<Piece> next;
    std::exception_ptr not_read;
    const auto read = [&] {
      try {
        next = pieces.Next(std::move(former));
      } catch (...) {
        not_read = std::current_exception();
      }
    };
    std::thread reading;
    try {
      reading = std::thread(read);
    } catch (const std::system_error&) {  // it is read afterwards
    }
    std::uint64_t inserted = 0;
    std::exception_ptr not_inserted;
    try {
      inserted = piece->InsertInto(store);
    } catch (...) {
      not_inserted = std::current_exception();
    }
    const bool is_read = reading.joinable();
    if (is_read) reading.join();
    if (not_inserted) std::rethrow_exception(not_inserted);
    if (!is_read) read();
    if (not_read) std::rethrow_exception(not_read);
    if (inserted < piece->items()) break;
    loaded += inserted;
    former = std::exchange(piece, std::move(next));
  }
  const std::uint64_t right = chain.newest().total_items;
  if (piece == nullptr && loaded == right && store.Stats().items == right) return;
  throw Error(piece != nullptr ? ErrorCode::kNoSpace : ErrorCode::kDamaged,
              piece != nullptr
                  ? fmt::format("no room for the {} items of the snapshots", right)
                  : fmt::format("{}: damaged snapshot: {} items are in it and those before it, not "
                                "{}",
                                chain.file(chain.files() - 1).path(), loaded, right));
}

/// Loads a chain into a new pool. @param named called before the pool gets its name, if it has one
Store RestoreChain(const SnapshotChain& chain, ThreadPool& threads, const std::string& path,
                   const OpenOptions& open, const std::function<void(const SnapshotId&)>& named) {
  const SnapshotHeader& newest = chain.newest();
  CreateOptions create;
  create.key_size = newest.key_size;
  create.value_size = newest.value_size;
  create.geometry = newest.geometry;
  create.attributes = ReadAttributes(newest.attributes);
  create.initial_capacity = newest.total_items;
  ValidateGrowth(open);
  CapacityInItems(open.capacity, newest.key_size, newest.value_size,
                  {newest.geometry, open.growth});
  OpenOptions loading = open;
  loading.capacity = {};  // a snapshot may have more items
  if (path == Mapping::kPinnedPath) {
    Store store = Store::Create(path, create, loading);
    Load(chain, threads, store);
    named(store.impl()->PoolId());
    store.impl()->SetCapacity(open.capacity);
    return store;
  }
  const std::string temporary = TemporaryName(path, "restoring");
  try {
    Store store = Store::Create(temporary, create, loading);
    Load(chain, threads, store);
    const SnapshotId id = store.impl()->PoolId();
    store.Close();
    SyncFile(temporary);
    named(id);
    GiveName(temporary, path);
  } catch (...) {
    RemoveFile(temporary);
    throw;
  }
  return Store::Open(path, open);
}

unsigned ThreadsForRestore() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
}

OpenOptions WithoutSchedule(const OpenOptions& open) {
  OpenOptions options = open;
  options.snapshot = {};
  return options;
}

}  // namespace

Store Store::Restore(std::span<const std::string> files, const std::string& path,
                     const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  if (path != Mapping::kPinnedPath) RequireNoFile(path);
  ThreadPool threads(ThreadsForRestore());
  const SnapshotChain chain(files, threads);
  std::unique_ptr<SnapshotFolder> folder = EmptyFolder(open.snapshot);
  Store store = RestoreChain(chain, threads, path, WithoutSchedule(open), [](auto&) {});
  if (folder != nullptr) store.impl_->KeepSnapshots(std::move(folder), open.snapshot, true);
  return store;
}

Store Store::RestoreNewest(const std::string& folder, const std::string& path,
                           const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  return RestoreFrom(std::make_unique<SnapshotFolder>(folder), path, open);
}

/// Tries the newest chain first, and of each as much as is whole.
Store Store::RestoreFrom(std::unique_ptr<SnapshotFolder> folder, const std::string& path,
                         const OpenOptions& open) {
  if (path != Mapping::kPinnedPath) RequireNoFile(path);
  const bool keeps = !open.snapshot.path.empty();
  Log log(open.log);
  const auto warn = [&](const std::string& text) {
    log.Add(LogLevel::kWarning, [&] { return text; });
  };
  if (!keeps) {  // else who keeps them tells
    for (const std::string& warning : folder->warnings()) warn(warning);
  }
  ThreadPool threads(ThreadsForRestore());
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
        const SnapshotChain chain(files, threads, &why);
        whole = chain.files();
        if (whole > 0) {
          try {
            store = RestoreChain(chain, threads, path, WithoutSchedule(open),
                                 [&](const SnapshotId& id) {
                                   if (keeps) folder->Admit(id);
                                 });
          } catch (
              const Error& error) {  // (It was read once more, and what is counted is looked at.)
            if (error.code() != ErrorCode::kDamaged) throw;
            why = error.what();
          }
        }
      }
      if (!why.empty()) {
        if (first_defect.empty()) first_defect = why;
        warn(why);
      }
      if (store) {
        if (whole < of->files) damaged.emplace_back(*of, whole);
        log.Add(damaged.empty() ? LogLevel::kInfo : LogLevel::kWarning, [&] {
          return fmt::format("{}: restored from {}, {} items{}", path, files[whole - 1],
                             store->Stats().items,
                             damaged.empty() ? "" : "; newer snapshots are damaged or missing");
        });
        log.Tell();
        if (!keeps) return std::move(*store);
        for (const auto& [chain, place] : damaged) folder->SetAside(chain, place);
        store->impl_->KeepSnapshots(std::move(folder), open.snapshot, false);
        return std::move(*store);
      }
      if (whole <= 1) break;
      files.resize(whole - 1);
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
