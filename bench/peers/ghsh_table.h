#ifndef GPM_BENCH_PEERS_GHSH_TABLE_H_
#define GPM_BENCH_PEERS_GHSH_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/shared_words.h"
#include "gpmstore/options.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

/// GHSH's super nodes, and what a warp does with them (Ren et al. 2021, sections 3, 4.2 and 5; what
/// is left out: ghsh.cu). Written for a `Warp` of 32 lanes, which a kernel has (DeviceWarp) and a
/// test has, too:
///
///     warp.Load(row)          32 words, one a lane
///     warp.LoadSome(row, n)   the same of n of them at most, that no other thread writes
///     warp.Map(words, f)      f(word), one a lane
///     warp.Set(&words, lane, w)  makes w a lane's word
///     warp.Match(words, w)    those of the first 31 lanes that are w, as bits
///     warp.MatchEach(words, wanted, n)  the same for each of the first n lanes' `wanted`, in it
///     warp.Some(words)        lanes whose word is not 0, as bits
///     warp.At(words, lane)    one lane's word, for all
///     warp.Leader(f)          f() by one lane; its result, for all
///     warp.Each(n, f)         f(i) for i < n, dealt out to lanes; what they wrote is then seen
///     warp.EachOf(bits, words, f)  f(word, place among them) by each lane of these
///
/// Keys are words of 8 bytes, whose values are cells that references name; or, as in the paper, of
/// 4, whose values are of 4 bytes, too, and are in a reference's place.
namespace gpm::bench::peers::ghsh {

inline constexpr std::uint32_t kSlots = 31;  ///< of a node
inline constexpr std::uint32_t kNextLane = 31;
inline constexpr std::uint32_t kMaxDimensions = 2;  ///< of a subspace
inline constexpr std::uint32_t kMaxSpaces = 1 + kMaxAttributes / kMaxDimensions;
template <class Key>
inline constexpr Key kEmpty = ~Key{0};  ///< no key: a free slot
template <class Key>
inline constexpr Key kClaimed = Key{~Key{1}};         ///< no key: a slot that is filled now
inline constexpr std::uint32_t kSwapLock = 1u << 31;  ///< of a reference

/// A key node, a node of references to values (or of values), and a node for each attribute: words
/// of 31 items and, in the last lane, the super node that is next in the chain, or 0. All bytes of
/// a new one are 0xFF, so that its slots are free.
template <class Key>
struct SuperNode {
  static constexpr std::uint64_t kNodeBytes = 128;
  static constexpr std::uint64_t kKeyBytes = 32 * sizeof(Key);
  static constexpr std::uint64_t Bytes(std::uint32_t dimensions) {
    return kKeyBytes + kNodeBytes * (1 + dimensions);
  }

  std::byte* memory;

  GPM_HD Key* keys() const { return reinterpret_cast<Key*>(memory); }
  GPM_HD std::uint32_t* references() const {
    return reinterpret_cast<std::uint32_t*>(memory + kKeyBytes);
  }
  GPM_HD std::uint32_t* numbers(std::uint32_t dimension) const {
    return reinterpret_cast<std::uint32_t*>(memory + kKeyBytes + kNodeBytes * (1 + dimension));
  }
};

/// Where a number is on a dimension that is divided into `side` parts.
GPM_HD inline std::uint64_t Coordinate(std::uint64_t number, std::uint32_t dimension,
                                       std::uint64_t side) {
  return (Scramble(number + (dimension + 1) * 0x9E3779B97F4A7C15ull) >> 32) * side >> 32;
}

/// An item as a subspace has it.
template <class Key>
struct Copy {
  Key key;
  std::uint32_t reference;  ///< the cell of its value, or the value
  std::uint32_t numbers[kMaxDimensions];
};

/// A hyperspace of few dimensions, in which all items are. Dimension d is attribute attributes[d];
/// a subspace of no attribute is the index of keys.
template <class Key>
struct Space {
  std::uint32_t* heads;  ///< of each bucket: the first super node of its chain, or 0
  Cells nodes;           ///< super nodes
  std::uint64_t side;    ///< B, below 2^29
  std::uint32_t dimensions;
  std::uint32_t attributes[kMaxDimensions];

