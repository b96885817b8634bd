#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/error.h"
#include "gpmstore/mpi_exchange.h"
#include "gpmstore/sharded_store.h"
#include "tests/test_util.h"
#include "ycsb/trace.h"

/// Each process of an MPI job runs all of this (mpirun -n RANKS mpi_test), and compares what it
/// gets itself: it knows all parts, from the seed.
///
///   mpi_test kill FOLDER    makes a store, and changes it until the last rank kills itself
///   mpi_test check FOLDER   one process: whether what was acknowledged is there
namespace gpm {
namespace {

using namespace std::chrono_literals;

int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int Ranks() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}
/// Rank 0's seed, on all ranks.
std::uint64_t CommonSeed() {
  std::uint64_t seed = test::TestSeed();
  MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  return seed;
}

TEST(MpiTest, ArraysOfAllSizes) {
  const auto exchange = MakeMpiExchange(MPI_COMM_WORLD);
  const auto ranks = static_cast<std::uint32_t>(Ranks());
  const auto rank = static_cast<std::uint32_t>(Rank());
  EXPECT_EQ(exchange->ranks(), ranks);
  EXPECT_EQ(exchange->rank(), rank);
  std::mt19937_64 random(CommonSeed());
  for (int round = 0; round < 30; ++round) {
    // bytes[i][j]: from i to j; some are larger than what MPI sends at once by itself.
    std::vector<std::vector<std::vector<std::byte>>> bytes(ranks);
    for (auto& from : bytes) {
      for (std::uint32_t j = 0; j < ranks; ++j) {
        auto& part = from.emplace_back(random() % 3 == 0 ? 0 : random() % (1u << (random() % 21)));
        const std::uint64_t first = random();
        for (std::size_t b = 0; b < part.size(); ++b)
          part[b] = static_cast<std::byte>(first + b * 7);
      }
    }
    std::vector<std::span<const std::byte>> send(bytes[rank].begin(), bytes[rank].end());
    std::vector<std::vector<std::byte>> received(ranks);
    std::vector<std::span<std::byte>> receive;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      received[i].resize(bytes[i][rank].size());
      receive.emplace_back(received[i]);
    }
    exchange->AllToAll(send, receive);
    for (std::uint32_t i = 0; i < ranks; ++i) EXPECT_TRUE(received[i] == bytes[i][rank]);
  }
  const std::vector<std::byte> mine(3);
  std::vector<std::byte> one(1);
  std::vector<std::span<const std::byte>> send(ranks);
  std::vector<std::span<std::byte>> receive(ranks);
  send[rank] = mine;
  receive[rank] = one;
  EXPECT_EQ(test::ErrorOf([&] { exchange->AllToAll(send, receive); }), ErrorCode::kInvalidArgument);
}

TEST(MpiTest, APartThatIsShorterThanExpectedIsRefused) {
  const auto rank = static_cast<std::size_t>(Rank());
  const auto ranks = static_cast<std::size_t>(Ranks());
  const auto exchange = MakeMpiExchange(MPI_COMM_WORLD, std::chrono::milliseconds::max());
  const std::vector<std::byte> bytes(2);
  std::vector<std::vector<std::byte>> received(ranks, std::vector<std::byte>(2));
  std::vector<std::span<const std::byte>> send(ranks, bytes);
  const std::vector<std::span<std::byte>> receive(received.begin(), received.end());
  if (rank == 0 && ranks > 1) send[1] = send[1].first(1);
  std::string message;
  const auto error = test::ErrorOf([&] { exchange->AllToAll(send, receive); }, &message);
  if (rank != 1) {
    EXPECT_EQ(message, "");
    return;
  }
  EXPECT_EQ(error, ErrorCode::kIo);
  EXPECT_NE(message.find("rank 0 sends 1 bytes to rank 1, which expects 2"), std::string::npos)
      << message;
}

