#include "pm/memory_nodes.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/error.h"
#include "gpmstore/sharded_store.h"
#include "gpmstore/store.h"
#include "pm/mapping.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

/// A machine with nodes and GPUs of the test's, which notes what is asked of it. (What is asked for
/// node 0 is asked of this machine too, which has one.)
class TestNodes final : public MemoryNodes {
 public:
  TestNodes(std::vector<int> with_memory, std::map<int, int> node_of_gpu)
      : with_memory_(std::move(with_memory)), node_of_gpu_(std::move(node_of_gpu)) {
    Replace(this);
  }
  ~TestNodes() override { Replace(nullptr); }

  std::vector<int> WithMemory() const override { return with_memory_; }
  int NodeOfGpu(int device) const override {
    const auto found = node_of_gpu_.find(device);
    return found == node_of_gpu_.end() ? -1 : found->second;
  }
  bool Prefer(void* address, std::size_t bytes, int node) const override {
    const std::lock_guard lock(mutex_);
    bytes_of_[node] += bytes;
    if (refuses) return false;
    return node != 0 || MemoryNodes::Prefer(address, bytes, node);
  }
  /// Nodes that were asked for.
  std::vector<int> Asked() const {
    const std::lock_guard lock(mutex_);
    std::vector<int> nodes;
    for (const auto& [node, bytes] : bytes_of_) nodes.push_back(node);
    return nodes;
  }
  std::size_t BytesOf(int node) const {
    const std::lock_guard lock(mutex_);
    return bytes_of_[node];
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    bytes_of_.clear();
  }

  bool refuses = false;

 private:
  const std::vector<int> with_memory_;
  const std::map<int, int> node_of_gpu_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::size_t> bytes_of_;
};

using Nodes = std::vector<int>;

/// The mode and the nodes by which the system gives the page at an address.
std::pair<int, unsigned long> PolicyOf(void* address) {
  int mode = -1;
  unsigned long nodes[16] = {};
  const long failed = syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, address,
                              static_cast<unsigned long>(MPOL_F_ADDR));
  EXPECT_EQ(failed, 0) << std::strerror(errno);
  return {mode, nodes[0]};
}

/// Pools are in memory: files on tmpfs.
class MemoryNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/dev/shm/gpmstore_nodes_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no /dev/shm: " << errno;
    directory_ = pattern;
  }
  void TearDown() override {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }
  std::string NewPath() { return directory_ + "/pool" + std::to_string(next_path_++); }

  /// The node that a new pool is on, as its store says.
  int NodeOf(const OpenOptions& open) {
    return Store::Create(NewPath(), {}, open).Stats().medium.memory_node;
  }

 private:
  std::string directory_;
  int next_path_ = 0;
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST_F(MemoryNodesTest, PagesOfAMappingAreOfTheNode) {
  EXPECT_EQ(MemoryNodes::Here().WithMemory().front(), 0);
  EXPECT_EQ(MemoryNodes::Here().NodeOfGpu(1000), -1);
  const std::string file = NewPath();
  for (const std::string& path : {std::string(Mapping::kPinnedPath), file}) {
    SCOPED_TRACE(path);
    Mapping mapping(path, {.max_bytes = 64 * kMiB, .create = true, .memory_node = 0});
    if (mapping.medium().memory_node < 0) GTEST_SKIP() << "the system has no mbind";
    mapping.RemoveOnClose(false);
    for (const std::uint64_t bytes : {2 * kMiB, 8 * kMiB}) {
      mapping.Grow(bytes);
      EXPECT_EQ(PolicyOf(mapping.base() + bytes - 1), std::pair(int{MPOL_PREFERRED}, 1ul));
    }
    mapping.Shrink(2 * kMiB);
    mapping.Grow(4 * kMiB);
    EXPECT_EQ(PolicyOf(mapping.base() + 3 * kMiB), std::pair(int{MPOL_PREFERRED}, 1ul));
  }
  Mapping again(file, {.memory_node = 0});
  EXPECT_EQ(PolicyOf(again.base()), std::pair(int{MPOL_PREFERRED}, 1ul));
  Mapping other(std::string(Mapping::kPinnedPath), {.max_bytes = 64 * kMiB, .create = true});
  other.Grow(2 * kMiB);
  EXPECT_EQ(PolicyOf(other.base()).first, MPOL_DEFAULT);
  EXPECT_EQ(other.medium().memory_node, -1);
}