  /// Buckets that a search by one attribute goes to: B to the power of dimensions - 1.
  GPM_HD std::uint64_t BucketsOfSearch() const {
    std::uint64_t buckets = 1;
    for (std::uint32_t d = 1; d < dimensions; ++d) buckets *= side;
    return buckets;
  }
  GPM_HD std::uint64_t Buckets() const { return side * BucketsOfSearch(); }
  GPM_HD std::uint64_t BucketOf(const Copy<Key>& copy) const {
    if (dimensions == 0) return Coordinate(copy.key, kMaxAttributes, side);
    std::uint64_t bucket = 0;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      bucket = bucket * side + Coordinate(copy.numbers[d], attributes[d], side);
    }
    return bucket;
  }
  /// The i-th bucket with a coordinate on a dimension.
  GPM_HD std::uint64_t BucketOfSearch(std::uint32_t dimension, std::uint64_t coordinate,
                                      std::uint64_t i) const {
    std::uint64_t below = 1;  // buckets that differ in the dimensions behind alone
    for (std::uint32_t d = dimension + 1; d < dimensions; ++d) below *= side;
    return (i / below * side + coordinate) * below + i % below;
  }
  GPM_HD SuperNode<Key> NodeAt(std::uint32_t number) const { return {nodes.AddressOf(number)}; }

  /// By one thread; the slot is the caller's.
  GPM_HD void Write(const SuperNode<Key>& node, std::uint32_t slot, const Copy<Key>& copy) const {
    for (std::uint32_t d = 0; d < dimensions; ++d)
      StoreWord(&node.numbers(d)[slot], copy.numbers[d]);
    StoreWord(&node.references()[slot], copy.reference);
  }
  /// Makes another super node the next one, for the walks by keys and by each attribute.
  GPM_HD void Chain(const SuperNode<Key>& node, std::uint32_t next) const {
    StoreWord(&node.keys()[kNextLane], Key{next});
    for (std::uint32_t d = 0; d < dimensions; ++d) StoreWord(&node.numbers(d)[kNextLane], next);
  }
};

/// Where a walk found a key.
template <class Key>
struct Place {
  SuperNode<Key> node{};
  std::uint32_t slot = kSlots;  ///< kSlots: nowhere
  GPM_HD bool there() const { return slot != kSlots; }
};

/// Puts a copy into its bucket (algorithm 1). A full chain gets a new super node, and that in
/// front, as in bulk-build: one compare-and-swap makes it part of the chains of all attributes at
/// once. Takes one super node at most. REQUIRES: the key is not there.
template <class Warp, class Key>
GPM_HD void InsertCopy(const Warp& warp, const Space<Key>& space, const Copy<Key>& copy) {
  std::uint32_t* const head = &space.heads[space.BucketOf(copy)];
  std::uint32_t spare = 0;  // a super node with the copy in its first slot
  for (;;) {
    const std::uint32_t first = warp.Leader([&] { return LoadWord(head); });
    Fence();
    for (std::uint32_t number = first; number != 0;) {
      const SuperNode<Key> node = space.NodeAt(number);
      const auto keys = warp.Load(node.keys());
      const std::uint32_t empty = warp.Match(keys, kEmpty<Key>);
      if (empty == 0) {
        number = static_cast<std::uint32_t>(warp.At(keys, kNextLane));
        continue;
      }
      const std::uint32_t slot = LowestBit(empty);
      const bool won = warp.Leader([&] {
        if (!Cas(&node.keys()[slot], kEmpty<Key>, kClaimed<Key>)) return false;
        space.Write(node, slot, copy);
        Fence();
        StoreWord(&node.keys()[slot], copy.key);
        if (spare != 0) {  // another warp was first to make room, and there was some left
          StoreWord(&space.NodeAt(spare).keys()[0], kEmpty<Key>);
          Fence();
          space.nodes.Give(spare);
        }
        return true;
      });
      if (won) return;  // else the node is looked at once more: its slot has just been taken
    }
    spare = warp.Leader([&] {
      if (spare != 0) return spare;
      const std::uint32_t taken = space.nodes.Take();
      space.Write(space.NodeAt(taken), 0, copy);
      StoreWord(&space.NodeAt(taken).keys()[0], copy.key);
      return taken;
    });
    const bool linked = warp.Leader([&] {
      space.Chain(space.NodeAt(spare), first);
      Fence();
      return Cas(head, first, spare);
    });
    if (linked) return;
  }
}

/// Looks for a key in a bucket (algorithm 2).
template <class Warp, class Key>
GPM_HD Place<Key> FindCopy(const Warp& warp, const Space<Key>& space, std::uint64_t bucket,
                           Key key) {
  std::uint32_t number = warp.Leader([&] { return LoadWord(&space.heads[bucket]); });
  while (number != 0) {
    Fence();
    const SuperNode<Key> node = space.NodeAt(number);
    const auto keys = warp.Load(node.keys());
    const std::uint32_t match = warp.Match(keys, key);
    if (match != 0) {
      Fence();
      return {node, LowestBit(match)};
    }
    number = static_cast<std::uint32_t>(warp.At(keys, kNextLane));
  }
  return {};
}

