// Dash (Lu, Hao, Wang, Lo: "Dash: Scalable Hashing on Persistent Memory", VLDB 2020) on the CPU:
// segments of 64 buckets and 2 stash buckets of 256 bytes, with 14 items each and a byte of
// fingerprint for each of them. An item lies in its bucket, in the one behind it, or in a stash:
// inserts take the emptier of both (balanced insert), else move an item that has another place
// (displacement), else take a stash.
//
// Left out: splits of segments, with the directory over them and its recovery (so the table is made
// for at most 70% and doesn't grow), optimistic locks of buckets (a segment has one lock, which
// finds take as well), the fingerprints of a stash's items in their bucket (it has only their
// number), and flushes (as on PM with eADR).

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/peer.h"
#include "bench/pm_file.h"
#include "pm/thread_pool.h"
#include "table/hash.h"

namespace gpm::bench {
namespace {

constexpr unsigned kSlots = 14;
constexpr unsigned kNormal = 64;  ///< buckets
constexpr unsigned kStash = 2;
constexpr unsigned kItems = (kNormal + kStash) * kSlots;
constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15;
constexpr double kMaxFill = 0.7;

struct Item {
  std::uint64_t key;
  std::uint64_t cell;  ///< of its segment, with the value
};

/// An item is there when its bit of `used` is set, which is written last.
struct alignas(256) Bucket {
  std::atomic<std::uint16_t> used;
  std::uint16_t in_stash;  ///< items of this bucket that are in a stash
  std::uint8_t fingerprints[kSlots];
  std::uint8_t unused[14];
  Item items[kSlots];

  unsigned Count() const { return static_cast<unsigned>(std::popcount(used.load())); }
  bool IsFull() const { return Count() == kSlots; }
  /// @return kSlots: not there
  unsigned Find(std::uint64_t key, std::uint8_t fingerprint) const {
    for (unsigned rest = used.load(); rest != 0; rest &= rest - 1) {
      const auto slot = static_cast<unsigned>(std::countr_zero(rest));
      if (fingerprints[slot] == fingerprint && items[slot].key == key) return slot;
    }
    return kSlots;
  }
  /// REQUIRES: it is not full.
  void Add(Item item, std::uint8_t fingerprint) {
    const auto slot = static_cast<unsigned>(std::countr_one(used.load()));
    items[slot] = item;
    fingerprints[slot] = fingerprint;
    used.store(static_cast<std::uint16_t>(used.load() | 1u << slot), std::memory_order_release);
  }
  void Remove(unsigned slot) {
    used.store(static_cast<std::uint16_t>(used.load() & ~(1u << slot)), std::memory_order_release);
  }
};
static_assert(sizeof(Bucket) == 256);

/// Where a key is to be.
struct Place {
  std::uint64_t segment;
  unsigned bucket;
  std::uint8_t fingerprint;
};

/// In DRAM, beside a segment.
struct Volatile {
  std::atomic_flag lock;
  std::vector<std::uint16_t> free_cells;
};

class Lock {
 public:
  explicit Lock(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) flag_.wait(true);
  }
  ~Lock() {
    flag_.clear(std::memory_order_release);
    flag_.notify_one();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::atomic_flag& flag_;
};

class DashAdapter : public KvAdapter {
 public:
  explicit DashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        segments_(static_cast<std::uint64_t>(static_cast<double>(spec.items) /
                                             std::min(spec.fill, kMaxFill) / kItems) +
                  1),
        threads_(spec.threads),
        volatile_(segments_),
        pm_(segments_ * (kBucketBytes + std::uint64_t{kCells} * value_bytes_), PmFile::For::kCpu) {
    for (Volatile& segment : volatile_) {
      for (unsigned cell = 0; cell < kCells; ++cell) {
        segment.free_cells.push_back(static_cast<std::uint16_t>(cell));
      }
    }
  }

  std::uint64_t SlotCount() const override { return segments_ * kItems; }

  void Apply(const Batch& batch) override {
    const std::uint64_t n = batch.results.size();
    const std::uint64_t parts = threads_.threads();
    threads_.Run(parts, [&](std::uint64_t part) {
      const std::uint64_t last = n * (part + 1) / parts;
      for (std::uint64_t i = n * part / parts; i < last; ++i) {
        batch.results[i] = ApplyOne(batch, i);
      }
    });
  }

 private:
  static constexpr std::uint64_t kBucketBytes = (kNormal + kStash) * sizeof(Bucket);
  static constexpr unsigned kCells = kItems + 1;  ///< an update takes a new one

