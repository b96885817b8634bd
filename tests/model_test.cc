#include <gtest/gtest.h>

#include "tests/test_util.h"

/// The store against std::unordered_map: random batches of random sizes, every result and every
/// found value compared, with resizes, closes and reopens in between.
namespace gpm::test {
namespace {

constexpr std::uint64_t kDefaultOperations = 20'000'000;

struct Shape {
  std::uint32_t key_size;
  std::uint32_t value_size;
  const char* geometry;
};

constexpr Shape kShapes[] = {
    {8, 8, "2L-2H-8S"},    {8, 128, "2L-2H-8S"},   {16, 3, "1L-2H-16S"},  {16, 40, "2L-2H-4S"},
    {32, 8, "4L-2H-4S"},   {32, 100, "2L-2H-8S"},  {64, 1, "2L-4H-4S"},   {64, 24, "1L-2H-8S"},
    {128, 8, "2L-2H-2S"},  {128, 200, "2L-2H-8S"}, {8, 6, "2L-2H-8S"},    {16, 34, "2L-2H-8S"},
    {1, 40, "2L-2H-8S"},   {7, 12, "2L-2H-8S"},    {9, 8, "1L-2H-16S"},   {33, 100, "2L-2H-4S"},
    {36, 128, "2L-2H-8S"}, {100, 3, "2L-2H-8S"},   {129, 24, "4L-2H-4S"}, {255, 8, "2L-2H-2S"},
};

class ModelTest : public PoolTest, public ::testing::WithParamInterface<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, ModelTest, ::testing::ValuesIn(kShapes), [](const auto& shape) {
  return "key" + std::to_string(shape.param.key_size) + "_value" +
         std::to_string(shape.param.value_size);
});

/// Draws keys from a range, now and then one of the two keys with a place of their own.
std::uint64_t DrawKey(std::mt19937_64& random, std::uint64_t range) {
  const std::uint64_t draw = random();
  return draw % 64 == 0 ? kAllOnes : (draw >> 8) % range;
}

TEST_P(ModelTest, RandomBatches) {
  const Shape shape = GetParam();
  std::mt19937_64 random(TestSeed() ^ Mix(shape.key_size * 1000 + shape.value_size));
  CreateOptions create;
  create.key_size = shape.key_size;
  create.value_size = shape.value_size;
  create.geometry = ParseGeometry(shape.geometry);
  create.hash_seed = random();
  ModelledStore store(NewPath(), create, TestOpenOptions());

  const std::uint64_t budget =
      EnvironmentNumber("GPM_TEST_OPS", kDefaultOperations) / std::size(kShapes);
  std::uint64_t resizes = 0;
  std::uint64_t done = 0;
  for (int round = 0; done < budget && !HasFailure(); ++round) {
    // A phase: one mix of kinds on one range of keys, in several batches.
    const std::uint64_t range = random() % 3 == 0 ? 1 + random() % 50 : 1 + random() % 60000;
    const bool single_kind = random() % 3 == 0;
    std::discrete_distribution<int> kinds = [&] {
      switch (random() % 3) {
        case 0:
          return std::discrete_distribution<int>{1, 5, 1, 3, 1, 2, 1};  // grows
        case 1:
          return std::discrete_distribution<int>{1, 1, 1, 0, 5, 1, 1};  // shrinks
        default:
          return std::discrete_distribution<int>{1, 1, 1, 1, 1, 1, 1};
      }
    }();
    for (std::uint64_t batches = 1 + random() % 10; batches > 0 && !HasFailure(); --batches) {
      constexpr std::uint64_t kMost[] = {20, 5000, 5000, 20000};
      const std::uint64_t size = 1 + random() % kMost[random() % 4];
      Op kind = static_cast<Op>(kinds(random));
      TestBatch batch = store.NewBatch();
      // (A batch of this kind alone is refused then.)
      if (kind == Op::kAccumulate && batch.element() == Element::kNone) kind = Op::kUpdate;
      for (std::uint64_t i = 0; i < size; ++i) {
        batch.Add(single_kind ? kind : static_cast<Op>(kinds(random)), DrawKey(random, range),
                  random());
      }
      if (single_kind) {
        batch.ApplySingle(store.store(), kind);
        batch.Compare(store.model());
      } else {
        store.Apply(batch);
      }
      done += size;
    }
    if (round % 8 == 7) {
      resizes += store.store().Stats().resizes;
      store.Reopen();
    }
  }
  resizes += store.store().Stats().resizes;
  if (budget >= 500000 && shape.key_size > 1) {  // (there are 256 keys of 1 byte)
    EXPECT_GT(resizes, 0u) << "the test should make the table grow";
  }
  store.Reopen();
  if (HasFailure()) {
    ADD_FAILURE() << "replay with GPM_TEST_SEED=" << TestSeed() << " and the same GPM_TEST_OPS";
  }
}

}  // namespace
}  // namespace gpm::test