/// A store that all ranks have, in a folder that is removed at the end.
class SharedStore {
 public:
  SharedStore(std::uint32_t key_size, std::uint32_t value_size, std::uint32_t shards) {
    int id = getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    folder_ = testing::TempDir() + "gpmstore_mpi_test_" + std::to_string(id);
    store = DistributedStore::Create(folder_, MakeMpiExchange(MPI_COMM_WORLD),
                                     {.key_size = key_size, .value_size = value_size},
                                     {.shards = shards}, {.executor = ExecutorKind::kCpu});
  }
  ~SharedStore() {
    store.Close();
    MPI_Barrier(MPI_COMM_WORLD);
    if (Rank() == 0) std::filesystem::remove_all(folder_);
  }
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  /// Applies this rank's part, and compares all parts with the model, or takes them into it.
  void Apply(std::vector<test::TestBatch>& parts, test::Model* model) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i == store.rank()) {
        store.ApplyAsync(parts[i].Mixed()).Wait();
        parts[i].Compare(*model);
      } else {
        for (std::size_t j = 0; j < parts[i].size(); ++j) parts[i].ApplyOne(*model, j);
      }
    }
  }
  /// Each rank finds all items.
  void ExpectItems(const test::Model& model) {
    const std::vector<Query> all = {{}};
    const SearchResult found = store.Search(all, {.values = true});
    ASSERT_EQ(found.counts[0], model.size());
    const auto row = [](const std::vector<std::byte>& rows, std::size_t i, std::size_t bytes) {
      return test::AsString(std::span(rows).subspan(i * bytes, bytes));
    };
    for (std::size_t i = 0; i < model.size(); ++i) {
      const auto item = model.find(row(found.keys, i, store.key_size()));
      ASSERT_NE(item, model.end());
      EXPECT_EQ(row(found.values, i, store.value_size()), item->second);
    }
  }

  DistributedStore store;

 private:
  std::string folder_;
};

TEST(MpiTest, PartsOfAllProcessesAreOneBatch) {
  constexpr std::uint32_t kKeySize = 12;
  constexpr std::uint32_t kValueSize = 40;
  SharedStore shared(kKeySize, kValueSize, 7);
  std::mt19937_64 random(CommonSeed());
  test::Model model;
  for (int round = 0; round < 20; ++round) {
    std::vector<test::TestBatch> parts;
    for (int i = 0; i < Ranks(); ++i) {
      test::TestBatch& part = parts.emplace_back(kKeySize, kValueSize);
      for (std::uint64_t j = random() % 3000; j > 0; --j) {
        part.Add(static_cast<Op>(random() % kOpKinds), random() % 2000, random());
      }
    }
    shared.Apply(parts, &model);
  }
  shared.ExpectItems(model);
}

TEST(MpiTest, TracesOfYcsb) {
  constexpr std::size_t kLines = 700;  // of each rank at a time
  for (const std::string workload : {"workloada", "workloadd", "workloadf"}) {
    const std::string path = GPM_TEST_DATA "/" + workload;
    const ycsb::Trace load = ycsb::Trace::Read(path + ".load.txt.gz");
    const ycsb::Trace run = ycsb::Trace::Read(path + ".run.txt.gz", &load);
    const auto value_size =
        static_cast<std::uint32_t>(std::max(load.longest_value(), run.longest_value()));
    SharedStore shared(8, value_size, 4);
    test::Model model;
    for (const ycsb::Trace* trace : {&load, &run}) {
      const std::vector<ycsb::TraceLine>& lines = trace->lines();
      for (std::size_t at = 0; at < lines.size();) {
        std::vector<test::TestBatch> parts;
        for (int i = 0; i < Ranks(); ++i) {
          test::TestBatch& part = parts.emplace_back(8, value_size);
          for (; part.size() < kLines && at < lines.size(); ++at) {
            std::string value(lines[at].value);
            value.resize(value_size);
            part.Add(lines[at].op, test::MakeKey(lines[at].key, 8), value);
          }
        }
        shared.Apply(parts, &model);
      }
    }
    EXPECT_FALSE(model.empty());
    shared.ExpectItems(model);
  }
}

