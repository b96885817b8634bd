#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "gpmstore/error.h"
#include "pm/crc32c.h"
#include "pm/mapping.h"
#include "pm/medium.h"
#include "pm/persist.h"
#include "tests/all_zero.h"
#include "tests/file_size_limit.h"
#include "tests/test_util.h"

/// The lowest layer: checksums, mapping, locking, growth, media. The tests about mappings run on
/// the file system of the temporary directory and on /dev/shm.
namespace gpm::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

bool FlushForced() {
  const char* forced = std::getenv("PMEM_IS_PMEM_FORCE");
  return BuiltWithPmem() && forced != nullptr && std::string(forced) == "1";
}

bool IsTmpfs(const std::string& path) {
  struct statfs system {};
  return statfs(path.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

std::uint64_t FileBytes(const std::string& path) { return std::filesystem::file_size(path); }

/// Whether the page at an address belongs to a mapping that can be read.
bool Readable(const std::byte* address) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const bool readable = write(ends[1], address, 1) == 1;  // EFAULT instead of a signal
  close(ends[0]);
  close(ends[1]);
  return readable;
}

TEST(Crc32cTest, StandardValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c("", 0), 0u);
  const std::string zeros(32, '\0');  // RFC 3720, appendix B.4
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8A9136AAu);
  const std::string ones(32, '\xFF');
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62A8AB43u);
}

/// Long stretches are worked on in another way than short ones.
TEST(Crc32cTest, OfManyBytesIsThatOfTheirPieces) {
  std::vector<std::uint8_t> bytes(50'003);
  std::uint32_t state = 1;
  for (std::uint8_t& byte : bytes)
    byte = static_cast<std::uint8_t>((state = state * 69069 + 1) >> 24);
  for (const std::size_t length : {12'287u, 12'288u, 12'296u, 24'576u, 50'000u}) {
    for (const std::size_t start : {0u, 3u}) {
      std::uint32_t crc = 0;
      for (std::size_t at = 0; at < length; at += 1000) {
        crc = Crc32c(bytes.data() + start + at, std::min<std::size_t>(1000, length - at), crc);
      }
      EXPECT_EQ(Crc32c(bytes.data() + start, length), crc) << length << " from " << start;
    }
  }
}

TEST(Crc32cTest, PieceByPiece) {
  const std::string text = "a text in two pieces";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    const std::uint32_t head = Crc32c(text.data(), first);
    EXPECT_EQ(Crc32c(text.data() + first, text.size() - first, head),
              Crc32c(text.data(), text.size()));
  }
}

TEST(ErrorTest, NamesAreDistinct) {
  std::map<std::string, int> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kGpu); ++code) {
    ++names[std::string(ErrorName(static_cast<ErrorCode>(code)))];
  }
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(ErrorName(ErrorCode::kNoSpace), "no space");
}

TEST(MediumTest, NothingClaimsMoreThanItKeeps) {
  const Persist none;
  for (const Medium medium :
       {Medium::kDax, Medium::kTmpfs, Medium::kFile, Medium::kHostPinned, Medium::kDaxDevice}) {
    const MediumInfo info = DescribeMedium(medium, none);
    EXPECT_EQ(info.medium, medium);
    EXPECT_EQ(info.survives_process_crash, medium != Medium::kHostPinned);
    EXPECT_EQ(info.survives_power_loss, medium == Medium::kDax && BuiltWithPmem());
    EXPECT_EQ(info.gpu_can_register, medium != Medium::kFile);
    EXPECT_FALSE(info.needs_flush);
  }
  EXPECT_EQ(MediumName(Medium::kDax), "dax");
  EXPECT_EQ(MediumName(Medium::kTmpfs), "tmpfs");
  EXPECT_EQ(MediumName(Medium::kFile), "file");
  EXPECT_EQ(MediumName(Medium::kHostPinned), "host-pinned");
  EXPECT_EQ(MediumName(Medium::kDaxDevice), "dax-device");
}

