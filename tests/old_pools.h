#ifndef GPM_TESTS_OLD_POOLS_H_
#define GPM_TESTS_OLD_POOLS_H_

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>

#include "pm/crc32c.h"
#include "pm/format.h"
#include "pm/superblock.h"

/// Pools of format versions 1 and 2, made from those of this version. Written from what
/// docs/FORMAT.md says of them, and not by the means of the upgrade.
namespace gpm::test {

/// Offsets in a superblock of version 1.
constexpr std::size_t kBottom1 = 72, kTop1 = 76, kSegmentCount1 = 80, kLevelOffset1 = 88,
                      kSegments1 = 408;

template <class Number>
void Put(std::string* bytes, std::size_t at, Number number) {
  std::memcpy(&(*bytes)[at], &number, sizeof number);
}

/// Makes the checksum of a superblock copy right.
inline void PutCrc(std::string* copy) {
  Put(copy, offsetof(Superblock, crc), std::uint32_t{0});
  Put(copy, offsetof(Superblock, crc), Crc32c(copy->data(), kSuperblockBytes));
}

/// A superblock copy of an old version. REQUIRES: for version 1, its levels have 2^i buckets
inline std::string OldCopy(const Superblock& superblock, std::uint32_t version) {
  std::string copy(reinterpret_cast<const char*>(&superblock), sizeof superblock);
  Put(&copy, offsetof(Superblock, version), version);
  if (version == 1) {
    std::fill(copy.begin() + kBottom1, copy.end(), '\0');
    const auto level_of = [&](std::uint32_t i) {
      EXPECT_TRUE(std::has_single_bit(superblock.levels[i].buckets));
      return static_cast<std::uint32_t>(std::countr_zero(superblock.levels[i].buckets));
    };
    Put(&copy, kBottom1, level_of(superblock.level_count - 1));
    Put(&copy, kTop1, level_of(0));
    for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
      Put(&copy, kLevelOffset1 + 8 * level_of(i), superblock.levels[i].offset);
    }
    Put(&copy, kSegmentCount1, superblock.segment_count);
    std::memcpy(&copy[kSegments1], superblock.segments, sizeof superblock.segments);
  }
  PutCrc(&copy);
  return copy;
}

/// Where a slot's words are in a bucket of an old version.
inline std::size_t OldState(std::uint32_t slot) { return 8 * slot; }
inline std::size_t OldReference(const Superblock& superblock, std::uint32_t slot) {
  const std::size_t keys = superblock.key_size > 8 ? superblock.key_size : 0;
  return (8 + keys) * superblock.geometry.slots + 8 * slot;
}

/// Calls visit(offset) for each bucket, those of the reserved level first.
template <class Visit>
void ForEachBucket(const Superblock& superblock, const Visit& visit) {
  const std::uint64_t bytes = BucketBytes(superblock.key_size, superblock.geometry);
  for (std::uint64_t b = 0; b < 2; ++b) visit(kReservedOffset + b * bytes);
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    for (std::uint64_t b = 0; b < superblock.levels[i].buckets; ++b) {
      visit(superblock.levels[i].offset + b * bytes);
    }
  }
}

/// The superblock in force of a pool of this version.
inline Superblock InForce(const std::string& pool) {
  const int copy =
      ChooseSuperblock(reinterpret_cast<const std::byte*>(pool.data()), pool.size(), "pool");
  Superblock superblock;
  std::memcpy(static_cast<void*>(&superblock), &pool[copy * kSuperblockBytes], sizeof superblock);
  return superblock;
}

/// The same pool of an old version. Some empty slots hold what such pools have in them: of a
/// crashed one the state INSERT, and any references.
inline std::string OldPool(const std::string& pool, std::uint32_t version,
                           std::mt19937_64& random) {
  const Superblock superblock = InForce(pool);
  const std::uint32_t slots = superblock.geometry.slots;
  const std::size_t key_size = superblock.key_size > 8 ? superblock.key_size : 0;
  const bool crashed = superblock.clean == 0;
  std::string old = pool;
  ForEachBucket(superblock, [&](std::size_t at) {
    for (std::uint32_t s = 0; s < slots; ++s) {
      std::uint64_t words[2];
      std::memcpy(words, &pool[at + 16 * s], sizeof words);
      if (words[0] == kEmptyState && random() % 4 == 0) {
        words[1] = random();
        if (crashed && random() % 2 == 0) words[0] = kInsertState;
      }
      Put(&old, at + OldState(s), words[0]);
      Put(&old, at + OldReference(superblock, s), words[1]);
    }
    std::memcpy(&old[at + 8 * slots], &pool[at + 16 * slots], key_size * slots);
  });
  for (const std::size_t at : {std::size_t{0}, std::size_t{kSuperblockBytes}}) {
    Superblock copy;
    std::memcpy(static_cast<void*>(&copy), &pool[at], sizeof copy);
    if (copy.magic == kPoolMagic) old.replace(at, kSuperblockBytes, OldCopy(copy, version));
  }
  return old;
}

}  // namespace gpm::test

#endif  // GPM_TESTS_OLD_POOLS_H_