TEST_F(MemoryNodesTest, AFileOnADiskIsNowhere) {
  const TestNodes nodes({0, 1}, {});
  std::string path = testing::TempDir() + "gpmstore_nodes_" + std::to_string(getpid());
  const Mapping mapping(path, {.max_bytes = 64 * kMiB, .create = true, .memory_node = 1});
  if (mapping.medium().medium != Medium::kFile) GTEST_SKIP() << "no file system on a disk";
  EXPECT_EQ(mapping.medium().memory_node, -1);
  EXPECT_EQ(nodes.Asked(), Nodes());
}

TEST_F(MemoryNodesTest, AStoreFollowsItsGpuWhereThereAreSeveralNodes) {
  if (GpuCount() > 0) GTEST_SKIP() << "executor auto would use a GPU of this machine";
  const OpenOptions cpu{.executor = ExecutorKind::kCpu, .device = 1};
  const OpenOptions automatic{.executor = ExecutorKind::kAuto, .device = 1};
  {
    TestNodes nodes({0, 3}, {{0, 0}, {1, 3}, {2, 1}});
    EXPECT_EQ(NodeOf(automatic), 3);
    EXPECT_EQ(nodes.Asked(), Nodes{3});
    nodes.Forget();
    EXPECT_EQ(NodeOf({.executor = ExecutorKind::kAuto, .device = 2}), -1);  // which has no memory
    EXPECT_EQ(NodeOf({.executor = ExecutorKind::kAuto, .device = 7}), -1);
    EXPECT_EQ(NodeOf(cpu), -1);
    OpenOptions anywhere = automatic;
    anywhere.memory_node = kMemoryAnywhere;
    EXPECT_EQ(NodeOf(anywhere), -1);
    EXPECT_EQ(nodes.Asked(), Nodes());
    OpenOptions given = cpu;
    given.memory_node = 3;
    EXPECT_EQ(NodeOf(given), 3);
    nodes.refuses = true;
    EXPECT_EQ(NodeOf(given), -1);
    nodes.refuses = false;
    for (const int none : {1, 4, -3}) {
      given.memory_node = none;
      std::string message;
      EXPECT_EQ(test::ErrorOf([&] { NodeOf(given); }, &message), ErrorCode::kInvalidArgument);
      EXPECT_NE(message.find("0, 3"), std::string::npos) << message;
    }
  }
  const TestNodes one({0}, {{0, 0}, {1, 0}});
  EXPECT_EQ(NodeOf(automatic), -1);
  EXPECT_EQ(one.Asked(), Nodes());
}

