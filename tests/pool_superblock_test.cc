#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "pm/pool.h"
#include "pm/space.h"
#include "pm/superblock.h"
#include "pm/tracer.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/pool_fixture.h"
#include "tests/test_util.h"

/// The two copies of a pool's superblock: which of them is in force, and files that are refused for
/// what both say.
namespace gpm::test {
namespace {

TEST_F(PoolFileTest, NotAPool) {
  ExpectDamaged("", {"not a GPMStore pool", "empty"});
  ExpectDamaged("hello\n", {"not a GPMStore pool"});
  ExpectDamaged(std::string(100'000, 'x'), {"not a GPMStore pool"});
  ExpectDamaged(std::string(100'000, '\0'), {"not a GPMStore pool", "empty"});
  EXPECT_EQ(ErrorOf([&] { Pool::Open(NewPath(), {}); }), ErrorCode::kNotFound);
  const std::string directory = std::filesystem::path(NewPath()).parent_path();
  EXPECT_EQ(ErrorOf([&] { Pool::Open(directory, {}); }), ErrorCode::kInvalidArgument);
}

TEST_F(PoolFileTest, InterruptedCreation) {
  const std::string path = NewPath();
  Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
  std::string bytes = ReadFile(path);
  bytes.replace(0, 8, 8, '\0');  // what a crash before that word persisted leaves
  ExpectDamaged(bytes, {"creation was interrupted"});
  bytes.replace(0, 5, "hello");  // somebody else's file
  try {
    WriteFile(path, bytes);
    Pool::Open(path, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("interrupted"), std::string::npos) << error.what();
  }
}

TEST_F(PoolFileTest, AnotherVersion) {
  const std::string original = ReadFile(MakePool());
  const auto of_version = [&](std::uint32_t version) {
    std::string bytes = original;
    for (const int copy : {0, 1}) {
      Superblock superblock = CopyOf(original, copy);
      superblock.version = version;
      PutCopy(&bytes, copy, superblock);
    }
    return bytes;
  };
  ExpectDamaged(of_version(7), {"copy A: format version 7, this build reads version 3; copy B"});
  for (const std::uint32_t old : {1u, 2u}) {
    ExpectDamaged(of_version(old), {"version " + std::to_string(old) +
                                    ", this build reads version 3: `gpmstore upgrade`"});
  }
}

TEST_F(PoolFileTest, OneBadCopyFallsBackToTheOther) {
  const std::string original = ReadFile(MakePool());
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 40; ++round) {
    const int bad = round % 2;
    std::string bytes = original;
    bytes[static_cast<std::size_t>(bad) * kSuperblockBytes + random() % kSuperblockBytes] ^=
        static_cast<char>(1 << random() % 8);
    const std::string path = NewPath();
    WriteFile(path, bytes);
    const auto pool = Pool::Open(path, {.read_only = true});
    EXPECT_TRUE(SameBytes(pool->superblock(), CopyOf(original, 1 - bad)));
  }
}

TEST_F(PoolFileTest, BothCopiesBad) {
  std::string bytes = ReadFile(MakePool());
  bytes[100] ^= 1;
  bytes[kSuperblockBytes + 9] ^= 1;
  ExpectDamaged(bytes, {"copy A: checksum mismatch", "copy B: format version 259"});
}

TEST_F(PoolFileTest, TheNewerCopyIsInForce) {
  std::string bytes = ReadFile(MakePool());
  for (const int newer : {0, 1}) {
    Superblock superblock = CopyOf(bytes, 0);
    superblock.sequence = 1000;
    PutCopy(&bytes, newer, superblock);
    superblock.sequence = 999;
    PutCopy(&bytes, 1 - newer, superblock);
    EXPECT_EQ(ChooseSuperblock(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "x"),
              newer);
  }
}

TEST_F(PoolFileTest, TornSwitchLeavesTheOldState) {
  const std::string path = MakePool();
  const std::string before = ReadFile(path);
  Superblock old;
  {
    const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
    old = pool->superblock();
    AddLevel(*pool);
    EXPECT_EQ(pool->superblock().sequence, old.sequence + 1);
  }
  const std::string after = ReadFile(path);
  const int written = SameBytes(CopyOf(before, 0), CopyOf(after, 0)) ? 1 : 0;
  EXPECT_TRUE(SameBytes(CopyOf(before, 1 - written), CopyOf(after, 1 - written)));
  EXPECT_TRUE(SameBytes(CopyOf(before, 1 - written), old)) << "a change writes the other copy only";
  // A crash while the copy is written: any words of it are new, the others old.
  std::mt19937_64 random(TestSeed());
  const std::size_t start = static_cast<std::size_t>(written) * kSuperblockBytes;
  for (int round = 0; round < 200; ++round) {
    std::string torn = after;
    for (std::size_t word = 0; word < kSuperblockBytes; word += 8) {
      if (random() % 2 == 0) torn.replace(start + word, 8, before, start + word, 8);
    }
    const Superblock copy = CopyOf(torn, written);
    const int chosen =
        ChooseSuperblock(reinterpret_cast<const std::byte*>(torn.data()), torn.size(), "x");
    if (SameBytes(copy, CopyOf(after, written))) {
      EXPECT_EQ(chosen, written);
    } else {
      EXPECT_EQ(chosen, 1 - written);
    }
  }
}

/// What copies of the superblock are when a change is about to switch them.
class AtContentsFence final : public PmTracer {
 public:
  std::string copies;

  void Mapped(std::byte* base, std::uint64_t) override { base_ = base; }
  std::uint64_t Load(const std::uint64_t* word) override { return *word; }
  void Store(std::uint64_t* word, std::uint64_t value) override { *word = value; }
  bool Cas(Step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) override {
    return *word == expected && (*word = desired, true);
  }
  void Flush(Step, const void*, std::uint64_t) override {}
  void Fence(Step step) override {
    if (step != Step::kCommitContentsFence) return;
    copies.assign(reinterpret_cast<const char*>(base_), 2 * kSuperblockBytes);
  }
  void Acquire(Step, std::uint32_t*) override {}
  void Release(Step, std::uint32_t*) override {}
  bool Shared(Step) override { return true; }
  void Pause() override {}
  void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) override {
    for (std::size_t i = 0; i < parts; ++i) part(i);
  }

 private:
  const std::byte* base_ = nullptr;
};

TEST_F(PoolFileTest, ATornCopyIsNotMadeWholeByTheNextChange) {
  const std::string path = MakePool();
  const std::string before = ReadFile(path);
  AddLevel(*Pool::Open(path, {.max_bytes = 64 * kMiB}));
  const std::string after = ReadFile(path);
  const int written = SameBytes(CopyOf(before, 0), CopyOf(after, 0)) ? 1 : 0;
  // A crash: all of the copy is durable, but one word, which the next change writes as this did.
  const std::size_t word = written * kSuperblockBytes + offsetof(Superblock, level_count);
  ASSERT_NE(before.substr(word, 8), after.substr(word, 8));
  std::string torn = after;
  torn.replace(word, 8, before, word, 8);
  WriteFile(path, torn);
  AtContentsFence tracer;
  AddLevel(*Pool::Open(path, {.max_bytes = 64 * kMiB, .tracer = &tracer}));
  ASSERT_EQ(ReadFile(path).substr(word, 8), after.substr(word, 8));
  // Another one: of the change, which may have made use of space that the torn copy names, there is
  // nothing but that word.
  std::string crashed = tracer.copies;
  ASSERT_EQ(crashed.size(), 2 * kSuperblockBytes);
  crashed.replace(word, 8, after, word, 8);
  EXPECT_EQ(ChooseSuperblock(reinterpret_cast<const std::byte*>(crashed.data()), after.size(), "x"),
            1 - written);
}

TEST_F(PoolFileTest, Truncated) {
  const std::string path = MakePool();
  const std::string bytes = ReadFile(path);
  const std::uint64_t end = UsedEnd(Pool::Open(path, {.read_only = true})->superblock());
  ASSERT_LT(end, bytes.size());
  for (const std::uint64_t left : {std::uint64_t{5000}, std::uint64_t{8192}, end - 1, end - 4096}) {
    ExpectDamaged(bytes.substr(0, left), {"truncated: the superblock names " + std::to_string(end) +
                                          " bytes, the file has " + std::to_string(left)});
  }
  WriteFile(path, bytes.substr(0, end));  // what is cut off here is free
  const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
  AddLevel(*pool);
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
}

TEST_F(PoolFileTest, TruncationIsNotBridgedByAnOlderCopy) {
  const std::string path = NewPath();
  {
    const auto pool = Pool::Create(path, Config(100, 1 << 14), {.max_bytes = 64 * kMiB});
    AddLevel(*pool);
  }
  const std::string bytes = ReadFile(path);
  const std::uint64_t first_levels = UsedEnd(CopyOf(bytes, 0));
  ASSERT_LT(first_levels, UsedEnd(CopyOf(bytes, 1)));
  // Copy A is whole and names only what is there; but the items are where copy B says.
  ExpectDamaged(bytes.substr(0, first_levels), {"copy B", "truncated"});
}

TEST_F(PoolFileTest, ContentsThatCantBe) {
  const std::string original = ReadFile(MakePool());
  const int in_force =
      ChooseSuperblock(reinterpret_cast<const std::byte*>(original.data()), original.size(), "x");
  const auto damaged = [&](const std::string& cause, auto&& change) {
    std::string bytes = original;
    Superblock superblock = CopyOf(original, in_force);
    change(superblock);
    PutCopy(&bytes, in_force, superblock);
    ExpectDamaged(bytes, {cause});
  };
  damaged("key size 256", [](Superblock& s) { s.key_size = 256; });
  damaged("value size 0", [](Superblock& s) { s.value_size = 0; });
  damaged("geometry 2L-3H-8S", [](Superblock& s) { s.geometry.locations = 3; });
  damaged("orderly close", [](Superblock& s) { s.clean = 2; });
  damaged("41 levels, there can be 2 to 40", [](Superblock& s) { s.level_count = 41; });
  damaged("1 levels", [](Superblock& s) { s.level_count = 1; });
  damaged("4294967295 levels", [](Superblock& s) { s.level_count = ~0u; });
  damaged("level 7 is named, but there are 2", [](Superblock& s) { s.levels[7].offset = 1 << 20; });
  damaged("level 2 is named, but there are 2", [](Superblock& s) { s.levels[2].buckets = 4; });
  damaged("level 2: 0 buckets", [](Superblock& s) { s.level_count = 3; });
  damaged("level 0: 0 buckets", [](Superblock& s) { s.levels[0].buckets = 0; });
  damaged("level 1: 9 buckets", [](Superblock& s) { s.levels[1].buckets = 9; });
  damaged("buckets are not", [](Superblock& s) { s.levels[1].buckets = 1ull << 32; });
  damaged("buckets are not", [](Superblock& s) { s.levels[1].buckets = ~0ull; });
  damaged("level 0 lies in the superblocks", [](Superblock& s) { s.levels[0].offset = 0; });
  damaged("level 0 lies in the superblocks", [](Superblock& s) { s.levels[0].offset = 8192; });
  damaged("level 0 is not aligned", [](Superblock& s) { s.levels[0].offset += 128; });
  damaged("overlap", [](Superblock& s) { s.levels[0].offset = s.levels[1].offset; });
  damaged("overlap", [](Superblock& s) { s.segments[0].offset = s.levels[1].offset; });
  damaged("truncated", [](Superblock& s) { s.levels[0].offset = 1 << 30; });
  damaged("level 0 and value segment 0 overlap",
          [](Superblock& s) { s.levels[0].buckets = 1 << 24; });
  damaged("truncated", [](Superblock& s) { s.segments[0].bytes = 1 << 30; });
  damaged("beyond any", [](Superblock& s) { s.segments[0].bytes = ~0ull << 12; });
  damaged("beyond any", [](Superblock& s) { s.segments[0].offset = ~0ull << 12; });
  damaged("segment 0 is empty", [](Superblock& s) { s.segments[0].bytes = 0; });
  damaged("segment 0 is not aligned", [](Superblock& s) { s.segments[0].bytes -= 1; });
  damaged("201 value segments", [](Superblock& s) { s.segment_count = 201; });
  damaged("segment 1 is empty", [](Superblock& s) { s.segment_count = 2; });
  damaged("values of 8 bytes need none", [](Superblock& s) { s.value_size = 8; });
}

}  // namespace
}  // namespace gpm::test