  Place PlaceOf(std::uint64_t key) const {
    const std::uint64_t mixed = Scramble(key ^ kSeed);
    return {(mixed >> 32) * segments_ >> 32, static_cast<unsigned>(mixed >> 8) % kNormal,
            static_cast<std::uint8_t>(mixed)};
  }
  Bucket* Buckets(std::uint64_t segment) const {
    return reinterpret_cast<Bucket*>(pm_.data() + segment * kBucketBytes);
  }
  std::byte* CellOf(std::uint64_t segment, std::uint64_t cell) const {
    return pm_.data() + segments_ * kBucketBytes + (segment * kCells + cell) * value_bytes_;
  }

  Result ApplyOne(const Batch& batch, std::uint64_t i) {
    const Op op = batch.ops.empty() ? batch.op : batch.ops[i];
    std::uint64_t key;
    std::memcpy(&key, &batch.keys[i * sizeof(key)], sizeof(key));
    const Place at = PlaceOf(key);
    Bucket* const buckets = Buckets(at.segment);
    Volatile& segment = volatile_[at.segment];
    const Lock lock(segment.lock);

    const unsigned places[] = {at.bucket, (at.bucket + 1) % kNormal, kNormal, kNormal + 1};
    const unsigned tried = buckets[at.bucket].in_stash != 0 ? 4 : 2;
    unsigned where = 0, slot = kSlots;
    for (unsigned k = 0; k < tried && slot == kSlots; ++k) {
      where = places[k];
      slot = buckets[where].Find(key, at.fingerprint);
    }
    const bool there = slot != kSlots;
    const auto write = [&] {
      const std::uint16_t cell = segment.free_cells.back();
      segment.free_cells.pop_back();
      std::memcpy(CellOf(at.segment, cell), &batch.values[i * value_bytes_], value_bytes_);
      std::atomic_thread_fence(std::memory_order_release);
      return cell;
    };
    switch (op) {
      case Op::kFind:
        if (!there) return Result::kNotFound;
        std::memcpy(&batch.found[i * value_bytes_],
                    CellOf(at.segment, buckets[where].items[slot].cell), value_bytes_);
        return Result::kOk;
      case Op::kErase:
        if (!there) return Result::kNotFound;
        buckets[where].Remove(slot);
        if (where >= kNormal) --buckets[at.bucket].in_stash;
        segment.free_cells.push_back(static_cast<std::uint16_t>(buckets[where].items[slot].cell));
        return Result::kOk;
      case Op::kInsert:
        if (there) return Result::kExists;
        break;
      case Op::kUpdate:
        if (!there) return Result::kNotFound;
        break;
      case Op::kUpsert:
        break;
      case Op::kFindOrInsert:
      case Op::kAccumulate:  // not measured
        return Result::kInvalid;
    }
    if (there) {
      std::uint64_t& cell = buckets[where].items[slot].cell;
      const std::uint64_t old = cell;
      cell = write();
      segment.free_cells.push_back(static_cast<std::uint16_t>(old));
      return Result::kOk;
    }
    Bucket* const target = MakeRoom(buckets, at.bucket);
    if (target == nullptr) return Result::kNoSpace;
    target->Add({key, write()}, at.fingerprint);
    if (target >= buckets + kNormal) ++buckets[at.bucket].in_stash;
    return Result::kOk;
  }

  /// @return a bucket with an empty slot, in which an item of bucket `home` may be, or null
  Bucket* MakeRoom(Bucket* buckets, unsigned home) const {
    const unsigned next = (home + 1) % kNormal;
    Bucket* const emptier = &buckets[buckets[home].Count() <= buckets[next].Count() ? home : next];
    if (!emptier->IsFull()) return emptier;
    // Items of `next` may go on, if they are at home there; those of `home`, back, if they are not.
    if (Displace(buckets, next, (next + 1) % kNormal, next)) return &buckets[next];
    const unsigned before = (home + kNormal - 1) % kNormal;
    if (Displace(buckets, home, before, before)) return &buckets[home];
    for (unsigned stash = kNormal; stash < kNormal + kStash; ++stash) {
      if (!buckets[stash].IsFull()) return &buckets[stash];
    }
    return nullptr;
  }

  /// Moves an item of which `owner` is the bucket: it is at both places before it is at one.
  bool Displace(Bucket* buckets, unsigned from, unsigned to, unsigned owner) const {
    if (buckets[to].IsFull()) return false;
    Bucket& bucket = buckets[from];
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      if (PlaceOf(bucket.items[slot].key).bucket != owner) continue;
      buckets[to].Add(bucket.items[slot], bucket.fingerprints[slot]);
      bucket.Remove(slot);
      return true;
    }
    return false;
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t segments_;
  ThreadPool threads_;
  std::vector<Volatile> volatile_;
  PmFile pm_;
};

const RegisteredPeer registered({.name = "dash",
                                 .can = {.kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert,
                                                   Op::kErase}},
                                 .make = MakePeer<DashAdapter>});

}  // namespace
}  // namespace gpm::bench