TEST_F(MemoryNodesTest, AStoreThatIsOpenedAgainGrowsOnItsNode) {
  if (GpuCount() > 0) GTEST_SKIP() << "executor auto would use a GPU of this machine";
  TestNodes nodes({0, 1}, {{0, 1}});
  const std::string path = NewPath();
  Store::Create(path, {.value_size = 64}, {.executor = ExecutorKind::kCpu}).Close();
  EXPECT_EQ(nodes.Asked(), Nodes());
  Store store = Store::Open(path, {.device = 0});
  EXPECT_EQ(store.Stats().medium.memory_node, 1);
  const std::size_t before = nodes.BytesOf(1);
  store.Reserve(100'000);
  EXPECT_GE(nodes.BytesOf(1) - before, 100'000u * 64);
  EXPECT_EQ(nodes.Asked(), Nodes{1});
}

TEST_F(MemoryNodesTest, EachShardIsNextToItsGpu) {
  if (GpuCount() > 0) GTEST_SKIP() << "executor auto would use a GPU of this machine";
  TestNodes nodes({0, 1}, {{0, 0}, {1, 1}, {2, 1}, {3, 2}});
  const std::string folder = NewPath();
  const auto nodes_of = [](const ShardedStore& store) {
    Nodes of;
    for (std::uint32_t i = 0; i < store.shards(); ++i) {
      of.push_back(store.ShardStats(i).medium.memory_node);
    }
    return of;
  };
  for (const ExecutorKind executor : {ExecutorKind::kCpu, ExecutorKind::kAuto}) {
    const OpenOptions open{.executor = executor};
    const ShardedStore store = ShardedStore::OpenOrCreate(
        folder, {.value_size = 64}, {.shards = 4, .devices = {1, 0, 2}}, open);
    EXPECT_EQ(nodes_of(store), (Nodes{1, 0, 1, 1}));
    EXPECT_EQ(store.Stats().medium.memory_node, -1);  // it is on several
  }
  EXPECT_EQ(nodes.Asked(), (Nodes{0, 1}));
  {
    const ShardedStore store = ShardedStore::Open(folder, {}, {.devices = {2}});
    EXPECT_EQ(store.Stats().medium.memory_node, 1);
  }
  OpenOptions open{.executor = ExecutorKind::kCpu};
  EXPECT_EQ(nodes_of(ShardedStore::Open(folder, open)), Nodes(4, -1));
  EXPECT_EQ(nodes_of(ShardedStore::Open(folder, open, {.devices = {9}})), Nodes(4, -1));
  EXPECT_EQ(nodes_of(ShardedStore::Open(folder, open, {.devices = {3}})), Nodes(4, -1));
  open.memory_node = 0;
  EXPECT_EQ(nodes_of(ShardedStore::Open(folder, open, {.devices = {1}})), Nodes(4, 0));
}

TEST_F(MemoryNodesTest, DevicesAreThoseOfTheShardsOfAllRanks) {
  TestNodes nodes({0, 1}, {{0, 0}, {1, 1}});
  const std::string folder = NewPath();
  const OpenOptions open{.executor = ExecutorKind::kCpu};
  const ShardOptions shards{.shards = 4, .devices = {0, 0, 1, 1}};  // two of each rank
  std::vector<int> node_of(2);
  std::vector<std::string> messages;
  for (const bool creates : {true, false}) {  // which agree
    auto exchanges = MakeThreadExchanges(2);
    const auto errors = test::OnAllRanks(
        2,
        [&](std::uint32_t i) {
          const DistributedStore store =
              creates ? DistributedStore::Create(folder, std::move(exchanges[i]),
                                                 {.value_size = 64}, shards, open)
                      : DistributedStore::Open(folder, std::move(exchanges[i]), open, shards);
          node_of[i] = store.Stats().medium.memory_node;
        },
        &messages);
    for (std::uint32_t i = 0; i < 2; ++i) EXPECT_FALSE(errors[i]) << messages[i];
    EXPECT_EQ(node_of, (Nodes{0, 1}));
  }
}

TEST_F(MemoryNodesTest, AStoreOnThisMachinesGpu) {
  if (test::TestExecutor() != ExecutorKind::kCuda) GTEST_SKIP() << "of executor cuda alone";
  if (GpuCount() == 0) GTEST_SKIP() << test::kNoGpu;
  const int node = MemoryNodes().NodeOfGpu(0);
  EXPECT_EQ(NodeOf({.executor = ExecutorKind::kCuda}),
            MemoryNodes().WithMemory().size() < 2 ? -1 : node);
  const TestNodes nodes({0, 1}, {{0, 0}});
  EXPECT_EQ(NodeOf({.executor = ExecutorKind::kCuda}), 0);
  EXPECT_EQ(nodes.Asked(), Nodes{0});
}

}  // namespace
}  // namespace gpm