std::vector<std::string>* persist_calls = nullptr;

TEST(PersistTest, FlushesAndDrainsThroughWhatWasChosen) {
  std::vector<std::string> calls;
  persist_calls = &calls;
  const Persist persist(
      [](const void*, std::size_t bytes) {
        persist_calls->push_back("flush " + std::to_string(bytes));
      },
      [] { persist_calls->push_back("drain"); });
  EXPECT_TRUE(persist.needs_flush());
  const int word = 0;
  persist.Flush(Step::kOther, &word, sizeof word);
  persist.Fence(Step::kOther);
  EXPECT_EQ(calls, (std::vector<std::string>{"flush 4", "drain"}));

  const Persist none;
  EXPECT_FALSE(none.needs_flush());
  none.Flush(Step::kOther, &word, sizeof word);
  none.Fence(Step::kOther);
  EXPECT_EQ(calls.size(), 2u);
}

/// A directory in the file system under test, removed at the end.
class MappingTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string pattern = GetParam();
    if (pattern.empty()) {
      pattern = testing::TempDir();
    } else if (!IsTmpfs(pattern) || access(pattern.c_str(), W_OK) != 0) {
      GTEST_SKIP() << pattern << " is not a tmpfs that can be written";
    }
    pattern += "/gpmstore_pm_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr) << pattern << ": " << std::strerror(errno);
    directory_ = pattern;
    path_ = directory_ + "/file";
  }
  void TearDown() override {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }

  static Mapping::Options Creating(std::uint64_t max_bytes = 64 * kMiB) {
    return {.max_bytes = max_bytes, .create = true};
  }

  std::string directory_;
  std::string path_;
};

std::string PlaceName(const ::testing::TestParamInfo<const char*>& info) {
  return *info.param == '\0' ? "TemporaryDirectory" : "Shm";
}

INSTANTIATE_TEST_SUITE_P(Places, MappingTest, ::testing::Values("", "/dev/shm"), PlaceName);

TEST_P(MappingTest, ReportsItsMedium) {
  const Mapping mapping(path_, Creating());
  const MediumInfo& info = mapping.medium();
  if (IsTmpfs(directory_)) {
    EXPECT_EQ(info.medium, Medium::kTmpfs);
    EXPECT_TRUE(info.gpu_can_register);
    EXPECT_FALSE(info.survives_power_loss);
  } else if (info.medium == Medium::kFile) {
    EXPECT_FALSE(info.gpu_can_register);
    EXPECT_FALSE(info.survives_power_loss);
  } else {
    EXPECT_EQ(info.medium, Medium::kDax);
  }
  EXPECT_TRUE(info.survives_process_crash);
  EXPECT_EQ(info.needs_flush, mapping.persist().needs_flush());
  if (info.medium != Medium::kDax) {
    EXPECT_EQ(info.needs_flush, FlushForced());
  }
}

TEST_P(MappingTest, GrowthKeepsAddressDataAndZeros) {
  Mapping mapping(path_, Creating());
  EXPECT_EQ(mapping.mapped_bytes(), 0u);
  EXPECT_EQ(mapping.max_bytes(), 64 * kMiB);
  std::byte* const base = mapping.base();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % (2 * kMiB), 0u);
  mapping.Grow(1);
  EXPECT_EQ(mapping.mapped_bytes(), 2 * kMiB) << "a first step of 2 MiB";
  for (const std::uint64_t bytes : {3 * kMiB, 20 * kMiB + 5, 64 * kMiB}) {
    const std::uint64_t before = mapping.mapped_bytes();
    std::memset(base, 0x5A, before);
    mapping.Grow(bytes);
    EXPECT_GE(mapping.mapped_bytes(), bytes);
    EXPECT_EQ(mapping.mapped_bytes() % kPageBytes, 0u);
    EXPECT_EQ(mapping.base(), base);
    EXPECT_EQ(FileBytes(path_), mapping.mapped_bytes());
    EXPECT_TRUE(std::all_of(base, base + before, [](std::byte b) { return b == std::byte{0x5A}; }));
    EXPECT_TRUE(AllZero(base + before, base + mapping.mapped_bytes()));
  }
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, 64 * kMiB) << "blocks allocated";
}