/// What kernels see of a table: the index of keys, and subspaces of attributes, each of which has
/// all items. Operations of a batch on different keys, or of which none erases, may run at once.
template <class Key>
struct Table {
  static constexpr bool kInPlace = sizeof(Key) == 4;  ///< values; there are no attributes then

  Space<Key> spaces[kMaxSpaces];  ///< the first is the index of keys
  std::uint32_t space_count;
  Cells values;                            ///< unless they are in place
  std::uint32_t value_bytes;               ///< a multiple of 8, or 4 in place
  std::uint32_t offsets[kMaxAttributes];   ///< of attributes in the value
  std::uint32_t space_of[kMaxAttributes];  ///< of attributes: their subspace, 0: there is none
  std::uint32_t dimension_of[kMaxAttributes];

  GPM_HD static bool IsReserved(Key key) { return key >= kClaimed<Key>; }

  GPM_HD Copy<Key> CopyOf(const Space<Key>& space, Key key, std::uint32_t reference) const {
    Copy<Key> copy{key, reference, {}};
    for (std::uint32_t d = 0; d < space.dimensions; ++d) {
      copy.numbers[d] = LoadWord(reinterpret_cast<const std::uint32_t*>(
          values.AddressOf(reference) + offsets[space.attributes[d]]));
    }
    return copy;
  }

  /// @param reference to its value REQUIRES: no item has the key. It is found when all its copies
  /// are there.
  template <class Warp>
  GPM_HD void Insert(const Warp& warp, Key key, std::uint32_t reference) const {
    for (std::uint32_t s = space_count; s-- > 0;) {
      InsertCopy(warp, spaces[s], CopyOf(spaces[s], key, reference));
    }
  }

  /// @return its reference, null: it is not there
  template <class Warp>
  GPM_HD const std::uint32_t* Find(const Warp& warp, Key key) const {
    const Place<Key> place = FindKey(warp, key);
    return place.there() ? &place.node.references()[place.slot] : nullptr;
  }

