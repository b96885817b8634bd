#include "tests/fuzz/base_pools.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "gpmstore/store.h"
#include "pm/crc32c.h"
#include "pm/pool.h"
#include "pm/space.h"
#include "tests/levels.h"
#include "tests/test_util.h"

namespace gpm::fuzz {
namespace {

using test::kAllOnes;
using test::MakeKey;
using test::MakeValue;

/// What a base pool is made of, and which traces of a crash it shows.
struct Recipe {
  const char* name;
  std::uint32_t key_size;
  std::uint32_t value_size;
  Geometry geometry;
  std::uint64_t newest;  ///< level's buckets, of the first levels
  std::uint64_t items;
  bool crashed = false;          ///< not closed: half-inserted slots, second copies
  std::uint32_t new_levels = 0;  ///< a resize under way, with so many levels being drained
};

constexpr Recipe kRecipes[] = {
    {"inline", 8, 8, {2, 2, 8}, 4, 40},
    {"cells", 8, 100, {2, 2, 8}, 4, 40},
    {"long keys", 16, 20, {1, 2, 4}, 8, 16},
    {"four levels", 32, 200, {4, 2, 4}, 8, 30},
    {"crashed", 8, 100, {2, 2, 8}, 4, 30, true},
    {"crashed, long keys", 16, 7, {2, 2, 8}, 4, 30, true},
    {"resizing", 8, 100, {2, 2, 8}, 4, 60, true, 1},
    {"resizing, long keys", 32, 64, {4, 2, 4}, 8, 40, true, 1},
    {"resizing, inline", 8, 5, {2, 2, 8}, 2, 36, true, 2},
    {"resizing, one level", 16, 48, {1, 2, 16}, 2, 30, true, 2},
    {"large values", 8, 4000, {2, 2, 8}, 4, 30},
    {"longest keys", 128, 1, {2, 1, 4}, 4, 20},
    {"single slots", 8, 16, {1, 1, 1}, 32, 12},
    {"eight levels", 8, 33, {8, 1, 4}, 128, 60},
    {"largest buckets", 64, 9, {1, 1, 32}, 1, 20, true, 1},
    {"empty", 8, 128, {2, 2, 8}, 2, 0},
};

/// A directory of its own, for the time that the pools are made.
class Workshop {
 public:
  Workshop() {
    std::error_code no_error;
    std::string pattern = std::filesystem::is_directory("/dev/shm", no_error)
                              ? std::string("/dev/shm")
                              : std::filesystem::temp_directory_path().string();
    pattern += "/gpmstore_fuzz_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error(pattern + ": " + std::strerror(errno));
    }
    directory_ = pattern;
  }
  ~Workshop() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  std::string path() const { return directory_ + "/pool"; }
  std::vector<std::byte> Read() const {
    std::ifstream file(path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(first, first + text.size());
  }

 private:
  std::string directory_;
};

/// Inserts, updates and erases, so that no part of the pool is as it was created.
void Fill(const Recipe& recipe, const std::string& path) {
  const OpenOptions options{
      .executor = ExecutorKind::kCpu, .threads = 1, .max_bytes = std::uint64_t{1} << 20};
  Store store = Store::Open(path, options);
  const auto apply = [&](Op op, std::uint64_t first, std::uint64_t count, std::uint64_t tag) {
    for (std::uint64_t number = first; number < first + count; ++number) {
      const std::string key = MakeKey(number, recipe.key_size);
      const std::string value = MakeValue(number + tag, recipe.value_size);
      Result result{};
      Batch batch;
      batch.op = op;
      batch.keys = std::as_bytes(std::span(key));
      if (op != Op::kErase) batch.values = std::as_bytes(std::span(value));
      batch.results = std::span(&result, 1);
      store.Apply(batch);
    }
  };
  apply(Op::kInsert, 0, recipe.items, 0);
  if (recipe.items > 0) apply(Op::kInsert, kAllOnes, 1, 0);
  apply(Op::kUpsert, recipe.items / 2, recipe.items / 4, 1000);
  apply(Op::kErase, 1, recipe.items / 8, 0);
  store.Close();
}

/// An image of a pool, to be edited the way a crash would have left it.
class Image {
 public:
  explicit Image(BasePool* pool) : table_(MakeTableView(pool->bytes.data(), pool->superblock)) {}

  const TableView& table() const { return table_; }
  bool IsDrained(std::uint32_t level) const { return level >= table_.levels; }

  template <class Visit>
  void ForEachSlot(const Visit& visit) const {
    for (std::uint32_t number = 0; number < 2; ++number) {
      for (std::uint32_t s = 0; s < table_.slots; ++s) {
        visit(Slot{table_.ReservedBucket(number), s}, -1);
      }
    }
    for (std::uint32_t level = 0; level < table_.level_count; ++level) {
      for (std::uint64_t number = 0; number < table_.Buckets(level); ++number) {
        for (std::uint32_t s = 0; s < table_.slots; ++s) {
          visit(Slot{table_.Bucket(level, number), s}, static_cast<int>(level));
        }
      }
    }
  }

