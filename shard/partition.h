#ifndef GPM_SHARD_PARTITION_H_
#define GPM_SHARD_PARTITION_H_

#include <cstddef>
#include <cstdint>

#include "table/hash.h"
#include "table/key_rows.h"

namespace gpm {

/// Which shard a key belongs to. The seed is the manifest's, and each pool has a seed of its own,
/// so where a key is says nothing of the buckets that it has there. Host and device compute the
/// same.
struct Partition {
  std::uint64_t seed[2] = {};
  std::uint32_t shards = 1;  ///< at least 1

  /// @param key `key_size` bytes, 1 to kMaxKeyBytes, at any alignment @return below `shards`
  GPM_HD std::uint32_t Of(const std::byte* key, std::uint32_t key_size) const {
    return OfHash(HashOf(key, key_size));
  }
  GPM_HD KeyHash HashOf(const std::byte* key, std::uint32_t key_size) const {
    std::uint64_t words[KeyWords(kMaxKeyBytes)];
    const std::uint32_t count = KeyWords(key_size);
    for (std::uint32_t i = 0; i < count; ++i) {
      words[i] = LoadWord(key + 8 * i, key_size - 8 * i);
    }
    return HashKey(seed, words, count);
  }
  /// @param hash HashKey of the key's words, with `seed`
  GPM_HD std::uint32_t OfHash(const KeyHash& hash) const {
    // The high bits, which are as even as all: no division.
    return static_cast<std::uint32_t>((hash.h >> 32) * shards >> 32);
  }

 private:
  /// PaddedWord, by one access where the host can.
  GPM_HD static std::uint64_t LoadWord(const std::byte* row, std::uint32_t bytes) {
#ifndef __CUDA_ARCH__
    if (bytes >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, row, sizeof word);
      return word;
    }
#endif
    return PaddedWord(row, bytes);
  }
};

}  // namespace gpm

#endif  // GPM_SHARD_PARTITION_H_