  /// Finds the keys of `count` lanes, the nodes of several side by side: so their latencies do not
  /// add up (the paper's section 6.5: memory latencies are hidden, as all operations are there).
  /// @return references, null: not there REQUIRES: no operation runs beside it.
  template <class Warp, class Keys>
  GPM_HD auto FindEach(const Warp& warp, const Keys& keys, std::uint32_t count) const {
    constexpr std::uint32_t kAtOnce = 8;
    const Space<Key>& space = spaces[0];
    const auto heads = warp.Map(keys, [&](Key key) {
      return IsReserved(key) ? 0 : LoadWord(&space.heads[space.BucketOf({key, 0, {}})]);
    });
    auto places = warp.Map(keys, [](Key) { return static_cast<const std::uint32_t*>(nullptr); });
    for (std::uint32_t first = 0; first < count; first += kAtOnce) {
      Keys nodes[kAtOnce]{};
      std::uint32_t numbers[kAtOnce];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        numbers[k] = first + k < count ? warp.At(heads, first + k) : 0;
        if (numbers[k] != 0) nodes[k] = warp.Load(space.NodeAt(numbers[k]).keys());
      }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        if (numbers[k] == 0) continue;
        const Key key = warp.At(keys, first + k);
        std::uint32_t number = numbers[k];
        std::uint32_t match = warp.Match(nodes[k], key);
        for (Keys node = nodes[k]; match == 0;) {
          number = static_cast<std::uint32_t>(warp.At(node, kNextLane));
          if (number == 0) break;
          node = warp.Load(space.NodeAt(number).keys());
          match = warp.Match(node, key);
        }
        if (match == 0) continue;
        const std::uint32_t* const place = &space.NodeAt(number).references()[LowestBit(match)];
        warp.Set(&places, first + k, place);
      }
    }
    return places;
  }

  /// What a reference says, without a lock. @return 0: an item that is being erased; any, in place
  GPM_HD static std::uint32_t Refer(const std::uint32_t* reference) {
    return kInPlace ? LoadWord(reference) : LoadWord(reference) & ~kSwapLock;
  }

  /// Modifies an item (algorithm 3). Where its bucket changes, the new copy comes before the old
  /// one goes (temporary repeated read): who searches meanwhile finds one of them, or both. Without
  /// attributes nobody locks it: one atomic operation changes the reference (section 4.2.3).
  /// @param reference to its new value @param freed a cell that is free now, or 0
  template <class Warp>
  GPM_HD bool Update(const Warp& warp, Key key, std::uint32_t reference,
                     std::uint32_t* freed) const {
    *freed = kInPlace ? 0 : reference;
    if (space_count == 1) {
      const Place<Key> place = FindKey(warp, key);
      if (!place.there()) return false;
      const std::uint32_t old = warp.Leader([&] {
        Fence();
        return Exchange(&place.node.references()[place.slot], reference);
      });
      if (!kInPlace) *freed = old;
      return true;
    }
    std::uint32_t old = 0;
    const Place<Key> place = Lock(warp, key, &old);
    if (!place.there()) return false;
    for (std::uint32_t s = 1; s < space_count; ++s) {
      const Space<Key>& space = spaces[s];
      const Copy<Key> old_copy = CopyOf(space, key, old);
      const Copy<Key> copy = CopyOf(space, key, reference);
      const std::uint64_t old_bucket = space.BucketOf(old_copy);
      if (space.BucketOf(copy) != old_bucket) {
        InsertCopy(warp, space, copy);
        EraseCopy(warp, space, old_bucket, key);
        continue;
      }
      const Place<Key> same = FindCopy(warp, space, old_bucket, key);
      warp.Leader([&] {
        if (same.there()) space.Write(same.node, same.slot, copy);
        return true;
      });
    }
    warp.Leader([&] {
      Fence();
      StoreWord(&place.node.references()[place.slot], reference);  // and unlocks
      return true;
    });
    *freed = old;
    return true;
  }

  /// @param freed the cell of its value, or 0
  template <class Warp>
  GPM_HD bool Erase(const Warp& warp, Key key, std::uint32_t* freed) const {
    *freed = 0;
    if constexpr (kInPlace) {
      const Place<Key> place = FindKey(warp, key);
      return place.there() &&
             warp.Leader([&] { return Cas(&place.node.keys()[place.slot], key, kEmpty<Key>); });
    } else {
      std::uint32_t cell = 0;
      const Place<Key> place = Lock(warp, key, &cell);
      if (!place.there()) return false;
      for (std::uint32_t s = 1; s < space_count; ++s) {
        EraseCopy(warp, spaces[s], spaces[s].BucketOf(CopyOf(spaces[s], key, cell)), key);
      }
      warp.Leader([&] {
        // The reference first: a free slot is another's at once.
        StoreWord(&place.node.references()[place.slot], 0u);
        Fence();
        StoreWord(&place.node.keys()[place.slot], kEmpty<Key>);
        return true;
      });
      *freed = cell;
      return true;
    }
  }

 private:
  template <class Warp>
  GPM_HD Place<Key> FindKey(const Warp& warp, Key key) const {
    return FindCopy(warp, spaces[0], spaces[0].BucketOf({key, 0, {}}), key);
  }
  template <class Warp>
  GPM_HD static void EraseCopy(const Warp& warp, const Space<Key>& space, std::uint64_t bucket,
                               Key key) {
    const Place<Key> place = FindCopy(warp, space, bucket, key);
    warp.Leader([&] {
      if (place.there()) StoreWord(&place.node.keys()[place.slot], kEmpty<Key>);
      return true;
    });
  }

  /// Takes the lock of an item, and waits for who has it. @param cell that its value is in
  template <class Warp>
  GPM_HD Place<Key> Lock(const Warp& warp, Key key, std::uint32_t* cell) const {
    for (;;) {
      const Place<Key> place = FindKey(warp, key);
      if (!place.there()) return place;
      std::uint32_t* const word = &place.node.references()[place.slot];
      const std::uint32_t reference = warp.Leader([&] { return LoadWord(word); });
      if (reference == 0) return {};  // erased
      const bool locked = warp.Leader([&] {
        if ((reference & kSwapLock) != 0 || !Cas(word, reference, reference | kSwapLock)) {
          return false;
        }
        Fence();
        if (LoadWord(&place.node.keys()[place.slot]) == key) return true;
        StoreWord(word, reference);  // the slot has come to another item meanwhile
        return false;
      });
      Fence();
      if (!locked) continue;
      *cell = reference;
      return place;
    }
  }
};

}  // namespace gpm::bench::peers::ghsh

#endif  // GPM_BENCH_PEERS_GHSH_TABLE_H_