TEST(MpiTest, AProcessThatDoesNotComeEndsTheOthersCalls) {
  if (Ranks() == 1) return;
  {
    const std::vector<std::byte> mine(100);
    std::vector<std::byte> all(100 * static_cast<std::size_t>(Ranks()));
    MakeMpiExchange(MPI_COMM_WORLD)->AllGather(mine, all);  // so that all are here
    const auto exchange = MakeMpiExchange(MPI_COMM_WORLD, 2000ms);
    if (Rank() != 1) {
      std::string message;
      const auto gather = [&] { exchange->AllGather(mine, all); };
      EXPECT_EQ(test::ErrorOf(gather, &message), ErrorCode::kIo);
      EXPECT_NE(message.find("rank 1 has not come for 2000 ms"), std::string::npos) << message;
      EXPECT_EQ(test::ErrorOf(gather), ErrorCode::kIo);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  // Another exchange works as before.
  const auto exchange = MakeMpiExchange(MPI_COMM_WORLD);
  const int rank = Rank();
  std::vector<int> all(static_cast<std::size_t>(Ranks()));
  exchange->AllGather(std::as_bytes(std::span(&rank, 1)), std::as_writable_bytes(std::span(all)));
  for (int i = 0; i < Ranks(); ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
}

TEST(MpiTest, WhatARankThatGaveUpHasBegunToSendIsNotTaken) {
  if (Ranks() == 1) return;
  const auto ranks = static_cast<std::uint32_t>(Ranks());
  const auto exchange = MakeMpiExchange(MPI_COMM_WORLD, 200ms);
  // All send rank 1 more than MPI sends by itself, and rank 1 comes when they have given up, and
  // have other things in that memory.
  std::vector<std::byte> large(1 << 20);
  std::vector<std::vector<std::byte>> received(ranks);
  std::vector<std::span<const std::byte>> send(ranks);
  std::vector<std::span<std::byte>> receive(ranks);
  const std::byte small{};
  for (std::uint32_t i = 0; i < ranks; ++i) {
    if ((Rank() == 1) == (i == 1)) continue;
    received[i].resize(Rank() == 1 ? large.size() : 1);
    receive[i] = received[i];
    send[i] = Rank() == 1 ? std::span(&small, 1) : std::span<const std::byte>(large);
  }
  const auto meet = [&] { exchange->AllToAll(send, receive); };
  if (Rank() != 1) {
    EXPECT_EQ(test::ErrorOf(meet), ErrorCode::kIo);
    std::fill(large.begin(), large.end(), std::byte{0x77});
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (Rank() == 1) {
    std::string message;
    EXPECT_EQ(test::ErrorOf(meet, &message), ErrorCode::kIo);
    EXPECT_NE(message.find("has not come for 200 ms"), std::string::npos) << message;
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace

/// What the kill test's batch number b does: all ranks together give each key the value b.
static constexpr std::uint64_t kKilledKeys = 300;
static constexpr std::uint32_t kKilledValueSize = 64;

/// The largest number of a batch that some rank has seen acknowledged; a file for each rank.
static std::uint64_t Acknowledged(const std::string& folder) {
  std::uint64_t most = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder + ".acknowledged")) {
    most = std::max<std::uint64_t>(most, std::filesystem::file_size(entry.path()));
  }
  return most;
}

/// Never returns, unless something is wrong.
static int ChangeUntilKilled(const std::string& folder) {
  std::filesystem::create_directories(folder + ".acknowledged");
  std::ofstream acknowledged(folder + ".acknowledged/" + std::to_string(Rank()),
                             std::ios::binary | std::ios::trunc);
  std::mt19937_64 random(CommonSeed());
  DistributedStore store = DistributedStore::Create(
      folder, MakeMpiExchange(MPI_COMM_WORLD), {.key_size = 8, .value_size = kKilledValueSize},
      {.shards = 4}, {.executor = ExecutorKind::kCpu});
  std::jthread killer;
  const auto wait = std::chrono::microseconds(random() % 200'000);
  for (std::uint64_t number = 1;; ++number) {
    test::TestBatch part(8, kKilledValueSize);
    for (std::uint64_t key = 0; key < kKilledKeys; ++key) {
      if (static_cast<int>(key + number) % Ranks() == Rank()) part.Add(Op::kUpsert, key, number);
    }
    if (store.Apply(part.Mixed()) != 0) return 1;
    acknowledged.put('x').flush();  // which a killed process leaves as it is
    if (number == 1 && Rank() == Ranks() - 1) {
      killer = std::jthread([wait] {
        std::this_thread::sleep_for(wait);
        kill(getpid(), SIGKILL);
      });
    }
  }
}

/// @return exit status: 0 when each key has the value of the last batch that was acknowledged, or
/// of the one after it
static int CheckKilled(const std::string& folder) {
  const std::uint64_t last = Acknowledged(folder);
  std::uint64_t newer = 0;
  std::uint64_t wrong = 0;
  if (last > 0 || std::filesystem::exists(folder + "/manifest.json")) {
    ShardedStore store = ShardedStore::Open(folder, {.executor = ExecutorKind::kCpu});
    for (std::uint64_t key = 0; key < kKilledKeys; ++key) {
      std::vector<std::byte> value(kKilledValueSize);
      const std::string bytes = test::MakeKey(key, 8);
      std::optional<std::uint64_t> tag = 0;
      if (store.Get(std::as_bytes(std::span(bytes)), value)) tag = test::ValueTag(value);
      if (tag == last + 1) ++newer;
      if (tag != last && tag != last + 1) ++wrong;
    }
  }
  std::printf(
      "%llu batches were acknowledged; %llu keys have the value of the next one, %llu are "
      "wrong\n",
      static_cast<unsigned long long>(last), static_cast<unsigned long long>(newer),
      static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace gpm

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "check") return gpm::CheckKilled(argv[2]);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  if (argc == 3 && std::string_view(argv[1]) == "kill") return gpm::ChangeUntilKilled(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}
