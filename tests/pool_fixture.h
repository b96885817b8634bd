#ifndef GPM_TESTS_POOL_FIXTURE_H_
#define GPM_TESTS_POOL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "pm/crc32c.h"
#include "pm/pool.h"
#include "pm/space.h"
#include "tests/all_zero.h"
#include "tests/files.h"
#include "tests/test_util.h"

/// What the tests of pools share.
namespace gpm::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;

/// A copy of the superblock in a pool's file: 0 is A, 1 is B.
inline Superblock CopyOf(const std::string& file, int copy) {
  Superblock superblock;
  std::memcpy(&superblock, file.data() + copy * kSuperblockBytes, sizeof superblock);
  return superblock;
}

/// Puts a copy there, with its right checksum.
inline void PutCopy(std::string* file, int copy, Superblock superblock) {
  superblock.crc = 0;
  superblock.crc = Crc32c(&superblock, sizeof superblock);
  std::memcpy(file->data() + copy * kSuperblockBytes, &superblock, sizeof superblock);
}

inline bool SameBytes(const Superblock& a, const Superblock& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// @param newest buckets of the newest level
inline PoolConfig Config(std::uint32_t value_size = 100, std::uint64_t newest = 16) {
  PoolConfig config;
  config.value_size = value_size;
  config.hash_seed[0] = 17;
  config.hash_seed[1] = 19;
  config.levels = {newest, newest / 2};
  return config;
}

/// Cells of all value segments.
inline std::uint64_t CellsOf(const Pool& pool) {
  std::uint64_t cells = 0;
  for (std::uint32_t i = 0; i < pool.superblock().segment_count; ++i) {
    const SegmentEntry& segment = pool.superblock().segments[i];
    cells += CellsIn(Extent{segment.offset, segment.bytes}, pool.cell_bytes());
  }
  return cells;
}

class PoolFileTest : public PoolTest {
 protected:
  /// A file with a pool that was changed often enough for both copies to be in use.
  std::string MakePool() {
    const std::string path = NewPath();
    const auto pool = Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
    pool->AddSegment(10);
    pool->SetClean(false);
    return path;
  }

  /// Opening is refused as damaged with a message that holds `causes`, and leaves the file alone.
  void ExpectDamaged(const std::string& bytes, const std::vector<std::string>& causes) {
    const std::string path = NewPath();
    WriteFile(path, bytes);
    for (const bool read_only : {false, true}) {
      std::string message;
      EXPECT_EQ(ErrorOf([&] { Pool::Open(path, {.read_only = read_only}); }, &message),
                ErrorCode::kDamaged);
      EXPECT_NE(message.find(path), std::string::npos) << message;
      for (const std::string& cause : causes) {
        EXPECT_NE(message.find(cause), std::string::npos) << message << " should say: " << cause;
      }
    }
    EXPECT_TRUE(ReadFile(path) == bytes) << "the file was changed";
  }
};

}  // namespace gpm::test

#endif  // GPM_TESTS_POOL_FIXTURE_H_
