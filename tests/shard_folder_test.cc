// The folder of a store's shards: what is refused, snapshots, and dividing it anew.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gpmstore/sharded_store.h"
#include "pm/random_id.h"
#include "shard/manifest.h"
#include "tests/files.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

namespace fs = std::filesystem;
using test::ErrorOf;
using test::Model;
using test::Numbers;
using test::ReadFile;
using test::Shape;
using test::TestBatch;
using test::TestOpenOptions;
using test::WriteFile;

constexpr std::uint32_t kValueSize = 24;

class ShardFolderTest : public test::PoolTest {
 protected:
  /// A store with items 0 ... items - 1, closed.
  std::string NewStore(std::uint32_t shards, std::uint64_t items = 500,
                       std::uint32_t value_size = kValueSize) {
    const std::string folder = NewPath();
    ShardedStore store =
        ShardedStore::Create(folder, Shape(16, value_size), {.shards = shards}, TestOpenOptions());
    TestBatch batch(16, value_size);
    for (const std::uint64_t number : Numbers(0, items)) batch.Add(Op::kInsert, number, number);
    model_.clear();
    batch.ApplySingle(store, Op::kInsert);
    batch.Compare(model_);
    store.Close();
    return folder;
  }
  /// Opening it is refused so, by a message that names `file`; and changes nothing.
  void ExpectRefused(const std::string& folder, ErrorCode code, const std::string& file) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { ShardedStore::Open(folder, TestOpenOptions()); }, &message), code)
        << message;
    EXPECT_NE(message.find(file), std::string::npos) << message;
    EXPECT_EQ(ErrorOf([&] { ShardedStore::Reshard(folder, {.shards = 5}, TestOpenOptions()); }),
              code);
  }
  void ExpectWhole(const std::string& folder, std::uint32_t shards) {
    ShardedStore store = ShardedStore::Open(folder, TestOpenOptions());
    EXPECT_EQ(store.shards(), shards);
    test::ExpectContents(store, model_);
    store.Close();
    // The manifest, and its pools, and nothing else.
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), shards + 1);
  }

  Model model_;
};

TEST_F(ShardFolderTest, ManifestsAreReadAsWritten) {
  Manifest manifest;
  manifest.uuid = HexOf(NewId());
  manifest.hash_seed = {~std::uint64_t{0}, (std::uint64_t{1} << 63) + 1};  // no double has these
  manifest.key_size = 36;
  manifest.value_size = 128;
  manifest.generation = 12;
  for (std::uint32_t i = 0; i < 3; ++i)
    manifest.pools.push_back({PoolFileName(12, i), HexOf(NewId())});
  const std::string text = ToText(manifest);
  const Manifest read = ParseManifest(text, "m");
  EXPECT_EQ(read.uuid, manifest.uuid);
  EXPECT_EQ(read.hash_seed, manifest.hash_seed);
  EXPECT_EQ(read.key_size, 36u);
  EXPECT_EQ(read.value_size, 128u);
  EXPECT_EQ(read.generation, 12u);
  ASSERT_EQ(read.shards(), 3u);
  EXPECT_EQ(read.pools[2].uuid, manifest.pools[2].uuid);
  EXPECT_TRUE(IsPoolFileName("000012-0002.pool"));
  for (const char* name : {"000012-0002.pool.x", "12-2.pool", "a", "0000012-0002.pool", ""}) {
    EXPECT_FALSE(IsPoolFileName(name)) << name;
  }
  EXPECT_EQ(nlohmann::json::parse(text).at("pools").at(2).at("uuid"), manifest.pools[2].uuid);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(ErrorOf([&] { ParseManifest(damaged, "m"); }), ErrorCode::kDamaged) << damaged;
    EXPECT_EQ(ErrorOf([&] { ParseManifest(text.substr(0, i), "m"); }), ErrorCode::kDamaged);
  }
}

