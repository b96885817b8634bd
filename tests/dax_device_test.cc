#include "pm/dax_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>

#include "pm/pool.h"
#include "tests/test_util.h"

/// Pools on DAX devices. Files take the place of these: nothing here was tried on a device.
namespace gpm::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << '\n';
}

class SysfsTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    root_ = NewPath();
    device_ = root_ / "devices/ndbus0/region0/dax0.1/dax0.0";
    WriteText(device_ / "size", "16777216");
    std::filesystem::create_directories(root_ / "bus/dax");
    std::filesystem::create_directory_symlink(root_ / "bus/dax", device_ / "subsystem");
    std::filesystem::create_directory_symlink(device_, root_ / "252:0");
  }
  std::optional<DaxDevice> Read() const { return ReadDaxDevice(root_ / "252:0"); }

  std::filesystem::path root_;
  std::filesystem::path device_;
};

TEST_F(SysfsTest, SaysWhatADeviceIs) {
  std::optional<DaxDevice> device = Read();
  ASSERT_TRUE(device);
  EXPECT_EQ(device->bytes, 16 * kMiB);
  EXPECT_EQ(device->alignment, 2 * kMiB);  // what is usual
  EXPECT_FALSE(device->survives_power_loss);

  WriteText(device_ / "../dax_region/align", "8388608");
  EXPECT_EQ(Read()->alignment, 8 * kMiB);
  WriteText(device_ / "align", "4096");
  EXPECT_EQ(Read()->alignment, 4096u);
  WriteText(device_ / "size", "16778000");
  EXPECT_EQ(Read()->bytes, 16 * kMiB);

  const std::filesystem::path domain = root_ / "devices/ndbus0/region0/persistence_domain";
  for (const char* persistent : {"memory_controller", "cpu_cache"}) {
    WriteText(domain, persistent);
    EXPECT_TRUE(Read()->survives_power_loss) << persistent;
  }
  WriteText(domain, "");
  EXPECT_FALSE(Read()->survives_power_loss);
}

TEST_F(SysfsTest, OtherThingsAreNone) {
  EXPECT_FALSE(ReadDaxDevice(root_ / "no such directory"));
  EXPECT_FALSE(ReadDaxDevice(root_));
  std::filesystem::remove(device_ / "subsystem");
  std::filesystem::create_directory_symlink(root_ / "bus", device_ / "subsystem");
  EXPECT_FALSE(Read());
  EXPECT_FALSE(FindDaxDevice("/dev/null"));
  EXPECT_FALSE(FindDaxDevice(NewPath()));
  EXPECT_EQ(ErrorOf([] { Mapping("/dev/null", Mapping::Options{}); }), ErrorCode::kInvalidArgument);
}

TEST_F(SysfsTest, NoFileIsMadeInADevicesPlace) {
  const std::string none = "/dev/dax0.0-that-is-not-there";
  EXPECT_EQ(ErrorOf([&] { Store::Create(none, {}, test::TestOpenOptions()); }),
            ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(none));
}

class DaxDeviceTest : public PoolTest {
 protected:
  static constexpr std::uint64_t kBytes = 16 * kMiB;

  void SetUp() override {
    PoolTest::SetUp();
    ReplaceDaxDevices([this](const std::string& path) -> std::optional<DaxDevice> {
      if (!devices_.contains(path)) return std::nullopt;
      return DaxDevice{kBytes, 2 * kMiB, false};
    });
  }
  void TearDown() override {
    ReplaceDaxDevices(nullptr);
    PoolTest::TearDown();
  }

