// What applications ask of a container: outcomes that can't be, and containers that can't be asked.

#include "bench/application_table.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/peer.h"
#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

using Row = std::array<std::uint64_t, 16>;
constexpr std::uint64_t kMaxBatch = 64;
const Capabilities kCan{.kinds = {Op::kFind, Op::kInsert, Op::kUpdate}};

/// Answers every operation as it is told.
class Answering : public KvAdapter {
 public:
  explicit Answering(std::function<Result(Op)> answer) : answer_(std::move(answer)) {}
  void Apply(const Batch& batch) override {
    for (Result& result : batch.results) result = answer_(batch.op);
  }

 private:
  std::function<Result(Op)> answer_;
};

class ApplicationTableTest : public testing::TestWithParam<std::string> {
 protected:
  static ApplicationTable Make(const std::string& name) {
    const Peer& peer = FindPeer(name, ycsb::Memory::kHost);
    return {peer.make(
                {.items = 1000, .max_batch = kMaxBatch, .value_bytes = sizeof(Row), .threads = 2}),
            peer.can, kMaxBatch, sizeof(Row)};
  }
};

/// The code with which it is refused, or nothing.
std::string CodeOf(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == code ? std::string(error.what())
                                : "another code: " + std::string(error.what());
  }
  return "nothing";
}

TEST_P(ApplicationTableTest, RowsAreReplacedOrAdded) {
  ApplicationTable table = Make(GetParam());
  TableRows<Row> rows(GetParam(), &table);
  // As the applications have them: from 0 on, and the last of all.
  std::vector<std::uint64_t> keys = {0, 1, 5, std::uint64_t{1} << 40, ~std::uint64_t{0}};
  std::vector<Row> values(5);
  for (std::size_t i = 0; i < 3; ++i) values[i].fill(100 + i);
  rows.Write(std::span(keys).first(3), std::span(values).first(3));
  EXPECT_EQ(rows.items(), 3u);
  std::vector<Row> found(5, Row{7});
  EXPECT_EQ(rows.Find(keys, found), 2u);
  EXPECT_EQ(found, values) << "a row that is not there is one of zeros";
  for (std::size_t i = 0; i < 5; ++i) values[i].fill(200 + i);
  rows.Write(keys, values);
  EXPECT_EQ(rows.items(), 5u);
  EXPECT_EQ(rows.Find(keys, found), 0u);
  EXPECT_EQ(found, values);
  rows.StartMeasuring();
  EXPECT_EQ(rows.finds().mops(), 0);
  rows.Find(keys, found);
  EXPECT_GT(rows.finds().mops(), 0);
  EXPECT_GT(rows.finds().median_seconds(), 0);
  EXPECT_EQ(rows.writes().median_seconds(), 0);
}
INSTANTIATE_TEST_SUITE_P(Peers, ApplicationTableTest,
                         testing::Values("dash", "libcuckoo", "unordered_map"));

TEST(ApplicationTableFailureTest, OutcomesThatCanNotBeAreRefused) {
  const std::uint64_t key = 1;
  const Row row{};
  Row found{};
  const auto with = [&](std::function<Result(Op)> answer) {
    return ApplicationTable(std::make_unique<Answering>(std::move(answer)), kCan, kMaxBatch,
                            sizeof(Row));
  };
  const auto write = [&](ApplicationTable& table) {
    table.Write({&key, 1}, std::as_bytes(std::span(&row, 1)));
  };
  ApplicationTable invalid = with([](Op) { return Result::kInvalid; });
  EXPECT_EQ(CodeOf(
                [&] {
                  invalid.Find({&key, 1}, std::as_writable_bytes(std::span(&found, 1)));
                },
                ErrorCode::kDamaged),
            "a find was invalid");
  EXPECT_EQ(CodeOf([&] { write(invalid); }, ErrorCode::kDamaged), "an update was invalid");
  ApplicationTable full =
      with([](Op op) { return op == Op::kInsert ? Result::kNoSpace : Result::kNotFound; });
  EXPECT_EQ(CodeOf([&] { write(full); }, ErrorCode::kNoSpace), "an insert was no-space");
  ApplicationTable lost =
      with([](Op op) { return op == Op::kInsert ? Result::kExists : Result::kNotFound; });
  EXPECT_EQ(CodeOf([&] { write(lost); }, ErrorCode::kDamaged), "an insert was exists");
  EXPECT_EQ(lost.items(), 0u);
  const std::vector<std::uint64_t> keys(kMaxBatch + 1);
  std::vector<Row> rows(keys.size());
  EXPECT_EQ(CodeOf([&] { lost.Find(keys, std::as_writable_bytes(std::span(rows))); },
                   ErrorCode::kInvalidArgument),
            "a batch of 65, where 64 are the most");
}

TEST(ApplicationTableFailureTest, WhoCanNotUpdateIsNotAsked) {
  EXPECT_TRUE(ApplicationTable::IsFor(kCan));
  EXPECT_FALSE(ApplicationTable::IsFor({.kinds = {Op::kFind, Op::kInsert, Op::kErase}}));
  EXPECT_FALSE(ApplicationTable::IsFor(
      {.kinds = {Op::kFind, Op::kInsert, Op::kUpdate}, .builds_once = true}));
  EXPECT_EQ(CodeOf(
                [] {
                  ApplicationTable(std::make_unique<Answering>(nullptr), {.kinds = {Op::kFind}},
                                   kMaxBatch, sizeof(Row));
                },
                ErrorCode::kInvalidArgument),
            "an application finds, inserts and updates");
}

}  // namespace
}  // namespace gpm::bench