TEST_F(ShardFolderTest, ManifestsThatNoStoreWroteAreRefused) {
  Manifest manifest;
  manifest.uuid = HexOf(NewId());
  std::string message;
  const auto refused = [&] {
    EXPECT_EQ(ErrorOf([&] { ParseManifest(ToText(manifest), "m"); }, &message),
              ErrorCode::kDamaged);
    return message;
  };
  EXPECT_NE(refused().find("0 pools"), std::string::npos) << message;
  manifest.pools.push_back({"../else", HexOf(NewId())});
  EXPECT_NE(refused().find("file of shard 0"), std::string::npos) << message;
  manifest.pools.front().file = PoolFileName(0, 0);
  manifest.pools.resize(kMaxShards + 1);
  EXPECT_NE(refused().find("1025 pools"), std::string::npos) << message;
}

TEST_F(ShardFolderTest, AManifestThatIsNoFileOrHasNoEndIsRefused) {
  const std::string folder = NewStore(2);
  const std::string manifest = folder + "/manifest.json";
  const std::string text = ReadFile(manifest);
  fs::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0666), 0);
  ExpectRefused(folder, ErrorCode::kDamaged, manifest);
  fs::remove(manifest);
  fs::create_symlink("/dev/zero", manifest);
  ExpectRefused(folder, ErrorCode::kDamaged, manifest);
  fs::remove(manifest);
  WriteFile(manifest, text);
  fs::resize_file(manifest, std::uintmax_t{1} << 40);
  ExpectRefused(folder, ErrorCode::kDamaged, manifest);
  WriteFile(manifest, text);
  ExpectWhole(folder, 2);
}

TEST_F(ShardFolderTest, DamagedAndForeignFilesAreRefusedByName) {
  const std::string folder = NewStore(3);
  const std::string manifest = folder + "/manifest.json";
  const std::string text = ReadFile(manifest);
  const auto pool = [&](std::uint32_t i) { return folder + "/" + PoolFileName(1, i); };

  WriteFile(manifest, text.substr(0, text.size() / 2));
  ExpectRefused(folder, ErrorCode::kDamaged, manifest);
  nlohmann::ordered_json other = nlohmann::ordered_json::parse(text);
  other["gpmstore_shards_version"] = 2;
  WriteFile(manifest, other.dump());
  ExpectRefused(folder, ErrorCode::kDamaged, "version 2");
  fs::remove(manifest);
  ExpectRefused(folder, ErrorCode::kNotFound, manifest);
  // The pools are not lost for want of a manifest.
  std::string message;
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(folder, Shape(16, kValueSize), {.shards = 2}); },
                    &message),
            ErrorCode::kExists);
  EXPECT_NE(message.find(manifest), std::string::npos) << message;
  WriteFile(manifest, text);
  ExpectWhole(folder, 3);

  fs::rename(pool(1), folder + "/away");
  ExpectRefused(folder, ErrorCode::kNotFound, pool(1));
  fs::copy(pool(2), pool(1));
  ExpectRefused(folder, ErrorCode::kDamaged, pool(1));
  fs::remove(pool(1));
  const std::string kept = ReadFile(folder + "/away");
  WriteFile(pool(1), kept.substr(0, 10'000));
  ExpectRefused(folder, ErrorCode::kDamaged, pool(1));
  fs::remove(pool(1));
  fs::rename(folder + "/away", pool(1));
  ExpectWhole(folder, 3);

  fs::rename(pool(0), folder + "/away");
  fs::rename(pool(2), pool(0));
  fs::rename(folder + "/away", pool(2));
  ExpectRefused(folder, ErrorCode::kDamaged, pool(0));
}

TEST_F(ShardFolderTest, WhatAReshardingLeftDoesNotMarkPoolsForRemoval) {
  const std::string folder = NewStore(3);
  const std::string manifest = folder + "/manifest.json";
  WriteFile(manifest + ".new", "{");  // it was killed here
  ExpectWhole(folder, 3);
  const std::string text = ReadFile(manifest);
  fs::remove(manifest);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(folder, Shape(16, kValueSize), {.shards = 3}); }),
            ErrorCode::kExists);
  WriteFile(manifest, text);
  ExpectWhole(folder, 3);
}

