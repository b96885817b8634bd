#ifndef GPM_TESTS_POOL_EDITOR_H_
#define GPM_TESTS_POOL_EDITOR_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pm/pool.h"
#include "table/layout.h"
#include "table/media/direct.h"

/// Edits the slots, levels and references of a closed pool, the way a crash would have left them.
namespace gpm::test {

/// A closed pool, open for editing.
class Editor {
 public:
  explicit Editor(const std::string& path) : pool_(Pool::Open(path, Pool::Options{})) {}

  Pool& pool() { return *pool_; }
  const Superblock& superblock() const { return pool_->superblock(); }
  TableView view() const { return MakeTableView(pool_->base(), superblock()); }

  /// Calls visit(slot) for every slot of a level.
  void ForEachSlot(std::uint32_t level, const std::function<void(Slot)>& visit) const {
    const TableView table = view();
    for (std::uint64_t number = 0; number < table.Buckets(level); ++number) {
      for (std::uint32_t s = 0; s < table.slots; ++s) visit(Slot{table.Bucket(level, number), s});
    }
  }

  std::uint32_t Oldest() const { return superblock().level_count - 1; }

  /// Slots of a level, or of all levels, in some state.
  std::vector<Slot> Slots(std::uint32_t level, bool occupied) const {
    std::vector<Slot> slots;
    ForEachSlot(level, [&](Slot slot) {
      if ((*view().State(slot) != kEmptyState) == occupied) slots.push_back(slot);
    });
    return slots;
  }
  std::vector<Slot> AllSlots(bool occupied) const {
    std::vector<Slot> all;
    for (std::uint32_t level = 0; level < superblock().level_count; ++level) {
      const std::vector<Slot> slots = Slots(level, occupied);
      all.insert(all.end(), slots.begin(), slots.end());
    }
    return all;
  }

  KeyBuffer Key(Slot slot) const {
    KeyBuffer key{};
    LoadSlotKey(view(), DirectMedia(Persist()), slot, *view().State(slot), key.words);
    return key;
  }

  /// Where an insert could put the key of an item: empty candidate slots in the addressable levels.
  std::vector<Slot> RoomFor(const KeyBuffer& key) const {
    const TableView table = view();
    const Candidates candidates = LocateKey(table, key.words);
    std::vector<Slot> room;
    for (std::uint32_t c = 0; c < table.candidate_buckets(); ++c) {
      std::byte* bucket = CandidateBucket(table, candidates, c);
      for (std::uint32_t s = 0; bucket != nullptr && s < table.slots; ++s) {
        if (*table.State({bucket, s}) == kEmptyState) room.push_back({bucket, s});
      }
    }
    return room;
  }

  /// Writes a valid item the way an insert does.
  void Place(Slot slot, const KeyBuffer& key, std::uint64_t reference) {
    const TableView table = view();
    if (table.key_words > 1) std::memcpy(table.Key(slot), key.words, 8 * table.key_words);
    *table.Reference(slot) = reference;
    *table.State(slot) = LocateKey(table, key.words).word;
  }
  /// As a slot is left that was freed; of a level that is being drained, by the state alone.
  void Erase(Slot slot) {
    *view().State(slot) = kEmptyState;
    const bool addressable = LevelOf(slot) < superblock().geometry.levels;
    if (addressable && !view().inline_values()) *view().Reference(slot) = 0;
  }

  /// A slot that was claimed and half written when the crash came.
  void PlantInsert(Slot slot, std::uint64_t garbage) {
    const TableView table = view();
    *table.State(slot) = kInsertState;
    if (table.key_words > 1) std::memset(table.Key(slot), 0xAB, 8 * table.key_words);
    *table.Reference(slot) = garbage;
  }

  /// References of cells that no slot names, of the levels or of the reserved one.
  std::vector<std::uint64_t> FreeCells() const {
    const TableView table = view();
    std::set<std::uint64_t> used;
    for (const Slot slot : AllSlots(true)) used.insert(*table.Reference(slot));
    for (const std::uint32_t bucket : {0u, 1u}) {
      for (std::uint32_t s = 0; s < table.slots; ++s) {
        const Slot slot{table.ReservedBucket(bucket), s};
        if (*table.State(slot) != kEmptyState) used.insert(*table.Reference(slot));
      }
    }
    std::vector<std::uint64_t> free;
    const std::uint64_t cell_bytes = pool_->cell_bytes();
    for (std::uint32_t i = 0; i < superblock().segment_count; ++i) {
      const SegmentEntry segment = superblock().segments[i];
      std::uint64_t at = RoundUp(segment.offset, cell_bytes);
      for (; at + cell_bytes <= segment.offset + segment.bytes; at += cell_bytes) {
        if (!used.contains(at)) free.push_back(at);
      }
    }
    return free;
  }

  /// Which of two places of one key counts: the newer level, then the lower bucket, then slot.
  bool Precedes(Slot a, Slot b) const {
    const std::uint32_t level_a = LevelOf(a);
    const std::uint32_t level_b = LevelOf(b);
    if (level_a != level_b) return level_a < level_b;
    return a.bucket != b.bucket ? a.bucket < b.bucket : a.index < b.index;
  }
  std::uint32_t LevelOf(Slot slot) const {
    for (std::uint32_t level = 0; level < superblock().level_count; ++level) {
      const std::byte* first = view().Bucket(level, 0);
      if (slot.bucket >= first && slot.bucket < view().Bucket(level, view().Buckets(level))) {
        return level;
      }
    }
    ADD_FAILURE() << "slot outside the levels";
    return 0;
  }
  std::uint64_t BucketOf(Slot slot) const {
    return static_cast<std::uint64_t>(slot.bucket - view().Bucket(LevelOf(slot), 0)) /
           pool_->bucket_bytes();
  }

 private:
  std::unique_ptr<Pool> pool_;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_POOL_EDITOR_H_
