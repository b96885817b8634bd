#include "tests/fuzz/damage.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "gpmstore/error.h"
#include "pm/crc32c.h"
#include "pm/pool.h"
#include "tests/test_util.h"

namespace gpm::fuzz {
namespace {

constexpr std::size_t kMaxPatches = 48;

/// The input's bytes one after another; zeros when it has no more.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::span<const std::uint8_t> rest() const { return rest_; }
  std::uint8_t Byte() { return static_cast<std::uint8_t>(Number(1)); }
  std::int8_t Delta() { return static_cast<std::int8_t>(Byte()); }
  std::uint64_t Number(std::size_t bytes) {
    std::uint64_t number = 0;
    const std::size_t there = std::min(bytes, rest_.size());
    std::memcpy(&number, rest_.data(), there);
    rest_ = rest_.subspan(there);
    return number;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

struct Field {
  std::size_t offset;
  std::size_t bytes;
};

/// The superblock's fields, but for the directories.
constexpr Field kFields[] = {
    {offsetof(Superblock, magic), 8},
    {offsetof(Superblock, version), 4},
    {offsetof(Superblock, crc), 4},
    {offsetof(Superblock, sequence), 8},
    {offsetof(Superblock, uuid), 8},
    {offsetof(Superblock, key_size), 4},
    {offsetof(Superblock, value_size), 4},
    {offsetof(Superblock, geometry) + 0, 1},
    {offsetof(Superblock, geometry) + 1, 1},
    {offsetof(Superblock, geometry) + 2, 1},
    {offsetof(Superblock, clean), 1},
    {offsetof(Superblock, reserved0), 4},
    {offsetof(Superblock, hash_seed), 8},
    {offsetof(Superblock, hash_seed) + 8, 8},
    {offsetof(Superblock, level_count), 4},
    {offsetof(Superblock, levels[0].buckets), 8},
    {offsetof(Superblock, segment_count), 4},
    {offsetof(Superblock, reserved1), 8},
    {offsetof(Superblock, padding), 8},
    {offsetof(Superblock, attributes), 8},
    {offsetof(Superblock, attributes) + 12, 8},
};

/// Numbers at which arithmetic and limits break.
constexpr std::uint64_t kEdges[] = {
    kEmptyState,
    kInsertState,
    kReservedWord,
    2,
    kMaxLevels - 1,
    kMaxLevels,
    kMaxSegments,
    kMaxSegments + 1,
    kMaxLevelBuckets + 1,
    kMaxValueBytes,
    kPageBytes - 1,
    kPageBytes,
    kReservedOffset,
    (std::uint64_t{1} << 31) - 1,
    std::uint64_t{1} << 31,
    (std::uint64_t{1} << 32) - 1,
    std::uint64_t{1} << 32,
    std::uint64_t{1} << 36,
    std::uint64_t{1} << 52,
    std::uint64_t{1} << 56,
    (std::uint64_t{1} << 56) + kPageBytes,
    (std::uint64_t{1} << 63) - 1,
    std::uint64_t{1} << 63,
    kInsertState - 1,
    kInsertState - kPageBytes + 1,
    kPoolMagic,
};

/// Applies an input's patches to an image.
class Patcher {
 public:
  Patcher(const BasePool& base, std::vector<std::byte>* image, Input* input)
      : base_(base), image_(*image), input_(*input) {}

  void Apply() {
    const std::uint8_t what = input_.Byte();
    how_ = what >> 4;
    switch (what & 15) {
      case 0: {
        const std::uint64_t copy = Copy();
        const Field field = kFields[input_.Byte() % std::size(kFields)];
        return Change(copy + field.offset, field.bytes);
      }
      case 1: {
        const std::uint64_t copy = Copy();
        const std::uint8_t which = input_.Byte();
        const std::uint64_t entry = (which & 127) % kMaxLevels;
        return Change(copy + offsetof(Superblock, levels) + 16 * entry + (which & 128 ? 8 : 0), 8);
      }
      case 2: {
        const std::uint64_t copy = Copy();
        const std::uint8_t which = input_.Byte();
        const std::uint64_t entry = (which & 63) % kMaxSegments;
        if ((which & 64) != 0) Put(copy + offsetof(Superblock, segment_count), 4, entry + 1);
        return Change(copy + offsetof(Superblock, segments) + 16 * entry + (which & 128 ? 8 : 0),
                      8);
      }
      case 3:
        return Change(UsedSlot().state, 8);
      case 4: {
        const SlotPlace place = UsedSlot();
        const std::uint64_t word = input_.Byte() % (base_.superblock.key_size / 8);
        return Change(place.key == 0 ? place.state : place.key + 8 * word, 8);
      }
      case 5:
        return Change(UsedSlot().reference, 8);
      case 6:
        return Change(AnySlot().state, 8);
      case 7:
        return Change(Anywhere() / 8 * 8, 8);
      case 8:
        return Change(Anywhere(), 1);
      case 9: {
        const SlotPlace from = UsedSlot();
        return CopySlot(from, AnySlot());
      }
      case 10:
        return PlantItem(AnySlot());
      case 11: {
        const std::uint64_t from = Copy();
        const std::uint64_t to = kSuperblockBytes - from;
        const std::uint64_t sequence = Get(from + offsetof(Superblock, sequence), 8);
        Move(from, to, kSuperblockBytes);
        return Put(to + offsetof(Superblock, sequence), 8,
                   sequence + static_cast<std::uint64_t>(std::int64_t{input_.Delta()}));
      }
      case 12: {
        const std::uint64_t first = input_.Number(2);
        const std::uint64_t count = input_.Byte() % 64;
        if (base_.slots.empty()) return;
        const std::uint64_t value = Value(0);
        for (std::uint64_t i = 0; i < count; ++i) {
          Put(base_.slots[(first + i) % base_.slots.size()].state, 8, value + i * (how_ & 1));
        }
        return;
      }
      case 13: {
        const std::uint64_t from = kPageBytes * (input_.Byte() % Pages());
        return Move(from, kPageBytes * (input_.Byte() % Pages()), kPageBytes);
      }
      case 14: {
        const SlotPlace a = UsedSlot();
        const SlotPlace b = UsedSlot();
        const std::uint64_t reference = Get(a.reference, 8);
        Put(a.reference, 8, Get(b.reference, 8));
        return Put(b.reference, 8, reference);
      }
      default: {  // a value cell
        const std::uint64_t reference = Get(UsedSlot().reference, 8);
        return Change(reference + input_.Byte(), 8);
      }
    }
  }

 private:
  std::uint64_t Pages() const { return std::max<std::uint64_t>(image_.size() / kPageBytes, 1); }
  std::uint64_t Anywhere() { return input_.Number(3) % std::max<std::uint64_t>(image_.size(), 1); }

  /// Offset of a superblock copy.
  std::uint64_t Copy() {
    const std::uint8_t which = input_.Byte() % 4;
    const int copy = which < 2 ? which : which == 2 ? base_.in_force : 1 - base_.in_force;
    return static_cast<std::uint64_t>(copy) * kSuperblockBytes;
  }
  SlotPlace UsedSlot() {
    const std::uint64_t number = input_.Byte();
    return base_.used.empty() ? base_.slots[number % base_.slots.size()]
                              : base_.slots[base_.used[number % base_.used.size()]];
  }
  SlotPlace AnySlot() { return base_.slots[input_.Number(2) % base_.slots.size()]; }

  std::uint64_t Get(std::uint64_t offset, std::size_t bytes) const {
    std::uint64_t value = 0;
    if (offset < image_.size() && image_.size() - offset >= bytes) {
      std::memcpy(&value, image_.data() + offset, bytes);
    }
    return value;
  }
  void Put(std::uint64_t offset, std::size_t bytes, std::uint64_t value) {
    if (offset < image_.size() && image_.size() - offset >= bytes) {
      std::memcpy(image_.data() + offset, &value, bytes);
    }
  }
  void Change(std::uint64_t offset, std::size_t bytes) {
    Put(offset, bytes, Value(Get(offset, bytes)));
  }
  void Move(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    if (from + bytes <= image_.size() && to + bytes <= image_.size()) {
      std::memmove(image_.data() + to, image_.data() + from, bytes);
    }
  }
  void CopySlot(const SlotPlace& from, const SlotPlace& to) {
    Move(from.state, to.state, 8);
    if (from.key != 0) Move(from.key, to.key, base_.superblock.key_size);
    Move(from.reference, to.reference, 8);
  }

  /// A key that an item has, or one that the operations insert.
  std::string SomeKey() {
    const std::uint8_t number = input_.Byte();
    if (number < 128 && !base_.keys.empty()) return base_.keys[number % base_.keys.size()];
    return test::MakeKey(number, base_.superblock.key_size);
  }
  Candidates Locate(const std::string& key) const {
    const TableView table = MakeTableView(nullptr, base_.superblock);
    KeyBuffer words{};
    std::memcpy(words.words, key.data(), key.size());
    return LocateKey(table, words.words);
  }
  /// An item with the right word, wherever it is.
  void PlantItem(const SlotPlace& place) {
    const std::string key = SomeKey();
    Put(place.state, 8, Locate(key).word);
    if (place.key != 0 && place.key + key.size() <= image_.size()) {
      std::memcpy(image_.data() + place.key, key.data(), key.size());
    }
    Change(place.reference, 8);
  }

  /// @param current what is there
  std::uint64_t Value(std::uint64_t current) {
    const auto signed_delta = [&] {
      return static_cast<std::uint64_t>(std::int64_t{input_.Delta()});
    };
    switch (how_) {
      case 0:
        return input_.Number(8);
      case 1:
        return input_.Byte();
      case 2:
        return current + signed_delta();
      case 3:
        return current ^ (std::uint64_t{1} << (input_.Byte() % 64));
      case 4:
        return kEdges[input_.Byte() % std::size(kEdges)];
      case 5:
        return kPageBytes * input_.Byte();
      case 6:
        return Locate(SomeKey()).word;
      case 7:
        return Get(UsedSlot().reference, 8);
      case 8:
        return image_.size() + kPageBytes * signed_delta();
      case 9:
        return current + kPageBytes * signed_delta();
      case 10: {  // some cell, perhaps one that is free
        const std::uint64_t cell_bytes = CellBytes(base_.superblock.value_size);
        return cell_bytes * (input_.Number(2) % (image_.size() / cell_bytes + 2));
      }
      case 11:
        return std::uint64_t{1} << (input_.Byte() % 64);
      case 12:
        return ~current;
      case 13:
        return test::Mix(input_.Byte());
      default:
        return input_.Number(4);
    }
  }

  const BasePool& base_;
  std::vector<std::byte>& image_;
  Input& input_;
  int how_ = 0;
};

void FixCrc(std::vector<std::byte>* image, int copy) {
  if (image->size() < (copy + 1) * kSuperblockBytes) return;
  Superblock superblock;
  std::byte* const at = image->data() + copy * kSuperblockBytes;
  std::memcpy(&superblock, at, sizeof superblock);
  superblock.crc = 0;
  superblock.crc = Crc32c(&superblock, sizeof superblock);
  std::memcpy(at, &superblock, sizeof superblock);
}

void ChangeSize(std::vector<std::byte>* image, std::uint8_t change) {
  const std::uint64_t pages = change >> 3;
  switch (change & 7) {
    case 4:
      return image->resize(std::min(image->size(), pages * kPageBytes));
    case 5:
      return image->resize(image->size() - std::min<std::uint64_t>(image->size(), pages + 1));
    case 6:
      return image->resize(image->size() + pages * kPageBytes);
    case 7:
      return image->resize(image->size() + pages * kPageBytes + change, std::byte{0xA5});
    default:
      return;
  }
}

/// Whether two superblocks describe the same table; they may differ in whether it was closed.
bool SameTable(const Superblock& a, const Superblock& b) {
  return a.key_size == b.key_size && a.value_size == b.value_size && a.geometry == b.geometry &&
         std::equal(a.hash_seed, a.hash_seed + 2, b.hash_seed) && a.level_count == b.level_count &&
         a.segment_count == b.segment_count &&
         std::memcmp(a.levels, b.levels, sizeof a.levels) == 0 &&
         std::memcmp(a.segments, b.segments, a.segment_count * sizeof(SegmentEntry)) == 0;
}

/// Finds what a damaged image keeps of its base.
void Compare(Damage* damage) {
  const BasePool& base = *damage->base;
  const std::vector<std::byte>& image = damage->image;
  std::array<std::byte, 2 * kSuperblockBytes> copies{};
  std::copy_n(image.begin(), std::min(image.size(), copies.size()), copies.begin());
  Superblock superblock;
  try {
    const int in_force = ChooseSuperblock(copies.data(), image.size(), "image");
    std::memcpy(&superblock, copies.data() + in_force * kSuperblockBytes, sizeof superblock);
  } catch (const Error&) {
    return;
  }
  damage->table_intact = SameTable(superblock, base.superblock);
  if (!damage->table_intact) return;
  const std::size_t bytes = std::min(image.size(), base.bytes.size());
  const auto touch_word = [&](std::size_t word) {
    if (const std::uint16_t item = base.item_of_word[word]; item != BasePool::kNothing) {
      damage->touched.insert(base.keys[item]);
    }
    if (const std::uint16_t slot = base.slot_of_word[word]; slot != BasePool::kNothing) {
      damage->touched.insert(base.KeyIn(image, slot));
    }
  };
  for (std::size_t page = 2 * kSuperblockBytes; page < bytes; page += kPageBytes) {
    const std::size_t end = std::min(page + kPageBytes, bytes);
    if (std::memcmp(image.data() + page, base.bytes.data() + page, end - page) == 0) continue;
    for (std::size_t at = page; at < end; at += 8) {
      const std::size_t count = std::min<std::size_t>(8, end - at);
      if (std::memcmp(image.data() + at, base.bytes.data() + at, count) != 0) touch_word(at / 8);
    }
  }
  // Second copies in a pool that claims to have none are not looked for.
  for (std::size_t item = 0; item < base.keys.size() && superblock.clean != 0; ++item) {
    if (base.copied[item]) damage->touched.insert(base.keys[item]);
  }
}

}  // namespace

Damage ReadDamage(std::span<const std::uint8_t> bytes) {
  Input input(bytes);
  Damage damage;
  const std::vector<BasePool>& bases = BasePools();
  damage.base = &bases[input.Byte() % bases.size()];
  const std::uint8_t flags = input.Byte();
  damage.seed = input.Byte();
  const std::uint8_t size = input.Byte();
  damage.tight = (flags & kTight) != 0;
  damage.crash = (flags & kCrash) != 0;
  damage.volume = static_cast<Volume>(flags >> 6);
  damage.image = damage.base->bytes;
  if ((flags & kRaw) != 0) {
    const auto rest = input.rest();
    damage.image.resize(std::max(damage.image.size(), rest.size()));
    if (!rest.empty()) std::memcpy(damage.image.data(), rest.data(), rest.size());
  } else {
    Patcher patcher(*damage.base, &damage.image, &input);
    for (std::size_t i = 0; i < kMaxPatches && !input.empty(); ++i) patcher.Apply();
  }
  if ((flags & kFixCrcA) != 0) FixCrc(&damage.image, 0);
  if ((flags & kFixCrcB) != 0) FixCrc(&damage.image, 1);
  ChangeSize(&damage.image, size);
  Compare(&damage);
  return damage;
}

}  // namespace gpm::fuzz