TEST_F(ShardFolderTest, OneStoreAtATime) {
  const std::string folder = NewStore(2);
  {
    const ShardedStore store = ShardedStore::Open(folder, TestOpenOptions());
    ExpectRefused(folder, ErrorCode::kBusy, folder);
    EXPECT_EQ(
        ErrorOf([&] { ShardedStore::OpenOrCreate(folder, Shape(16, kValueSize), {.shards = 2}); }),
        ErrorCode::kBusy);
  }
  const std::string pool = folder + "/" + PoolFileName(1, 1);
  {
    const Store store = Store::Open(pool, TestOpenOptions());  // by its own name
    ExpectRefused(folder, ErrorCode::kBusy, pool);
  }
  ExpectWhole(folder, 2);
}

TEST_F(ShardFolderTest, OpenOrCreate) {
  const std::string folder = NewPath();
  const CreateOptions create = Shape(16, kValueSize);
  ShardedStore::OpenOrCreate(folder, create, {.shards = 3}, TestOpenOptions()).Close();
  EXPECT_EQ(ShardedStore::OpenOrCreate(folder, create, {.shards = 3}, TestOpenOptions()).shards(),
            3u);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { ShardedStore::OpenOrCreate(folder, create, {.shards = 4}); }, &message),
            ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("3 shards, not 4"), std::string::npos) << message;
  EXPECT_EQ(ErrorOf([&] { ShardedStore::OpenOrCreate(folder, Shape(8, 8), {.shards = 3}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(folder, create, {.shards = 3}); }),
            ErrorCode::kExists);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Open(NewPath()); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(NewPath() + "/a/b", create, {.shards = 3}); }),
            ErrorCode::kNotFound);
  const std::string zero_byte = folder + std::string("\0x", 2);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(zero_byte, create, {.shards = 3}); }),
            ErrorCode::kInvalidArgument);
  ExpectRefused(zero_byte, ErrorCode::kInvalidArgument, "zero byte");
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create("pinned:", create, {.shards = 3}); }, &message),
            ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("name a folder"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists("pinned:"));
  // A missing pool is not created anew.
  fs::remove(folder + "/" + PoolFileName(1, 0));
  EXPECT_EQ(ErrorOf([&] { ShardedStore::OpenOrCreate(folder, create, {.shards = 3}); }),
            ErrorCode::kNotFound);

  const std::string file = NewPath();
  WriteFile(file, "text");
  ExpectRefused(file, ErrorCode::kInvalidArgument, file);
  const std::string empty = NewPath();
  fs::create_directory(empty);
  ExpectRefused(empty, ErrorCode::kNotFound, empty);
  EXPECT_TRUE(ShardedStore::OpenOrCreate(empty, create, {.shards = 1}, TestOpenOptions()));
}

TEST_F(ShardFolderTest, ReshardKeepsAllItems) {
  const std::string folder = NewStore(2, 5000);
  std::uint64_t generation = 1;
  for (const std::uint32_t shards : {3u, 7u, 1u, 4u}) {
    ShardedStore::Reshard(folder, {.shards = shards}, TestOpenOptions());
    ++generation;
    ExpectWhole(folder, shards);
    EXPECT_TRUE(fs::exists(folder + "/" + PoolFileName(generation, shards - 1)));
  }
  ShardedStore::Reshard(folder, {.shards = 4}, TestOpenOptions());  // it has so many
  EXPECT_TRUE(fs::exists(folder + "/" + PoolFileName(generation, 0)));
  for (const std::uint32_t shards : {0u, kMaxShards + 1}) {
    EXPECT_EQ(ErrorOf([&] { ShardedStore::Reshard(folder, {.shards = shards}); }),
              ErrorCode::kInvalidArgument);
  }
  ExpectWhole(folder, 4);
}