  std::string Key(Slot slot) const {
    const std::uint64_t word = *table_.State(slot);
    const std::uint64_t at = Offset(slot.bucket);
    if (table_.key_words > 1) {
      return std::string(reinterpret_cast<const char*>(table_.Key(slot)), 8 * table_.key_words);
    }
    if (at == kReservedOffset) return test::MakeKey(0, 8);
    if (at == kReservedOffset + table_.bucket_bytes) return test::MakeKey(test::kAllOnes, 8);
    return std::string(reinterpret_cast<const char*>(&word), 8);
  }

  /// Copies a valid slot to an empty candidate slot of its key. @return whether there was one
  bool Copy(Slot slot, std::uint64_t reference) {
    const std::string key = Key(slot);
    KeyBuffer words{};
    std::memcpy(words.words, key.data(), key.size());
    const Candidates candidates = LocateKey(table_, words.words);
    for (std::uint32_t c = 0; c < table_.candidate_buckets(); ++c) {
      std::byte* const bucket = CandidateBucket(table_, candidates, c);
      for (std::uint32_t s = 0; bucket != nullptr && s < table_.slots; ++s) {
        const Slot to{bucket, s};
        if (*table_.State(to) != kEmptyState) continue;
        *table_.State(to) = candidates.word;
        if (table_.key_words > 1) std::memcpy(table_.Key(to), key.data(), key.size());
        *table_.Reference(to) = reference;
        return true;
      }
    }
    return false;
  }

  std::uint64_t Offset(const void* address) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - table_.base);
  }

 private:
  TableView table_;
};

/// Cells that no slot names, with the value of the item that `reference` names in one of them.
std::uint64_t CopyOfValue(BasePool* pool, const Image& image, std::uint64_t reference) {
  const TableView& table = image.table();
  if (table.inline_values()) return reference;
  std::vector<std::uint64_t> references;
  image.ForEachSlot([&](Slot slot, int) { references.push_back(*table.Reference(slot)); });
  const SegmentEntry& segment = pool->superblock.segments[0];
  std::uint64_t cell = RoundUp(segment.offset, table.cell_bytes);
  while (std::find(references.begin(), references.end(), cell) != references.end()) {
    cell += table.cell_bytes;
  }
  std::memcpy(table.Cell(cell), table.Cell(reference), table.value_size);
  return cell;
}

/// What a crash in the middle of batches leaves: slots half-inserted or half-emptied, keys inserted
/// twice.
void LeaveHalfDone(BasePool* pool) {
  Image image(pool);
  const TableView& table = image.table();
  std::vector<Slot> valid;
  int planted = 0;
  image.ForEachSlot([&](Slot slot, int level) {
    const std::uint64_t word = *table.State(slot);
    if (word == kEmptyState && level >= 0 && planted++ % 5 == 0) {
      const std::uint64_t words[] = {kInsertState, kEmptyState, 0x7654321};
      const bool pairs = !table.inline_values() && !image.IsDrained(std::uint32_t(level));
      const std::uint64_t kind = pairs ? planted % 3 : 0;
      *table.State(slot) = words[kind];
      *table.Reference(slot) = kind == 2 ? 0 : 0x1234567;
    } else if (word != kEmptyState && level >= 0 && !image.IsDrained(std::uint32_t(level))) {
      valid.push_back(slot);
    }
  });
  for (std::size_t i = 0; i < valid.size(); i += 7) {
    image.Copy(valid[i], CopyOfValue(pool, image, *table.Reference(valid[i])));
  }
}

/// A resize that was cut off: of the items below some are moved up, and some of those are still in
/// both places.
void LeaveHalfDrained(BasePool* pool) {
  Image image(pool);
  const TableView& table = image.table();
  int met = 0;
  image.ForEachSlot([&](Slot slot, int level) {
    if (level < 0 || !image.IsDrained(std::uint32_t(level))) return;
    if (*table.State(slot) == kEmptyState || *table.State(slot) == kInsertState) return;
    const int turn = met++ % 3;
    if (turn == 0 || !image.Copy(slot, *table.Reference(slot))) return;
    if (turn == 1) *table.State(slot) = kEmptyState;
  });
}

/// The copies of the superblock with a UUID that is the same in every process.
void FixIdentity(std::vector<std::byte>* bytes) {
  for (int copy = 0; copy < 2; ++copy) {
    Superblock superblock;
    std::byte* const at = bytes->data() + copy * kSuperblockBytes;
    std::memcpy(&superblock, at, sizeof superblock);
    if (superblock.magic != kPoolMagic) continue;
    for (int i = 0; i < 16; ++i) superblock.uuid[i] = static_cast<std::uint8_t>(i);
    superblock.crc = 0;
    superblock.crc = Crc32c(&superblock, sizeof superblock);
    std::memcpy(at, &superblock, sizeof superblock);
  }
}

