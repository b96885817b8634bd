// What follows from a roofline: the bound of accesses.

#include <gtest/gtest.h>

#include <limits>

#include "bench/roofline.h"

namespace gpm::bench {
namespace {

/// Cells of 100 bytes. @param dealt accesses a second of every kind but touches; 0: none dealt out
Roofline RooflineWith(double dealt) {
  Roofline roofline;
  roofline.cell_bytes = 100;
  LinkRates& link = roofline.link.emplace_back();
  link.accesses = 1000;
  link.touch = {.random = {50}, .ordered = {200}, .sequential = {500}, .dealt = {2 * dealt}};
  link.read = {.random = {40}, .ordered = {100}, .sequential = {400}, .dealt = {dealt}};
  link.write = {.random = {40}, .ordered = {80}, .sequential = {400}, .dealt = {dealt}};
  link.small_write = {.random = {25}, .ordered = {50}, .sequential = {500}, .dealt = {dealt}};
  link.cas = {.random = {10}, .ordered = {20}, .sequential = {20}, .dealt = {dealt}};
  return roofline;
}

Accesses Ordered(double reads, double touches, double writes) {
  Accesses accesses;
  accesses.ordered_reads = reads;
  accesses.ordered_touches = touches;
  accesses.ordered_writes = writes;
  return accesses;
}

TEST(BoundTest, IsNoneWithoutAccesses) {
  EXPECT_EQ(Bound(RooflineWith(0), {}), std::numeric_limits<double>::infinity());
}

TEST(BoundTest, OfBytesIsThatOfTheBestOrder) {
  Accesses accesses;
  accesses.read_bytes = 100;
  accesses.write_bytes = 50;
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), accesses), 400);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(450), accesses), 450);
}

TEST(BoundTest, OfSmallWritesIsAddedToThatOfCells) {
  Accesses accesses;
  accesses.small_writes = 1;
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), accesses), 50);  // sequential ones do not count
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(100), accesses), 100);
  accesses.write_bytes = 200;
  const std::vector<BoundTerm> terms = BoundTerms(RooflineWith(100), accesses);
  ASSERT_EQ(terms.size(), 1u);
  EXPECT_EQ(terms[0].limit, "writes");
  EXPECT_DOUBLE_EQ(terms[0].per_second, 1 / (2.0 / 400 + 1.0 / 100));
}

TEST(BoundTest, OfBothDirectionsIsBetweenTheLongerAndTheSum) {
  Roofline roofline = RooflineWith(400);  // reads and writes of a cell
  Accesses accesses;
  accesses.read_bytes = 300;
  accesses.write_bytes = 100;
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses), 400.0 / 3);
  roofline.link[0].read_or_write.dealt = {800};  // nobody waits
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses), 400.0 / 3);
  roofline.link[0].read_or_write.dealt = {400};  // one after the other
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses), 400.0 / 4);
  EXPECT_EQ(BoundTerms(roofline, accesses).front().limit, "both directions");
  roofline.link[0].read_or_write.dealt = {400 / 0.75};  // half of them beside each other
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses), 400.0 / 3.5);
  roofline.link[0].read_or_write.dealt = {100};  // no share is below 0
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses), 400.0 / 4);
  accesses.write_bytes = 0;
  EXPECT_EQ(BoundTerms(roofline, accesses).size(), 1u);
}

TEST(BoundTest, OfFewSmallWritesIsThatOfMany) {
  Roofline roofline = RooflineWith(100);
  roofline.link.push_back(roofline.link.front());
  roofline.link.back().accesses = 2000;
  roofline.link.back().small_write.dealt = {200};
  Accesses accesses;
  accesses.small_writes = 1;
  EXPECT_DOUBLE_EQ(Bound(roofline, accesses, 1000), 200);
}

TEST(BoundTest, OfABatchIsThatOfItsLaunch) {
  Roofline roofline = RooflineWith(0);
  Accesses accesses;
  accesses.read_bytes = 100;
  roofline.empty_batch_seconds = 0.5;
  EXPECT_EQ(BoundTerms(roofline, accesses, 0, 100).front().limit, "launch");
  EXPECT_DOUBLE_EQ(BoundTerms(roofline, accesses, 0, 100).front().per_second, 200);
  EXPECT_DOUBLE_EQ(BoundTerms(roofline, accesses, 0, 1000).front().per_second, 400);
  EXPECT_EQ(BoundTerms(roofline, accesses).size(), 1u);
}

TEST(BoundTest, OfScatteredAccessesIsThatOfTheBestOrderButSequential) {
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), Ordered(1, 0, 0)), 100);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(90), Ordered(1, 0, 0)), 100);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(1, 0, 0)), 300);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(0, 1, 0)), 600);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(1, 3, 0)), 150);
  Accesses random;
  random.random_reads = 1;
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), random), 100);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), random), 300);
}

TEST(BoundTest, ReadsAndWritesShareTranslationsUnlessDealtOut) {
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), Ordered(1, 0, 3)), 200.0 / 4);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(1, 0, 1)), 300);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(0, 0, 1)), 600);  // touches are the best kind
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), Ordered(0, 1, 1)), 600);
}

TEST(BoundTest, OfCompareAndSwapIsThatOfTheBestOrder) {
  Accesses accesses;
  accesses.random_cas = 1;
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(0), accesses), 20);
  EXPECT_DOUBLE_EQ(Bound(RooflineWith(300), accesses), 300);
}

}  // namespace
}  // namespace gpm::bench