TEST_P(MappingTest, GrowsByWhatIsAsked) {
  Mapping mapping(path_, Creating());
  mapping.Grow(39 * kMiB + 1);
  EXPECT_EQ(mapping.mapped_bytes(), 40 * kMiB);
  mapping.Grow(40 * kMiB);
  EXPECT_EQ(mapping.mapped_bytes(), 40 * kMiB) << "nothing to do";
  mapping.Grow(40 * kMiB + 1);
  EXPECT_EQ(mapping.mapped_bytes(), 42 * kMiB);
  EXPECT_EQ(mapping.growth_times().growths, 2u);
  EXPECT_EQ(mapping.growth_times().waits, 2u);
  EXPECT_EQ(mapping.EndOfStep(0), 40 * kMiB);
  EXPECT_EQ(mapping.EndOfStep(40 * kMiB - 1), 40 * kMiB);
  EXPECT_EQ(mapping.EndOfStep(40 * kMiB), 42 * kMiB);
}

TEST_P(MappingTest, StopsAtTheMaximum) {
  Mapping mapping(path_, Creating(5 * kMiB + 100));
  EXPECT_EQ(mapping.max_bytes(), 5 * kMiB) << "whole pages";
  mapping.Grow(kMiB);
  std::memset(mapping.base(), 0x11, kMiB);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { mapping.Grow(5 * kMiB + 1); }, &message), ErrorCode::kNoSpace);
  EXPECT_NE(message.find(path_), std::string::npos) << message;
  EXPECT_NE(message.find("5242880"), std::string::npos) << message;
  EXPECT_EQ(mapping.mapped_bytes(), 2 * kMiB);
  EXPECT_EQ(FileBytes(path_), 2 * kMiB);
  mapping.Grow(5 * kMiB);
  EXPECT_EQ(mapping.mapped_bytes(), 5 * kMiB);
  EXPECT_EQ(mapping.base()[kMiB - 1], std::byte{0x11});
  EXPECT_FALSE(Readable(mapping.base() + 5 * kMiB));
}

TEST_P(MappingTest, WhatWasStoredIsThereWhenOpenedAgain) {
  {
    Mapping mapping(path_, Creating());
    mapping.RemoveOnClose(false);
    mapping.Grow(3 * kMiB);
    std::memcpy(mapping.base() + 3 * kMiB - 5, "hello", 5);
  }
  const std::uint64_t bytes = FileBytes(path_);
  Mapping mapping(path_, {.max_bytes = 64 * kMiB});
  EXPECT_EQ(mapping.mapped_bytes(), bytes);
  EXPECT_EQ(FileBytes(path_), bytes) << "opening extends nothing";
  EXPECT_EQ(std::memcmp(mapping.base() + 3 * kMiB - 5, "hello", 5), 0);
  mapping.Grow(10 * kMiB);
  EXPECT_EQ(std::memcmp(mapping.base() + 3 * kMiB - 5, "hello", 5), 0);
  EXPECT_TRUE(AllZero(mapping.base() + 3 * kMiB, mapping.base() + mapping.mapped_bytes()));
}

TEST_P(MappingTest, SizeThatIsNoMultipleOfPages) {
  std::ofstream(path_) << std::string(5000, 'x');
  Mapping mapping(path_, {.max_bytes = 64 * kMiB});
  EXPECT_EQ(mapping.file_bytes(), 5000u);
  EXPECT_EQ(mapping.mapped_bytes(), 8192u);
  EXPECT_EQ(mapping.base()[4999], std::byte{'x'});
  EXPECT_EQ(FileBytes(path_), 5000u);
  mapping.Grow(8192);  // mapped already, but stores to the last bytes would be lost
  EXPECT_GE(FileBytes(path_), 8192u);
  EXPECT_EQ(FileBytes(path_), mapping.mapped_bytes());
  EXPECT_EQ(mapping.base()[4999], std::byte{'x'});
  EXPECT_TRUE(AllZero(mapping.base() + 5000, mapping.base() + mapping.mapped_bytes()));
}