/// Enters the slots and items of the finished image.
void TakeStock(BasePool* pool) {
  Image image(pool);
  const TableView& table = image.table();
  pool->item_of_word.assign(pool->bytes.size() / 8, BasePool::kNothing);
  pool->slot_of_word.assign(pool->bytes.size() / 8, BasePool::kNothing);
  std::unordered_map<std::string, std::uint16_t> items;
  image.ForEachSlot([&](Slot slot, int level) {
    const auto number = static_cast<std::uint16_t>(pool->slots.size());
    const SlotPlace place{image.Offset(table.State(slot)),
                          table.key_words > 1 ? image.Offset(table.Key(slot)) : 0,
                          image.Offset(table.Reference(slot))};
    pool->slots.push_back(place);
    const std::uint64_t word = *table.State(slot);
    const bool addressable = level < 0 || !image.IsDrained(std::uint32_t(level));
    const bool valid =
        word != kEmptyState && !table.IsHalf(word, *table.Reference(slot), addressable);
    std::uint16_t item = BasePool::kNothing;
    if (valid) {
      pool->used.push_back(number);
      const std::string key = image.Key(slot);
      const auto [entry, added] = items.emplace(key, static_cast<std::uint16_t>(pool->keys.size()));
      item = entry->second;
      if (added) {
        const std::uint64_t reference = *table.Reference(slot);
        const auto* value = table.inline_values()
                                ? reinterpret_cast<const char*>(table.Reference(slot))
                                : reinterpret_cast<const char*>(table.Cell(reference));
        pool->keys.push_back(key);
        pool->values.emplace_back(value, table.value_size);
        pool->copied.push_back(false);
      } else {
        pool->copied[item] = true;
      }
    }
    const auto own = [&](std::uint64_t offset, std::uint64_t bytes, bool of_slot) {
      for (std::uint64_t w = offset / 8; w < (offset + bytes + 7) / 8; ++w) {
        if (of_slot) pool->slot_of_word[w] = number;
        pool->item_of_word[w] = item;
      }
    };
    own(place.state, 8, true);
    if (table.key_words > 1) own(place.key, 8 * table.key_words, true);
    own(place.reference, 8, true);
    if (valid && !table.inline_values()) own(*table.Reference(slot), table.value_size, false);
  });
}

BasePool Make(const Recipe& recipe) {
  const Workshop workshop;
  PoolConfig config;
  config.key_size = recipe.key_size;
  config.value_size = recipe.value_size;
  config.geometry = recipe.geometry;
  config.hash_seed[0] = 0x0123456789ABCDEF;
  config.hash_seed[1] = 0xFEDCBA9876543211;
  config.levels = test::LevelsFrom(recipe.geometry, recipe.newest);
  Pool::Create(workshop.path(), config, Pool::Options{.max_bytes = std::uint64_t{1} << 20});
  Fill(recipe, workshop.path());
  if (recipe.crashed) {
    const auto pool = Pool::Open(workshop.path(), Pool::Options{});
    pool->SetClean(false);
    for (std::uint32_t i = 0; i < recipe.new_levels; ++i) test::AddLevel(*pool);
  }

  BasePool pool;
  pool.name = recipe.name;
  pool.bytes = workshop.Read();
  FixIdentity(&pool.bytes);
  pool.in_force = ChooseSuperblock(pool.bytes.data(), pool.bytes.size(), pool.name);
  std::memcpy(&pool.superblock, pool.bytes.data() + pool.in_force * kSuperblockBytes,
              sizeof pool.superblock);
  pool.bytes.resize(UsedEnd(pool.superblock));
  if (recipe.new_levels > 0) LeaveHalfDrained(&pool);
  if (recipe.crashed) LeaveHalfDone(&pool);
  TakeStock(&pool);
  return pool;
}

}  // namespace

std::string BasePool::KeyIn(const std::vector<std::byte>& image, std::uint16_t slot) const {
  const SlotPlace& place = slots[slot];
  const auto text = [&](std::uint64_t offset, std::uint64_t length) {
    return offset + length <= image.size()
               ? std::string(reinterpret_cast<const char*>(image.data()) + offset, length)
               : std::string();
  };
  if (place.key != 0) return text(place.key, superblock.key_size);
  if (slot < superblock.geometry.slots) return test::MakeKey(0, 8);
  if (slot < 2u * superblock.geometry.slots) return test::MakeKey(test::kAllOnes, 8);
  return text(place.state, 8);
}

const std::vector<BasePool>& BasePools() {
  static const std::vector<BasePool> pools = [] {
    std::vector<BasePool> made;
    for (const Recipe& recipe : kRecipes) made.push_back(Make(recipe));
    return made;
  }();
  return pools;
}

}  // namespace gpm::fuzz