  /// An empty device, behind whose first pages is what somebody left.
  std::string NewDevice() {
    const std::string path = NewPath();
    std::string bytes(kBytes, '\xA5');
    std::fill_n(bytes.begin(), 2 * kSuperblockBytes, '\0');
    std::ofstream(path, std::ios::binary) << bytes;
    devices_.insert(path);
    return path;
  }
  static std::string Beginning(const std::string& path) {
    std::string bytes(2 * kSuperblockBytes, '\0');
    std::ifstream(path, std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
  static bool IsEmpty(const std::string& path) {
    return Beginning(path) == std::string(2 * kSuperblockBytes, '\0');
  }

  std::set<std::string> devices_;
};

TEST_F(DaxDeviceTest, HoldsAPoolOfItsOwnLength) {
  for (const std::uint32_t value_size : {8u, 100u}) {
    const std::string path = NewDevice();
    ModelledStore store(path, Shape(36, value_size), TestOpenOptions());
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.medium.medium, Medium::kDaxDevice);
    EXPECT_EQ(MediumName(stats.medium.medium), "dax-device");
    EXPECT_TRUE(stats.medium.survives_process_crash);
    EXPECT_FALSE(stats.medium.survives_power_loss);
    EXPECT_EQ(stats.pm_bytes, kBytes);
    store.Apply(Op::kInsert, Numbers(0, 20'000));  // levels on what was left there
    store.Apply(Op::kErase, Numbers(500, 18'000));
    store.ExpectContents();
    store.Reopen();
    store.store().Compact();
    store.ExpectContents();
    store.Apply(Op::kUpsert, Numbers(0, 20'000), 7);
    store.Reopen();
    EXPECT_GT(store.store().Stats().capacity_slots, 20'000u);
    EXPECT_EQ(std::filesystem::file_size(path), kBytes);
  }
}

TEST_F(DaxDeviceTest, RecoversAfterACrash) {
  const std::string path = NewDevice();
  const std::string crashed = NewDevice();
  ModelledStore store(path, Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 5000));
  std::filesystem::copy_file(path, crashed, std::filesystem::copy_options::overwrite_existing);
  Store again = Store::Open(crashed, TestOpenOptions());
  EXPECT_FALSE(again.Stats().recovery.was_clean);
  ExpectContents(again, store.model());
  again.Close();
  ExpectSound(crashed, 5000);
}

TEST_F(DaxDeviceTest, WhatIsThereIsNotOverwrittenUnasked) {
  const std::string path = NewDevice();
  CreateOptions create = Shape(8, 100);
  {
    ModelledStore store(path, create, TestOpenOptions());
    store.Apply(Op::kInsert, Numbers(0, 100));
  }
  const std::string before = Beginning(path);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, create, TestOpenOptions()); }, &message),
            ErrorCode::kExists);
  EXPECT_NE(message.find("holds something"), std::string::npos) << message;
  EXPECT_EQ(Beginning(path), before);
  ExpectSound(path, 100);
  create.overwrite = true;
  Store::Create(path, create, TestOpenOptions()).Close();
  ExpectSound(path, 0);

  const std::string file = NewPath();  // the rule for files stays
  std::ofstream(file) << "text";
  EXPECT_EQ(ErrorOf([&] { Store::Create(file, create, TestOpenOptions()); }), ErrorCode::kExists);
}

TEST_F(DaxDeviceTest, OpensOrCreates) {
  const std::string path = NewDevice();
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }, &message), ErrorCode::kNotFound);
  EXPECT_NE(message.find("empty"), std::string::npos) << message;
  for (const std::uint64_t items : {0u, 1u}) {
    Store store = Store::OpenOrCreate(path, Shape(8, 8), TestOpenOptions());
    EXPECT_EQ(store.Stats().items, items);
    TestBatch batch(8, 8);
    batch.Add(Op::kUpsert, 1, 1);
    EXPECT_EQ(store.Apply(batch.Mixed()), 0u);
  }
}

TEST_F(DaxDeviceTest, AFailedCreationLeavesAnEmptyDevice) {
  const std::string path = NewDevice();
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, 100, 10'000'000), TestOpenOptions()); }),
            ErrorCode::kNoSpace);  // levels
  EXPECT_TRUE(IsEmpty(path));
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, 1000, 30'000), TestOpenOptions()); }),
            ErrorCode::kNoSpace);  // cells, when there is a superblock already
  EXPECT_TRUE(IsEmpty(path));
  EXPECT_EQ(std::filesystem::file_size(path), kBytes);
  Store::Create(path, Shape(8, 100), TestOpenOptions()).Close();
  ExpectSound(path, 0);
}

TEST_F(DaxDeviceTest, IsFullAtItsEnd) {
  const std::string path = NewDevice();
  constexpr std::uint64_t kCount = 20'000;
  Store store = Store::Create(path, Shape(8, 1000), TestOpenOptions());
  TestBatch batch(8, 1000);
  for (std::uint64_t key = 0; key < kCount; ++key) batch.Add(Op::kInsert, key, key);
  const std::uint64_t refused = store.Apply(batch.Mixed());
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(store.Stats().items, kCount - refused);
  EXPECT_GT(store.Stats().items, kBytes / 1024 * 8 / 10);
  store.Close();
  ExpectSound(path, kCount - refused);
  EXPECT_EQ(std::filesystem::file_size(path), kBytes);
}

TEST_F(DaxDeviceTest, TheMaximumSaysHowMuchOfItIsUsed) {
  const std::string path = NewDevice();
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, 8), TestOpenOptions(kMiB)); }),
            ErrorCode::kInvalidArgument);
  {
    ModelledStore store(path, Shape(8, 1000), TestOpenOptions(5 * kMiB));
    EXPECT_EQ(store.store().Stats().pm_bytes, 4 * kMiB);
    store.Apply(Op::kInsert, Numbers(0, 3000));
  }
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions(2 * kMiB)); }, &message),
            ErrorCode::kDamaged);
  EXPECT_NE(message.find("truncated"), std::string::npos) << message;
  Store store = Store::Open(path, TestOpenOptions());
  EXPECT_EQ(store.Stats().pm_bytes, kBytes);
  EXPECT_EQ(store.Stats().items, 3000u);
}

}  // namespace
}  // namespace gpm::test