TEST_P(MappingTest, EmptyFile) {
  std::ofstream(path_).flush();
  Mapping mapping(path_, {});
  EXPECT_EQ(mapping.mapped_bytes(), 0u);
  EXPECT_EQ(FileBytes(path_), 0u);
  mapping.Grow(1);
  EXPECT_TRUE(AllZero(mapping.base(), mapping.base() + mapping.mapped_bytes()));
}

TEST_P(MappingTest, DefaultMaximum) {
  Mapping mapping(path_, {.create = true});
  EXPECT_GE(mapping.max_bytes(), 64 * kMiB);
  EXPECT_LE(mapping.max_bytes(), kMiB * kMiB);
  mapping.Grow(kMiB);
  mapping.base()[kMiB - 1] = std::byte{1};
}

TEST_P(MappingTest, ImpossibleMaximum) {
  for (const std::uint64_t max_bytes : {std::uint64_t{1} << 57, ~std::uint64_t{0}}) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Mapping(path_, Creating(max_bytes)); }, &message), ErrorCode::kNoSpace);
    EXPECT_NE(message.find("address space"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path_)) << "a failed creation leaves no file";
  }
}

TEST_P(MappingTest, MaximumBelowTheFile) {
  std::ofstream(path_) << std::string(100000, 'x');
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Mapping(path_, {.max_bytes = 99999}); }, &message),
            ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("100000"), std::string::npos) << message;
  EXPECT_EQ(FileBytes(path_), 100000u);
  EXPECT_NO_THROW(Mapping(path_, {.max_bytes = 100000}));
}

TEST_P(MappingTest, PathsThatCantBe) {
  const auto code = [&](const std::string& path, bool create) {
    std::string message;
    const auto thrown =
        ErrorOf([&] { Mapping(path, {.max_bytes = kMiB, .create = create}); }, &message);
    EXPECT_NE(message.find(path), std::string::npos) << message;
    return thrown;
  };
  EXPECT_EQ(code(path_, false), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_ + "/no/file", true), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_, false), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(directory_, true), ErrorCode::kExists);
  EXPECT_EQ(code("", false), ErrorCode::kNotFound);
  EXPECT_EQ(code("pinned:", false), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { Mapping(directory_, {.read_only = true}); }),
            ErrorCode::kInvalidArgument);

  std::ofstream(path_) << "there";
  EXPECT_EQ(code(path_, true), ErrorCode::kExists);
  EXPECT_EQ(FileBytes(path_), 5u);

  const std::string pipe_path = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe_path.c_str(), 0600), 0);
  EXPECT_EQ(code(pipe_path, false), ErrorCode::kInvalidArgument);
}

TEST_P(MappingTest, SecondOpenIsRefused) {
  auto mapping = std::make_unique<Mapping>(path_, Creating());
  mapping->RemoveOnClose(false);
  mapping->Grow(kMiB);
  for (const bool read_only : {false, true}) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Mapping(path_, {.read_only = read_only}); }, &message),
              ErrorCode::kBusy);
    EXPECT_NE(message.find("in use by another process or store"), std::string::npos) << message;
  }
  mapping.reset();
  EXPECT_NO_THROW(Mapping(path_, {}));
}

TEST_P(MappingTest, LockedByAnotherProcessUntilItIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Mapping mapping(path_, Creating());
    mapping.Grow(kMiB);
    std::memcpy(mapping.base(), "stored", 6);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(ErrorOf([&] { Mapping(path_, {}); }), ErrorCode::kBusy);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  const Mapping mapping(path_, {});
  EXPECT_EQ(std::memcmp(mapping.base(), "stored", 6), 0) << "survives a process crash";
}

