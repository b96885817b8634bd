// Who is measured beside the store and gives a wrong answer gets no figure.

#include "bench/peer_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/peer.h"
#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

using Kind = PeerPhase::Kind;
constexpr std::uint32_t kValueBytes = 24;
/// Those that come behind the inserts, in order.
constexpr Kind kKinds[] = {Kind::kFind, Kind::kFindMissing, Kind::kC, Kind::kLatest, Kind::kD,
                           Kind::kB,    Kind::kA,           Kind::kF, Kind::kUpdate, Kind::kErase};

/// A right container of one thread, and what a test makes wrong about it.
class FaultyAdapter : public KvAdapter {
 public:
  using Value = std::vector<std::byte>;
  /// Called for each operation after it; `found` is its row, empty unless it is a find.
  using Fault =
      std::function<void(Op op, std::uint64_t number, Result& result, std::span<std::byte> found)>;
  Fault fault = [](Op, std::uint64_t, Result&, std::span<std::byte>) {};
  bool loses_updates = false;
  bool loses_erases = false;
  bool finds_first = false;  ///< before what the batch writes
  bool finds_last = false;   ///< behind that

  void Apply(const Batch& batch) override {
    const std::uint64_t n = batch.results.size();
    if (finds_first || finds_last) {
      for (const bool finds : {finds_first, !finds_first}) {
        for (std::uint64_t i = 0; i < n; ++i) {
          if ((KindOf(batch, i) == Op::kFind) == finds) ApplyOne(batch, i);
        }
      }
    } else {
      for (std::uint64_t i = 0; i < n; ++i) ApplyOne(batch, i);
    }
  }

 private:
  static Op KindOf(const Batch& batch, std::uint64_t i) {
    return batch.ops.empty() ? batch.op : batch.ops[i];
  }
  void ApplyOne(const Batch& batch, std::uint64_t i) {
    std::uint64_t key;
    std::memcpy(&key, &batch.keys[i * sizeof(key)], sizeof(key));
    const auto item = items_.find(key);
    const bool there = item != items_.end();
    Result result = there ? Result::kOk : Result::kNotFound;
    const Op op = KindOf(batch, i);
    std::span<std::byte> found;
    if (op == Op::kFind) {
      if (!batch.found.empty()) found = batch.found.subspan(i * kValueBytes, kValueBytes);
      if (there && !found.empty()) std::ranges::copy(item->second, found.begin());
    } else if (op == Op::kErase) {
      if (there && !loses_erases) items_.erase(item);
    } else {
      const auto row = batch.values.subspan(i * kValueBytes, kValueBytes);
      if (op == Op::kInsert) result = there ? Result::kExists : Result::kOk;
      if (op == Op::kUpdate ? there && !loses_updates : !there) {
        items_[key] = Value(row.begin(), row.end());
      }
    }
    fault(op, number_++, result, found);
    batch.results[i] = result;
  }

  std::unordered_map<std::uint64_t, Value> items_;
  std::uint64_t number_ = 0;
};

class PeerPhasesTest : public testing::Test {
 protected:
  PeerPhasesTest() {
    can_.kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase};
    can_.sequential = true;
  }

  PeerPhase Make(Kind kind, bool split = false) {
    const PeerWorkload workload{
        .records = 500, .operations = 2000, .batch = 300, .value_bytes = kValueBytes, .theta = 1.2};
    return PeerPhase(workload, kind, split, threads_, staging_, contents_);
  }
  void Load() {
    contents_.clear();
    const PeerPhase insert = Make(Kind::kInsert);
    insert.Rehearse(adapter_, can_);
    insert.Run(adapter_, can_);
  }
  /// The phase is refused, and the message says which.
  void ExpectRefused(const std::function<void()>& run, const std::string& message) {
    try {
      run();
      ADD_FAILURE() << "a wrong answer got a figure";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDamaged);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }

  ThreadPool threads_{2};
  Staging staging_{ycsb::Memory::kHost};
  std::vector<ycsb::Version> contents_;
  FaultyAdapter adapter_;
  Capabilities can_;
};