TEST_F(ShardFolderTest, ReshardKeepsOwnerAndPermissions) {
  const std::string folder = NewStore(2);
  const bool root = geteuid() == 0;
  for (const auto& file : fs::directory_iterator(folder)) {
    ASSERT_EQ(chmod(file.path().c_str(), 0600), 0);
    ASSERT_TRUE(!root || chown(file.path().c_str(), 1234, 2345) == 0);
  }
  ShardedStore::Reshard(folder, {.shards = 3}, TestOpenOptions());
  int files = 0;
  for (const auto& file : fs::directory_iterator(folder)) {
    struct stat status {};
    ASSERT_EQ(stat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u) << file.path();
    EXPECT_TRUE(!root || (status.st_uid == 1234 && status.st_gid == 2345)) << file.path();
    ++files;
  }
  EXPECT_EQ(files, 4);  // with the manifest
}

TEST_F(ShardFolderTest, ReshardThatFindsNoRoomLeavesTheStore) {
  const std::string folder = NewStore(2, 2000, 1000);
  EXPECT_EQ(
      ErrorOf([&] { ShardedStore::Reshard(folder, {.shards = 3}, TestOpenOptions(1'000'000)); }),
      ErrorCode::kNoSpace);
  ExpectWhole(folder, 2);
}

TEST_F(ShardFolderTest, AnEmptyStoreCanBeResharded) {
  const std::string folder = NewStore(2, 0);
  ShardedStore::Reshard(folder, {.shards = 3}, TestOpenOptions());
  ExpectWhole(folder, 3);
}

TEST_F(ShardFolderTest, SnapshotsAreRestored) {
  const std::string folder = NewStore(3, 2000);
  const std::string snapshot = NewPath();
  {
    ShardedStore store = ShardedStore::Open(folder, TestOpenOptions());
    const SnapshotResult result = store.Snapshot(snapshot);
    EXPECT_EQ(result.items, 2000u);
    EXPECT_EQ(result.written, 2000u);
    EXPECT_EQ(ErrorOf([&] { store.Snapshot(snapshot); }), ErrorCode::kExists);
  }
  const std::string restored = NewPath();
  ShardedStore::Restore(snapshot, restored, TestOpenOptions()).Close();
  ExpectWhole(restored, 3);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Restore(snapshot, restored); }), ErrorCode::kExists);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Restore(folder, NewPath()); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Restore(snapshot, NewPath(), {}, {.shards = 2}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Open(snapshot); }), ErrorCode::kNotFound);
  fs::rename(snapshot + "/0000.snap", snapshot + "/away");
  fs::rename(snapshot + "/0001.snap", snapshot + "/0000.snap");
  fs::rename(snapshot + "/away", snapshot + "/0001.snap");
  std::string message;
  const std::string target = NewPath();
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Restore(snapshot, target); }, &message),
            ErrorCode::kDamaged);
  EXPECT_NE(message.find("0000.snap"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(target));
}

TEST_F(ShardFolderTest, WhatAKilledRestoreLeftIsRemoved) {
  const std::string folder = NewStore(3);
  const std::string snapshot = NewPath();
  {
    ShardedStore store = ShardedStore::Open(folder, TestOpenOptions());
    store.Snapshot(snapshot);
  }
  const std::string restored = NewPath();
  fs::create_directory(restored);
  WriteFile(restored + "/manifest.json.new", "");
  const std::string left = "/" + PoolFileName(1, 2) + ".restoring-0123456789abcdef";
  for (const std::string& place : {restored, folder}) WriteFile(place + left, "part");
  ShardedStore::Restore(snapshot, restored, TestOpenOptions()).Close();
  ExpectWhole(restored, 3);
  ExpectWhole(folder, 3);
  // Other names are somebody else's.
  const std::string other = folder + "/notes.restoring-1";
  WriteFile(other, "mine");
  ShardedStore::Reshard(folder, {.shards = 2}, TestOpenOptions());
  EXPECT_TRUE(fs::exists(other));
}

}  // namespace
}  // namespace gpm