TEST_P(MappingTest, ReadOnly) {
  {
    Mapping mapping(path_, Creating());
    mapping.RemoveOnClose(false);
    mapping.Grow(kMiB);
    std::memcpy(mapping.base(), "read", 4);
  }
  const std::uint64_t bytes = FileBytes(path_);
  Mapping mapping(path_, {.read_only = true});
  const Mapping another(path_, {.read_only = true});  // readers share
  EXPECT_EQ(std::memcmp(mapping.base(), "read", 4), 0);
  EXPECT_EQ(ErrorOf([&] { Mapping(path_, {}); }), ErrorCode::kBusy);
  EXPECT_EQ(ErrorOf([&] { mapping.Grow(bytes + 1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { mapping.RegisterGpu(); }), ErrorCode::kUnsupported);
  EXPECT_EQ(FileBytes(path_), bytes);
  // The pages refuse stores: reading a byte from a pipe into them fails with EFAULT.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "w", 1), 1);
  EXPECT_EQ(read(ends[0], mapping.base(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_P(MappingTest, GpuRegistrationNamesWhatWorks) {
  Mapping mapping(path_, Creating());
  mapping.Grow(kMiB);
  if (GpuCount() > 0 && mapping.medium().gpu_can_register) {
    mapping.RegisterGpu();
    mapping.Grow(8 * kMiB);
    return;
  }
  std::string message;
  EXPECT_EQ(ErrorOf([&] { mapping.RegisterGpu(); }, &message), ErrorCode::kUnsupported);
  if (mapping.medium().medium == Medium::kFile) {
    for (const char* works : {"tmpfs", "DAX", "pinned:"}) {
      EXPECT_NE(message.find(works), std::string::npos) << message;
    }
  }
  mapping.Grow(8 * kMiB);  // and the mapping goes on to work
  mapping.base()[8 * kMiB - 1] = std::byte{1};
}

TEST_P(MappingTest, FailedGrowthChangesNothing) {
  Mapping mapping(path_, Creating());
  mapping.Grow(4 * kMiB);
  const std::uint64_t before = mapping.mapped_bytes();
  std::memset(mapping.base(), 0x77, before);
  {
    const FileSizeLimit limit(before + 3 * kPageBytes);
    std::string message;
    EXPECT_EQ(ErrorOf([&] { mapping.Grow(before + kMiB); }, &message), ErrorCode::kNoSpace);
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    EXPECT_EQ(mapping.mapped_bytes(), before);
    EXPECT_EQ(FileBytes(path_), before);
    EXPECT_FALSE(Readable(mapping.base() + before));
    // A whole step does not fit, but what is asked does.
    mapping.Grow(before + 2 * kPageBytes);
    EXPECT_EQ(mapping.mapped_bytes(), before + 2 * kPageBytes);
  }
  mapping.Grow(before + kMiB);
  EXPECT_TRUE(std::all_of(mapping.base(), mapping.base() + before,
                          [](std::byte b) { return b == std::byte{0x77}; }));
  EXPECT_TRUE(AllZero(mapping.base() + before, mapping.base() + mapping.mapped_bytes()));
}

TEST_P(MappingTest, FullFileSystem) {
  if (mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "can't mount a small tmpfs: " << std::strerror(errno);
  }
  {
    Mapping mapping(path_, Creating());
    mapping.Grow(6 * kMiB);
    const std::uint64_t before = mapping.mapped_bytes();
    std::memset(mapping.base(), 0x77, before);
    std::string message;
    EXPECT_EQ(ErrorOf([&] { mapping.Grow(9 * kMiB); }, &message), ErrorCode::kNoSpace);
    EXPECT_EQ(mapping.mapped_bytes(), before);
    EXPECT_EQ(FileBytes(path_), before);
    EXPECT_EQ(mapping.base()[before - 1], std::byte{0x77});
  }
  umount2(directory_.c_str(), MNT_DETACH);
}

TEST_P(MappingTest, ANewFileGoesWithItsMappingUntilItIsComplete) {
  for (const bool complete : {false, true}) {
    {
      Mapping mapping(path_, {.create = true});
      mapping.Grow(kMiB);
      EXPECT_TRUE(std::filesystem::exists(path_));
      mapping.RemoveOnClose(!complete);
    }
    EXPECT_EQ(std::filesystem::exists(path_), complete);
  }
}

TEST_P(MappingTest, AnUnfinishedFileIsItsMakersToRemove) {
  auto mapping = std::make_unique<Mapping>(path_, Creating());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    mapping.reset();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(std::filesystem::exists(path_));
  // Another file has the name now.
  std::filesystem::rename(path_, path_ + ".moved");
  std::ofstream(path_) << "another's";
  mapping.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_P(MappingTest, CreationWaitsForWhoLooksAtTheFile) {
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> created{false};
    std::thread looks([&] {  // until it has had the lock, or was too late for it
      bool had_lock = false;
      while (!created && !had_lock) {
        const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
        if (file < 0) continue;
        had_lock = flock(file, LOCK_EX | LOCK_NB) == 0;
        if (had_lock) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        close(file);
      }
    });
    EXPECT_NO_THROW(Mapping(path_, Creating()));
    created = true;
    looks.join();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST(PinnedMappingTest, GrowsLikeAFile) {
  Mapping mapping("pinned:", {.max_bytes = 16 * kMiB, .create = true});
  EXPECT_EQ(mapping.medium().medium, Medium::kHostPinned);
  EXPECT_FALSE(mapping.medium().survives_process_crash);
  EXPECT_TRUE(mapping.medium().gpu_can_register);
  std::byte* const base = mapping.base();
  mapping.Grow(kMiB);
  std::memset(base, 0x33, mapping.mapped_bytes());
  const std::uint64_t before = mapping.mapped_bytes();
  mapping.Grow(16 * kMiB);
  EXPECT_EQ(mapping.base(), base);
  EXPECT_EQ(base[before - 1], std::byte{0x33});
  EXPECT_TRUE(AllZero(base + before, base + 16 * kMiB));
  EXPECT_EQ(ErrorOf([&] { mapping.Grow(16 * kMiB + 1); }), ErrorCode::kNoSpace);
  const Mapping other("pinned:", {.create = true});  // no name to be locked
  EXPECT_GE(other.max_bytes(), 64 * kMiB);
}

/// libpmem reads PMEM_IS_PMEM_FORCE once, so the test runs itself again with it set.
TEST(PmemTest, ForcedFlush) {
  if (!BuiltWithPmem()) GTEST_SKIP() << "built without libpmem";
  if (!FlushForced()) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      setenv("PMEM_IS_PMEM_FORCE", "1", 1);
      execl("/proc/self/exe", "pm_test", "--gtest_filter=PmemTest.ForcedFlush:*MappingTest*",
            "--gtest_brief=1", static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return;
  }
  std::string path = "/dev/shm/gpmstore_pmem_XXXXXX";
  if (!IsTmpfs("/dev/shm") || mkdtemp(path.data()) == nullptr) GTEST_SKIP() << "no tmpfs";
  {
    Mapping mapping(path + "/file", {.max_bytes = 8 * kMiB, .create = true});
    EXPECT_TRUE(mapping.medium().needs_flush);
    EXPECT_TRUE(mapping.persist().needs_flush());
    EXPECT_FALSE(mapping.medium().survives_power_loss) << "still a tmpfs";
    mapping.Grow(kMiB);
    std::memset(mapping.base() + 1, 0x44, 1000);
    mapping.persist().Flush(Step::kOther, mapping.base() + 1, 1000);
    mapping.persist().Fence(Step::kOther);
    EXPECT_EQ(mapping.base()[1000], std::byte{0x44});
  }
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace gpm::test
