// Who is measured beside the store and gives a wrong answer gets no figure.

#include "bench/peer_phases.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

using Kind = PeerPhase::Kind;
constexpr std::uint32_t kValueBytes = 24;

/// A right container of one thread, and what a test makes wrong about it.
class FaultyAdapter : public KvAdapter {
 public:
  using Value = std::vector<std::byte>;
  /// Called for each operation after it; `found` is its row, empty unless it is a find.
  using Fault =
      std::function<void(Op op, std::uint64_t number, Result& result, std::span<std::byte> found)>;
  Fault fault = [](Op, std::uint64_t, Result&, std::span<std::byte>) {};
  bool loses_updates = false;
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
    can_.kinds = {Op::kFind, Op::kInsert, Op::kUpdate};
    can_.sequential = true;
  }

  PeerPhase Make(Kind kind, bool split = false) {
    const PeerWorkload workload{
        .records = 500, .operations = 2000, .batch = 300, .value_bytes = kValueBytes, .theta = 1.2};
    return PeerPhase(workload, kind, split, threads_, staging_);
  }
  void Load() {
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
  FaultyAdapter adapter_;
  Capabilities can_;
};

TEST_F(PeerPhasesTest, RightAnswersAreMeasured) {
  Load();
  for (const Kind kind : {Kind::kFind, Kind::kFindMissing, Kind::kC, Kind::kA, Kind::kUpdate}) {
    const PeerPhase phase = Make(kind);
    EXPECT_EQ(phase.Run(adapter_, can_).size(), 7u) << PeerPhase::NameOf(kind);
    if (kind == Kind::kUpdate) phase.CheckUpdated(adapter_);
  }
}

TEST_F(PeerPhasesTest, OneWrongResultIsRefused) {
  Load();
  for (const Kind kind : {Kind::kFind, Kind::kFindMissing, Kind::kC, Kind::kA, Kind::kUpdate}) {
    const PeerPhase phase = Make(kind);
    int left = 777;
    adapter_.fault = [&](Op, std::uint64_t, Result& result, std::span<std::byte>) {
      if (left-- == 0) result = result == Result::kOk ? Result::kNotFound : Result::kOk;
    };
    ExpectRefused([&] { phase.Run(adapter_, can_); }, PeerPhase::NameOf(kind));
  }
}

TEST_F(PeerPhasesTest, OneWrongByteIsRefused) {
  Load();
  for (const Kind kind : {Kind::kFind, Kind::kC, Kind::kA}) {
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
  ExpectRefused([&] { update.CheckUpdated(adapter_); }, "found afterwards");
  const PeerPhase mixed = Make(Kind::kA);
  ExpectRefused([&] { mixed.Run(adapter_, can_); }, "and a wrong value");
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
  const PeerPhase split = Make(Kind::kA, true);
  EXPECT_EQ(split.Run(adapter_, can_).size(), 7u) << "a time for each batch, of its two calls";
}

}  // namespace
}  // namespace gpm::bench