TEST_F(PeerPhasesTest, RightAnswersAreMeasured) {
  Load();
  for (const Kind kind : kKinds) {
    const PeerPhase phase = Make(kind);
    // Batches of 300: of 2000 operations, or of as many records as there are.
    const std::uint64_t rows = kind == Kind::kErase ? 500 : kind == Kind::kF ? phase.rows() : 2000;
    EXPECT_EQ(phase.rows(), rows) << PeerPhase::NameOf(kind);
    EXPECT_EQ(phase.operations(), kind == Kind::kErase ? 500u : 2000u);
    EXPECT_EQ(phase.Run(adapter_, can_).size(), (rows + 299) / 300) << PeerPhase::NameOf(kind);
    if (kind == Kind::kUpdate || kind == Kind::kErase) phase.CheckAfterwards(adapter_);
  }
}

TEST_F(PeerPhasesTest, SharesOfWritesAreTheWorkloads) {
  const auto writes = [&](Kind kind) {
    std::uint64_t written = 0, rows = 0;
    adapter_.fault = [&](Op op, std::uint64_t, Result&, std::span<std::byte>) {
      written += op != Op::kFind;
      ++rows;
    };
    const PeerPhase phase = Make(kind);
    phase.Run(adapter_, can_);
    EXPECT_EQ(rows, phase.rows());
    if (kind == Kind::kD) {
      EXPECT_EQ(written, phase.new_records());
    }
    if (kind == Kind::kF) {
      EXPECT_EQ(rows, 2000 + written) << "a find for each, and updates behind some";
    }
    return static_cast<double>(written) / 2000;
  };
  Load();
  EXPECT_NEAR(writes(Kind::kD), 0.05, 0.02);
  EXPECT_NEAR(writes(Kind::kB), 0.05, 0.02);
  EXPECT_NEAR(writes(Kind::kA), 0.5, 0.05);
  EXPECT_NEAR(writes(Kind::kF), 0.5, 0.05);
}

TEST_F(PeerPhasesTest, OneWrongResultIsRefused) {
  Load();
  for (const Kind kind : kKinds) {
    const PeerPhase phase = Make(kind);
    int left = 444;
    adapter_.fault = [&](Op, std::uint64_t, Result& result, std::span<std::byte>) {
      if (left-- == 0) result = result == Result::kOk ? Result::kNotFound : Result::kOk;
    };
    ExpectRefused([&] { phase.Run(adapter_, can_); }, PeerPhase::NameOf(kind));
  }
}

TEST_F(PeerPhasesTest, OneWrongByteIsRefused) {
  Load();
  for (const Kind kind :
       {Kind::kFind, Kind::kC, Kind::kLatest, Kind::kD, Kind::kB, Kind::kA, Kind::kF}) {
    const PeerPhase phase = Make(kind);
    bool done = false;
    adapter_.fault = [&](Op op, std::uint64_t number, Result&, std::span<std::byte> found) {
      if (op != Op::kFind || number % 1000 < 700 || done) return;
      found[kValueBytes - 1] ^= std::byte{1};
      done = true;
    };
    ExpectRefused([&] { phase.Run(adapter_, can_); }, "and a wrong value");
  }
}

TEST_F(PeerPhasesTest, ALostUpdateIsRefused) {
  Load();
  adapter_.loses_updates = true;
  const PeerPhase update = Make(Kind::kUpdate);
  update.Run(adapter_, can_);
  ExpectRefused([&] { update.CheckAfterwards(adapter_); }, "found afterwards");
  const PeerPhase mixed = Make(Kind::kA);
  ExpectRefused([&] { mixed.Run(adapter_, can_); }, "and a wrong value");
}

TEST_F(PeerPhasesTest, ALostEraseIsRefused) {
  Load();
  adapter_.loses_erases = true;
  const PeerPhase erase = Make(Kind::kErase);
  erase.Run(adapter_, can_);
  ExpectRefused([&] { erase.CheckAfterwards(adapter_); }, "erase, found afterwards");
}

TEST_F(PeerPhasesTest, KeysLongerThanAWordAreOfTheirOwn) {
  const PeerWorkload workload{
      .records = 500, .operations = 600, .batch = 300, .key_bytes = 32, .value_bytes = kValueBytes};
  class Keys : public KvAdapter {
   public:
    std::set<std::string> seen;
    void Apply(const Batch& batch) override {
      ASSERT_EQ(batch.keys.size(), batch.results.size() * 32);
      for (std::size_t i = 0; i < batch.results.size(); ++i) {
        seen.emplace(reinterpret_cast<const char*>(&batch.keys[i * 32]), 32);
        batch.results[i] = Result::kOk;
      }
    }
  } keys;
  PeerPhase(workload, Kind::kInsert, false, threads_, staging_, contents_).Run(keys, can_);
  EXPECT_EQ(keys.seen.size(), 500u);
}

