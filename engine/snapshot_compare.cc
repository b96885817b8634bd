// How a store finds what changed since a snapshot that it did not take itself since it was opened
// (SnapshotOptions::chain): it compares all items.

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "snapshot/block_buffer.h"
#include "snapshot/chain_items.h"
#include "snapshot/reader.h"
#include "table/hash.h"
#include "table/key_rows.h"

namespace gpm {
namespace {

/// The items of a copy by key, and which of them a chain has, too. Open addressing, filled to a
/// half.
///
/// Thread safety: Meet from several threads.
class CopyIndex {
 public:
  CopyIndex(const TableCopy& copy, const SnapshotHeader& header, const std::byte* pool)
      : copy_(copy),
        header_(header),
        pool_(pool),
        mask_(std::bit_ceil(2 * copy.items + 1) - 1),
        places_(mask_ + 1, kNone),
        met_(copy.items) {
    if (copy.items >= kNone) {
      throw Error(ErrorCode::kUnsupported, "a store of so many items can't be compared");
    }
    for (std::uint32_t i = 0; i < copy.items; ++i) {
      std::uint64_t place = HashOf(KeyOf(i)) & mask_;
      while (places_[place] != kNone) place = (place + 1) & mask_;
      places_[place] = i;
    }
  }

  std::uint64_t HashOf(const std::uint64_t* key) const {
    return HashKey(header_.hash_seed, key, KeyWords(header_.key_size)).h;
  }
  const std::uint64_t* KeyOf(std::uint64_t i) const {
    return copy_.keys + i * KeyWords(header_.key_size);
  }

  /// @return whether there is an item with this key and this value
  bool Meet(const std::uint64_t* key, std::uint64_t hash, const std::byte* value) {
    for (std::uint64_t place = hash & mask_; places_[place] != kNone; place = (place + 1) & mask_) {
      const std::uint32_t i = places_[place];
      if (std::memcmp(KeyOf(i), key, header_.key_size) != 0) continue;
      met_[i].store(1, std::memory_order_relaxed);
      const void* const held = InlineValues(header_.value_size)
                                   ? static_cast<const void*>(copy_.references + i)
                                   : pool_ + copy_.references[i];
      return std::memcmp(held, value, header_.value_size) == 0;
    }
    return false;
  }
  /// Whether it was met. REQUIRES: nobody calls Meet
  bool WasMet(std::uint64_t i) const { return met_[i] != 0; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  const TableCopy& copy_;
  const SnapshotHeader& header_;
  const std::byte* const pool_;
  const std::uint64_t mask_;
  std::vector<std::uint32_t> places_;  ///< items, by hash
  std::vector<std::atomic<std::uint8_t>> met_;
};

/// Calls visit(key, value) for each item of a chain, on several threads.
template <class Visit>
void VisitChain(const SnapshotChain& chain, ThreadPool& threads, const Visit& visit) {
  const std::uint64_t key_size = chain.newest().key_size;
  const std::uint64_t value_size = chain.newest().value_size;
  for (std::size_t file = 0; file < chain.files(); ++file) {
    const SnapshotLayout& layout = chain.file(file).layout();
    std::atomic<std::uint64_t> next{layout.range_blocks()};
    threads.Run(threads.threads(), [&](std::size_t) {
      BlockBuffer buffer(layout.block_bytes());
      for (std::uint64_t b = 0; (b = next++) < layout.blocks();) {
        const std::uint64_t count = layout.At(b).count;
        const std::byte* const keys = chain.file(file).Read(b, buffer.data());
        const std::byte* const values = keys + count * key_size;
        for (std::uint64_t i = 0; i < count; ++i) {
          const std::byte* const key = keys + i * key_size;
          if (chain.Counts(file, key)) visit(key, values + i * value_size);
        }
      }
    });
  }
}

}  // namespace

void StoreImpl::TrackSince(const std::vector<std::string>& files) {
  health_.Check();
  ThreadPool threads(ThreadsForChain());
  const SnapshotChain chain(files);
  SnapshotHeader header = BeginHeader({});
  const SnapshotHeader& newest = chain.newest();
  if (newest.pool != header.pool) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: it can't be the base of an increment: it is of another pool, or "
                            "of one that this was restored from; take a whole snapshot",
                            files.back()));
  }
  if (!AreAlike(newest, header)) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged snapshot: its sizes or hashes are not those of its pool",
                            files.back()));
  }
  CopyShape shape{.room = RoomForCopy(header.total_items),
                  .key_words = KeyWords(key_size_),
                  .changes_only = false,
                  .range_bits = RangeBitsFor(header.total_items)};
  std::unique_ptr<TableCopy> copy = executor_->MakeCopy(shape);
  std::optional<Snapshots::Copying> copying;
  snapshots_.base.reset();  // what is marked from the instant on is of no other
  TakeInstant(shape, &copy, &copying);
  // Changes are marked from that instant on. What had changed before it is added.
  try {
    copy->Fetch();
    NameHeldCells(*copy);
    CopyIndex index(*copy, newest, pool_->base());
    std::vector<std::atomic<std::uint8_t>> changed(std::uint64_t{1} << shape.range_bits);
    const auto mark = [&](std::uint64_t hash) {
      changed[hash >> (64 - shape.range_bits)].store(1, std::memory_order_relaxed);
    };
    VisitChain(chain, threads, [&](const std::byte* key, const std::byte* value) {
      KeyBuffer words;
      PadKey(key, key_size_, words.words);
      const std::uint64_t hash = index.HashOf(words.words);
      if (!index.Meet(words.words, hash, value)) mark(hash);
    });
    for (std::uint64_t i = 0; i < copy->items; ++i) {
      if (!index.WasMet(i)) mark(index.HashOf(index.KeyOf(i)));
    }
    static_assert(sizeof(std::atomic<std::uint8_t>) == 1);
    executor_->AddMarks(reinterpret_cast<const std::uint8_t*>(changed.data()), shape.range_bits);
  } catch (...) {
    copying.reset();
    ReleaseCells();
    throw;
  }
  copying.reset();
  ReleaseCells();
  snapshots_.base = {newest.id, newest.sequence, shape.range_bits};
}

}  // namespace gpm