TEST_F(PeerPhasesTest, AnotherOrderInABatchIsRightForWhoPromisesNone) {
  for (bool FaultyAdapter::*const order :
       {&FaultyAdapter::finds_first, &FaultyAdapter::finds_last}) {
    adapter_ = {};
    Load();
    adapter_.*order = true;
    can_.sequential = false;
    const PeerPhase mixed = Make(Kind::kA);
    mixed.Run(adapter_, can_);
    adapter_ = {};
    Load();
    adapter_.*order = true;
    can_.sequential = true;
    ExpectRefused([&] { mixed.Run(adapter_, can_); }, "and a wrong value");
  }
}

TEST_F(PeerPhasesTest, MixturesOfValuesAreRightForWhoSaysSo) {
  can_.sequential = false;
  const PeerPhase mixed = Make(Kind::kA);
  // What the finds of the phase find before their batches write.
  std::vector<std::vector<std::byte>> before;
  Load();
  adapter_.finds_first = true;
  adapter_.fault = [&](Op op, std::uint64_t, Result&, std::span<std::byte> found) {
    if (op == Op::kFind) before.emplace_back(found.begin(), found.end());
  };
  mixed.Run(adapter_, can_);
  for (const bool whole : {true, false}) {
    adapter_ = {};
    Load();
    // They find what their batch writes, but in the first word what was there before.
    adapter_.finds_last = true;
    adapter_.fault = [&, next = std::size_t{0}](Op op, std::uint64_t, Result&,
                                                std::span<std::byte> found) mutable {
      if (op == Op::kFind) std::copy_n(before[next++].begin(), 8, found.begin());
    };
    can_.whole_values = whole;
    if (whole) {
      ExpectRefused([&] { mixed.Run(adapter_, can_); }, "and a wrong value");
    } else {
      mixed.Run(adapter_, can_);
    }
  }
}

TEST_F(PeerPhasesTest, WhoHasOneKindInABatchFindsFirst) {
  can_.mixed = false;
  Load();
  for (const Kind kind : {Kind::kD, Kind::kB, Kind::kA, Kind::kF}) {
    const PeerPhase split = Make(kind, true);
    EXPECT_EQ(split.Run(adapter_, can_).size(), (split.rows() + 299) / 300)
        << "a time for each batch, of its two calls";
  }
}

TEST_F(PeerPhasesTest, WhoCanNotIsNotAsked) {
  can_ = {.kinds = {Op::kFind, Op::kInsert}, .builds_once = true};
  for (const Kind kind : kKinds) {
    EXPECT_EQ(PeerPhase::IsFor(kind, can_), kind < Kind::kD) << PeerPhase::NameOf(kind);
  }
  can_ = {.kinds = {Op::kFind, Op::kUpsert, Op::kErase}};
  for (const Kind kind : kKinds) {
    EXPECT_TRUE(PeerPhase::IsFor(kind, can_)) << PeerPhase::NameOf(kind);
    EXPECT_EQ(PeerPhase::IsSplitFor(kind, can_), Kind::kD <= kind && kind <= Kind::kF)
        << "an upsert stands for what it has not, which an array of kinds can't say";
  }
}

TEST(PeersTest, APeerOfAnotherExecutorIsRefused) {
  const RegisteredPeer there({.name = "of-a-gpu", .can = {.memory = ycsb::Memory::kDevice}});
  const auto refused = [](const char* name, ycsb::Memory memory) {
    try {
      FindPeer(name, memory);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused("of-a-gpu", ycsb::Memory::kHost), HasSubstr("for executor cuda, not cpu"));
  EXPECT_THAT(refused("libcuckoo", ycsb::Memory::kDevice), HasSubstr("for executor cpu, not cuda"));
  EXPECT_THAT(refused("of-none", ycsb::Memory::kHost), HasSubstr("there is no such peer"));
  EXPECT_EQ(FindPeer("of-a-gpu", ycsb::Memory::kDevice).name, "of-a-gpu");
}

}  // namespace
}  // namespace gpm::bench
