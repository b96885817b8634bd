#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "table/initial_rows.h"
#include "tests/test_util.h"

/// kFindOrInsert and kAccumulate: what they leave and answer, in batches of every size, and the
/// arithmetic that both executors share.
namespace gpm::test {
namespace {

/// All finite numbers of 16 bits that are not negative, in order: their bits count up.
float PositiveHalf(std::uint32_t bits) { return FloatOfHalf(bits); }
constexpr std::uint32_t kHalfInfinity = 0x7C00;
constexpr std::uint32_t kBFloatInfinity = 0x7F80;

template <Element kElement>
std::uint64_t SumOf(std::uint64_t a, std::uint64_t b) {
  return OneNan<kElement>(AddWord<kElement>(a, b));
}

/// The bits of the positive number of 16 bits that is nearest to x, ties to even; by search.
template <class FloatOf>
std::uint32_t NearestBits(double x, std::uint32_t infinity, const FloatOf& float_of) {
  // Past the largest number, the next one there would be counts as infinity.
  const auto value = [&](std::uint32_t bits) {
    if (bits < infinity) return static_cast<double>(float_of(bits));
    return 2.0 * static_cast<double>(float_of(infinity - 1)) -
           static_cast<double>(float_of(infinity - 2));
  };
  std::uint32_t low = 0;
  std::uint32_t high = infinity;
  if (x >= value(infinity)) return infinity;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (value(middle) <= x ? low : high) = middle;
  }
  const double below = x - value(low);
  const double above = value(high) - x;
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

std::uint32_t RandomFinite(std::mt19937_64& random, std::uint32_t infinity) {
  for (;;) {
    const auto bits = static_cast<std::uint32_t>(random() & 0xFFFF);
    if ((bits & 0x7FFF) < infinity) return bits;
  }
}

/// Of a small batch on the GPU: which rows are on which of a few keys, as it is kept there.
TEST(RowsOfKeyTest, AreThoseOfTheirKey) {
  constexpr std::uint32_t kWords = 5;
  constexpr std::uint32_t kRows = 32 * kWords;
  constexpr std::uint32_t kNumberBits = 3;
  constexpr std::uint32_t kKeys = 1 << kNumberBits;
  std::mt19937 random(TestSeed());
  std::vector<std::optional<std::uint32_t>> key_of(kRows);
  std::vector<std::uint32_t> planes((kNumberBits + 1) * kWords);
  for (std::uint32_t row = 0; row < kRows; ++row) {
    // Nobody looks at the numbers of those that have none.
    std::uint32_t bits = random() % kKeys;
    if (random() % 3 != 0) {
      key_of[row] = bits % (kKeys - 1);  // one key has no rows
      bits = *key_of[row] | 1u << kNumberBits;
    }
    for (std::uint32_t plane = 0; plane <= kNumberBits; ++plane) {
      planes[plane * kWords + row / 32] |= (bits >> plane & 1) << row % 32;
    }
  }
  for (std::uint32_t key = 0; key < kKeys; ++key) {
    const RowsOfKey rows{planes.data(), kWords, kNumberBits, key};
    std::uint32_t last = 0;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const bool is_of_key = key_of[row] == key;
      EXPECT_EQ(rows.Word(row / 32) >> row % 32 & 1, is_of_key ? 1u : 0u) << row;
      if (is_of_key) last = row;
    }
    std::uint32_t after = 0;
    for (std::uint32_t row = 0; row < kRows; row = after) {
      after = rows.After(row, kRows - 1);
      for (std::uint32_t between = row + 1; between < std::min(after, kRows); ++between) {
        EXPECT_NE(key_of[between], key);
      }
      if (after < kRows) {
        EXPECT_EQ(key_of[after], key);
      }
    }
    EXPECT_GT(rows.After(last, last), last);
    std::vector<std::byte> values(kRows);
    std::vector<std::uint32_t> visited;
    Addends addends;
    addends.rows = values.data();
    addends.of_key = rows;
    addends.ForEachRow(1, [&](const std::byte* row) {
      visited.push_back(static_cast<std::uint32_t>(row - values.data()));
    });
    std::vector<std::uint32_t> expected;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      if (key_of[row] == key) expected.push_back(row);
    }
    EXPECT_EQ(visited, expected);
  }
}

TEST(ElementsTest, NumbersOf16BitsAreKept) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool is_half = (bits & 0x7FFF) <= kHalfInfinity;
    EXPECT_EQ(HalfOfFloat(FloatOfHalf(bits)), is_half ? bits : 0x7E00) << bits;
    const bool is_bfloat = (bits & 0x7FFF) <= kBFloatInfinity;
    EXPECT_EQ(BFloatOfFloat(FloatOfBFloat(bits)), is_bfloat ? bits : 0x7FC0) << bits;
  }
  EXPECT_EQ(FloatOfHalf(0x3C00), 1.0f);
  EXPECT_EQ(FloatOfHalf(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatOfHalf(0x7BFF), 65504.0f);
  EXPECT_EQ(FloatOfBFloat(0x3F80), 1.0f);
}

TEST(ElementsTest, FloatsAreRoundedToNearest) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200000; ++i) {
    auto bits = static_cast<std::uint32_t>(random()) & 0x7FFFFFFFu;
    // Most within the range of binary16, many of those half-way between two.
    if (i % 4 != 0) bits = 0x32800000u + bits % (0x47900000u - 0x32800000u);
    if (i % 8 == 1) bits &= ~0xFFFu;
    if (bits > 0x7F800000u) continue;
    const float value = FloatOfBits(bits);
    ASSERT_EQ(HalfOfFloat(value), NearestBits(value, kHalfInfinity, PositiveHalf)) << value;
    ASSERT_EQ(BFloatOfFloat(value), NearestBits(value, kBFloatInfinity, FloatOfBFloat)) << value;
    ASSERT_EQ(HalfOfFloat(-value), HalfOfFloat(value) | 0x8000u) << value;
  }
}

TEST(ElementsTest, SumsOf16BitsAreRoundedOnce) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t a = RandomFinite(random, kHalfInfinity);
    const std::uint32_t b = RandomFinite(random, kHalfInfinity);
    const double sum = static_cast<double>(FloatOfHalf(a)) + static_cast<double>(FloatOfHalf(b));
    const auto half = static_cast<std::uint32_t>(SumOf<Element::kFloat16>(a, b) & 0xFFFF);
    ASSERT_EQ(half & 0x7FFF, NearestBits(std::abs(sum), kHalfInfinity, PositiveHalf)) << a << b;
    const std::uint32_t c = RandomFinite(random, kBFloatInfinity);
    const std::uint32_t d = RandomFinite(random, kBFloatInfinity);
    const double other =
        static_cast<double>(FloatOfBFloat(c)) + static_cast<double>(FloatOfBFloat(d));
    const auto bfloat = static_cast<std::uint32_t>(SumOf<Element::kBFloat16>(c, d) & 0xFFFF);
    // (A sum of binary64 that is not exact is no tie.)
    ASSERT_EQ(bfloat & 0x7FFF, NearestBits(std::abs(other), kBFloatInfinity, FloatOfBFloat))
        << c << " " << d;
  }
}

TEST(ElementsTest, WhatIsNoNumberHasOneRepresentation) {
  const auto bits = [](float value) { return BitsOfFloat(value); };
  const float infinity = std::numeric_limits<float>::infinity();
  const std::uint64_t difference =
      SumOf<Element::kFloat32>(bits(infinity), bits(-infinity)) & 0xFFFFFFFFu;
  EXPECT_EQ(difference, 0x7FC00000u);
  EXPECT_EQ(SumOf<Element::kFloat32>(0xFFC12345u, 0) & 0xFFFFFFFFu, 0x7FC00000u);
  EXPECT_EQ(SumOf<Element::kFloat16>(0x7C00u, 0xFC00u) & 0xFFFF, 0x7E00u);
  EXPECT_EQ(SumOf<Element::kBFloat16>(0x7F80u, 0xFF80u) & 0xFFFF, 0x7FC0u);
  EXPECT_EQ(SumOf<Element::kUInt64>(kAllOnes, 2), 1u);
}

TEST(InitialRowsTest, QuantilesAreThoseOfTheNormalDistribution) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 100000; ++i) {
    double p = (static_cast<double>(random() >> 32) + 0.5) / 4294967296.0;
    if (i % 3 == 0) p = std::max(std::ldexp(p, -static_cast<int>(random() % 32)), 0x1p-33);
    const double x = NormalQuantile(p);
    EXPECT_NEAR(LogOf(p), std::log(p), 1e-12 * (1 + std::abs(std::log(p))));
    EXPECT_NEAR(0.5 * std::erfc(-x / std::sqrt(2.0)) / p, 1, 1e-5) << p;
    EXPECT_NEAR(NormalQuantile(1 - p), -NormalQuantile(1 - (1 - p)), 1e-12);
  }
}

TEST(InitialRowsTest, DrawnElementsHaveTheirDistribution) {
  constexpr std::uint32_t kElements = 100000;
  const RowDrawer uniform = RowDrawer::Of(InitialValue::Uniform(5, -2, 3), Element::kFloat32);
  const RowDrawer normal = RowDrawer::Of(InitialValue::Normal(5, 1, 0.5f), Element::kFloat32);
  double sums[4] = {};
  for (std::uint32_t i = 0; i < kElements; ++i) {
    const std::uint64_t key = i / 10;
    const double u = DrawElement(uniform, DrawBase(5, &key, 1), i % 10);
    const double z = DrawElement(normal, DrawBase(5, &key, 1), i % 10);
    ASSERT_GE(u, -2);
    ASSERT_LE(u, 3);
    sums[0] += u;
    sums[1] += u * u;
    sums[2] += z;
    sums[3] += z * z;
  }
  for (double& sum : sums) sum /= kElements;
  EXPECT_NEAR(sums[0], 0.5, 0.03);
  EXPECT_NEAR(sums[1] - sums[0] * sums[0], 25.0 / 12, 0.04);
  EXPECT_NEAR(sums[2], 1, 0.01);
  EXPECT_NEAR(sums[3] - sums[2] * sums[2], 0.25, 0.01);
}

/// What is drawn must never change: models that were trained with it would.
TEST(InitialRowsTest, DrawnBitsAreTheSameForEver) {
  const std::array<std::uint64_t, 2> key = {42, 7};
  std::array<std::uint64_t, 4> row{};
  std::uint64_t digest = 0;
  for (const Element element : {Element::kFloat32, Element::kFloat16, Element::kBFloat16}) {
    for (const InitialValue& initial :
         {InitialValue::Uniform(1, -1, 1), InitialValue::Normal(2, 0, 0.02f)}) {
      DrawRow(ThreadGroup{}, RowDrawer::Of(initial, element), key.data(), 2,
              reinterpret_cast<std::byte*>(row.data()), 32);
      for (const std::uint64_t word : row) digest = Scramble(digest ^ word);
    }
  }
  EXPECT_EQ(digest, 0x7660c1794e3c74a4ull);
}

TEST(InitialRowsTest, WhatIsNotDrawnIsZero) {
  const std::uint64_t key = 42;
  InitialValue initial = InitialValue::Normal(2, 3, 0.5f);
  std::array<std::byte, 27> all{};
  DrawRow(ThreadGroup{}, RowDrawer::Of(initial, Element::kFloat16), &key, 1, all.data(), 27);
  for (const std::uint32_t drawn : {0u, 2u, 8u, 14u, 26u}) {
    initial.drawn_bytes = drawn;
    std::array<std::byte, 27> expected{};
    std::copy_n(all.begin(), drawn, expected.begin());
    std::array<std::byte, 27> row{};
    row.fill(std::byte{0xA5});
    DrawRow(ThreadGroup{}, RowDrawer::Of(initial, Element::kFloat16), &key, 1, row.data(), 27);
    EXPECT_EQ(row, expected) << drawn;
  }
}

struct RowShape {
  std::uint32_t key_size;
  std::uint32_t value_size;
  Element element;
};

class RowOperationsTest : public PoolTest, public ::testing::WithParamInterface<RowShape> {
 protected:
  Bytes KeysOf(const std::vector<std::uint64_t>& numbers) const {
    std::string keys;
    for (const std::uint64_t number : numbers) keys += MakeKey(number, GetParam().key_size);
    const auto bytes = std::as_bytes(std::span(keys));
    return {bytes.begin(), bytes.end()};
  }
  std::string Drawn(const InitialValue& initial, std::uint64_t number) const {
    const std::string key = MakeKey(number, GetParam().key_size);
    std::vector<std::uint64_t> words(KeyWords(GetParam().key_size));
    std::memcpy(words.data(), key.data(), key.size());
    std::string row(GetParam().value_size, '\0');
    DrawRow(ThreadGroup{}, RowDrawer::Of(initial, GetParam().element), words.data(),
            static_cast<std::uint32_t>(words.size()), reinterpret_cast<std::byte*>(row.data()),
            GetParam().value_size);
    return row;
  }
  std::string Initial(const InitialValue& initial, std::uint64_t number) const {
    return initial.from == InitialValue::From::kConstant ? AsString(initial.row)
                                                         : Drawn(initial, number);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, RowOperationsTest,
    ::testing::Values(RowShape{8, 4, Element::kFloat32}, RowShape{8, 8, Element::kBFloat16},
                      RowShape{8, 12, Element::kFloat32}, RowShape{8, 128, Element::kFloat32},
                      RowShape{32, 34, Element::kFloat16}, RowShape{16, 256, Element::kBFloat16},
                      RowShape{36, 128, Element::kFloat32}, RowShape{8, 600, Element::kFloat32}),
    [](const auto& shape) {
      return "key" + std::to_string(shape.param.key_size) + "_value" +
             std::to_string(shape.param.value_size) + "_" +
             std::string(ElementName(shape.param.element));
    });

/// Batches of every strategy's size, in which most keys come several times and some are there.
TEST_P(RowOperationsTest, FindOrInsertMakesInitialValues) {
  const RowShape shape = GetParam();
  std::mt19937_64 random(TestSeed());
  const std::string constant = MakeValue(random(), shape.value_size);
  std::array<InitialValue, 4> rules = {InitialValue::Constant(std::as_bytes(std::span(constant))),
                                       InitialValue::Uniform(random(), -0.5f, 0.25f),
                                       InitialValue::Normal(random(), 1, 2),
                                       InitialValue::Normal(random(), 1, 2)};
  rules.back().drawn_bytes = shape.value_size / 12 * 4;
  ModelledStore store(NewPath(), Shape(shape.key_size, shape.value_size), TestOpenOptions());
  std::uint64_t inserted = 0;
  for (const std::size_t size : {1, 7, 300, 3000, 7000, 12000, 40000}) {
    for (const InitialValue& initial : rules) {
      std::vector<std::uint64_t> numbers(size);
      for (auto& number : numbers) number = random() % (inserted + size / 2 + 1);
      if (size > 100) numbers[size / 3] = kAllOnes;
      const Bytes keys = KeysOf(numbers);
      std::vector<Result> results(size, Result::kInvalid);
      const bool wants_found = random() % 4 != 0;
      Bytes found(wants_found ? size * shape.value_size : 0);
      const std::uint64_t not_ok =
          store.store().FindOrInsert(keys, initial, shape.element, {}, found, results);
      std::uint64_t exist = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const auto [item, is_new] = store.model().try_emplace(MakeKey(numbers[i], shape.key_size),
                                                              Initial(initial, numbers[i]));
        ASSERT_EQ(results[i], is_new ? Result::kOk : Result::kExists) << i << " of " << size;
        if (wants_found) {
          ASSERT_EQ(AsString(std::span(found).subspan(i * shape.value_size, shape.value_size)),
                    item->second)
              << i << " of " << size;
        }
        exist += is_new ? 0 : 1;
        inserted += is_new ? 1 : 0;
      }
      EXPECT_EQ(not_ok, exist);
      EXPECT_EQ(store.store().Stats().items, inserted);
    }
  }
  store.Reopen();
}

TEST_P(RowOperationsTest, AccumulateAddsInBatchOrder) {
  const RowShape shape = GetParam();
  std::mt19937_64 random(TestSeed());
  ModelledStore store(NewPath(), Shape(shape.key_size, shape.value_size), TestOpenOptions());
  store.Apply(Op::kUpsert, Numbers(0, 5000), 17);
  for (const std::size_t size : {1, 7, 300, 3000, 7000, 12000, 40000}) {
    for (int round = 0; round < 3; ++round) {
      // Each key once or so; several times; nearly all of them one.
      const std::uint64_t keys = round == 0 ? 6000 : round == 1 ? size / 10 + 1 : 50;
      std::vector<std::uint64_t> numbers(size);
      std::string rows;
      for (auto& number : numbers) {
        number = round == 2 && random() % 8 != 0 ? 3 : random() % keys;
        rows += Drawn(InitialValue::Normal(random(), 0, 1), number);
      }
      const Bytes key_bytes = KeysOf(numbers);
      std::vector<Result> results(size, Result::kInvalid);
      store.store().Accumulate(key_bytes, shape.element, std::as_bytes(std::span(rows)), results);
      for (std::size_t i = 0; i < size; ++i) {
        const auto item = store.model().find(MakeKey(numbers[i], shape.key_size));
        const bool present = item != store.model().end();
        ASSERT_EQ(results[i], present ? Result::kOk : Result::kNotFound) << i << " of " << size;
        if (!present) continue;
        Addends addends;
        addends.element = shape.element;
        addends.sum = reinterpret_cast<std::byte*>(item->second.data());
        addends.rows = reinterpret_cast<const std::byte*>(rows.data()) + i * shape.value_size;
        AddRows(ThreadGroup{}, addends, shape.value_size);
      }
      store.ExpectContents();
    }
  }
  store.Reopen();
}

/// Drawn values in a batch of all kinds, which has its own values, too.
TEST_P(RowOperationsTest, MixedBatchWithDrawnValues) {
  const RowShape shape = GetParam();
  std::mt19937_64 random(TestSeed());
  const InitialValue initial = InitialValue::Uniform(random(), 0, 1);
  for (const std::uint64_t size : {20u, 2500u, 30000u}) {
    ModelledStore store(NewPath(), Shape(shape.key_size, shape.value_size), TestOpenOptions());
    for (int round = 0; round < 4; ++round) {
      TestBatch given = store.NewBatch();     // what the store gets
      TestBatch expected = store.NewBatch();  // with rows instead of drawn values
      for (std::uint64_t i = 0; i < size; ++i) {
        const auto op = static_cast<Op>(random() % kOpKinds);
        const std::uint64_t number = random() % (size / 3 + 1);
        const std::string key = MakeKey(number, shape.key_size);
        const std::string value = MakeValue(random(), shape.value_size);
        given.Add(op, key, value);
        expected.Add(op, key, op == Op::kFindOrInsert ? Drawn(initial, number) : value);
      }
      Batch batch = given.Mixed();
      const Batch answers = expected.Mixed();
      batch.element = expected.element();
      // The element that the test's model takes may not be one that can be drawn.
      if (batch.element != shape.element) continue;
      batch.initial = initial;
      batch.found = answers.found;
      batch.results = answers.results;
      store.store().Apply(batch);
      expected.Compare(store.model());
    }
    store.ExpectContents();
  }
}

class RowStoreTest : public PoolTest {};

/// Every kind of element, with bits of any kind: infinite ones, none at all, and tiny ones. Few
/// rows for each key, and nearly all rows for one.
TEST_F(RowStoreTest, SumsOfAnyBits) {
  const RowShape shapes[] = {{8, 128, Element::kFloat32},  {8, 12, Element::kFloat32},
                             {8, 512, Element::kFloat16},  {16, 34, Element::kFloat16},
                             {8, 260, Element::kBFloat16}, {8, 136, Element::kUInt64}};
  std::mt19937_64 random(TestSeed());
  for (const RowShape& shape : shapes) {
    SCOPED_TRACE(std::string(ElementName(shape.element)) + std::to_string(shape.value_size));
    const auto draw = [&](std::uint64_t mask) {
      std::string row(shape.value_size, '\0');
      for (std::uint32_t i = 0; i < shape.value_size; i += ElementBytes(shape.element)) {
        const std::uint64_t bits = random() & mask;
        std::memcpy(row.data() + i, &bits, ElementBytes(shape.element));
      }
      return row;
    };
    // Without the exponent's highest bit no sum of so many is infinite.
    const std::uint64_t finite = shape.element == Element::kUInt64    ? kAllOnes
                                 : shape.element == Element::kFloat32 ? 0xBFFFFFFFu
                                                                      : 0xBFFFu;
    for (const bool hot : {false, true}) {
      Store store =
          Store::Create(NewPath(), Shape(shape.key_size, shape.value_size), TestOpenOptions());
      for (const std::size_t size : {100, 1500, 5000, 20000, 150000}) {
        const std::uint64_t keys = hot ? 30 : size / 2;
        std::string key_bytes, first_rows;
        for (std::uint64_t key = 0; key < keys; ++key) {
          key_bytes += MakeKey(key, shape.key_size);
          first_rows += draw(hot ? finite : kAllOnes);
        }
        std::vector<Result> results(keys);
        store.Upsert(std::as_bytes(std::span(key_bytes)), std::as_bytes(std::span(first_rows)),
                     results);
        std::string sums = first_rows, asked, rows;
        for (std::size_t i = 0; i < size; ++i) {
          const std::uint64_t key = hot && random() % 8 != 0 ? 3 : random() % keys;
          asked += MakeKey(key, shape.key_size);
          rows += draw(hot ? finite : kAllOnes);
          Addends addends;
          addends.element = shape.element;
          addends.sum = reinterpret_cast<std::byte*>(sums.data()) + key * shape.value_size;
          addends.rows = reinterpret_cast<const std::byte*>(rows.data()) + i * shape.value_size;
          AddRows(ThreadGroup{}, addends, shape.value_size);
        }
        results.assign(size, Result::kInvalid);
        EXPECT_EQ(store.Accumulate(std::as_bytes(std::span(asked)), shape.element,
                                   std::as_bytes(std::span(rows)), results),
                  0u);
        std::string found(sums.size(), '\0');
        results.assign(keys, Result::kInvalid);
        store.Find(std::as_bytes(std::span(key_bytes)), std::as_writable_bytes(std::span(found)),
                   results);
        for (std::uint64_t key = 0; key < keys; ++key) {
          // (A first row to which nothing was added keeps its bits.)
          ASSERT_EQ(found.substr(key * shape.value_size, shape.value_size),
                    sums.substr(key * shape.value_size, shape.value_size))
              << "key " << key << " of " << keys << ", " << size << " rows";
        }
      }
    }
  }
}

TEST_F(RowStoreTest, EachOperationMeetsWhatThoseBeforeItLeft) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  constexpr Op kOps[] = {Op::kAccumulate, Op::kFindOrInsert, Op::kFindOrInsert, Op::kAccumulate,
                         Op::kFind,       Op::kErase,        Op::kAccumulate,   Op::kFindOrInsert,
                         Op::kUpdate,     Op::kAccumulate,   Op::kFindOrInsert, Op::kAccumulate};
  for (const std::uint64_t keys : {1u, 3u, 400u, 3000u}) {
    TestBatch batch = store.NewBatch();
    for (const Op op : kOps) {
      for (std::uint64_t key = 0; key < keys; ++key) batch.Add(op, key, 1000 * key + batch.size());
    }
    store.Apply(batch);
    store.Apply(batch);
  }
  store.ExpectContents();
}

TEST_F(RowStoreTest, CountsThem) {
  Store store = Store::Create(NewPath(), Shape(8, 16), TestOpenOptions());
  const std::vector<std::uint64_t> keys = {1, 2, 1, 3};
  const std::vector<std::uint64_t> rows(8, 5);
  std::vector<Result> results(4);
  std::vector<std::uint64_t> found(8);
  const auto bytes = std::as_bytes(std::span(keys));
  EXPECT_EQ(store.FindOrInsert(bytes, {}, Element::kNone, std::as_bytes(std::span(rows)),
                               std::as_writable_bytes(std::span(found)), results),
            1u);
  EXPECT_EQ(store.Accumulate(bytes, Element::kUInt64, std::as_bytes(std::span(rows)), results), 0u);
  EXPECT_EQ(store.Find(bytes, std::as_writable_bytes(std::span(found)), results), 0u);
  EXPECT_EQ(found, (std::vector<std::uint64_t>{15, 15, 10, 10, 15, 15, 10, 10}));
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items, 3u);
  EXPECT_EQ(stats.operations[static_cast<std::size_t>(Op::kFindOrInsert)], 4u);
  EXPECT_EQ(stats.operations[static_cast<std::size_t>(Op::kAccumulate)], 4u);
  EXPECT_EQ(stats.finds_found, 5u);
}

/// In a full pool what is there is found and added to; what is not finds no room.
TEST_F(RowStoreTest, FullPool) {
  const CreateOptions create = Shape(8, 1024);
  ModelledStore store(NewPath(), create, TestOpenOptions(std::uint64_t{1} << 20));
  std::uint64_t items = 0;
  for (;; ++items) {
    TestBatch batch = store.NewBatch();
    batch.Add(Op::kFindOrInsert, items, items);
    store.Apply(batch, true);
    if (batch.result(0) == Result::kNoSpace) break;
    ASSERT_LT(items, 100000u);
  }
  ASSERT_GT(items, 100u);
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < items; i += 10) batch.Add(Op::kFindOrInsert, i, 0);
  batch.ApplySingle(store.store(), Op::kFindOrInsert);
  batch.Compare(store.model());
  for (std::uint64_t i = 0; i < 20; ++i) store.Apply(Op::kAccumulate, {i % 3});
  store.ExpectContents();
  store.Reopen();
}

TEST_F(RowStoreTest, AsynchronousBatches) {
  Store store = Store::Create(NewPath(), Shape(8, 64), TestOpenOptions());
  const std::vector<std::uint64_t> keys = Numbers(1, 20000);
  std::vector<Result> added(keys.size());
  std::vector<Result> found(keys.size());
  std::vector<float> rows(16 * keys.size());
  Batch first{.op = Op::kFindOrInsert,
              .keys = std::as_bytes(std::span(keys)),
              .results = added,
              .element = Element::kFloat32,
              .initial = InitialValue::Normal(1, 0, 1)};
  Ticket one = store.ApplyAsync(first);
  one.Wait();
  Batch second = first;
  second.results = found;
  second.found = std::as_writable_bytes(std::span(rows));
  Ticket two = store.ApplyAsync(second);
  two.Wait();
  EXPECT_TRUE(std::all_of(added.begin(), added.end(), [](Result r) { return r == Result::kOk; }));
  EXPECT_TRUE(
      std::all_of(found.begin(), found.end(), [](Result r) { return r == Result::kExists; }));
  const RowDrawer drawer = RowDrawer::Of(first.initial, Element::kFloat32);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i], DrawElement(drawer, DrawBase(1, &keys[i / 16], 1),
                                   static_cast<std::uint32_t>(i % 16)));
  }
}

TEST_F(RowStoreTest, BadInputIsRefused) {
  Store store = Store::Create(NewPath(), Shape(8, 6), TestOpenOptions());
  const std::array<std::uint64_t, 2> keys = {1, 2};
  const std::array<std::byte, 12> rows{};
  std::array<Result, 2> results{};
  const auto bytes = std::as_bytes(std::span(keys));
  const auto refuses = [&](Batch batch, const char* what) {
    batch.keys = bytes;
    batch.results = results;
    std::string message;
    EXPECT_EQ(ErrorOf([&] { store.Apply(batch); }, &message), ErrorCode::kInvalidArgument) << what;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  const Op accumulate = Op::kAccumulate;
  const Op find_or_insert = Op::kFindOrInsert;
  refuses({.op = accumulate, .values = rows}, "of which element");
  refuses({.op = accumulate, .values = rows, .element = Element::kFloat32}, "float32");
  refuses({.op = accumulate, .values = rows, .element = Element::kUInt64}, "uint64");
  refuses({.op = accumulate, .values = rows, .element = static_cast<Element>(9)}, "Element");
  refuses({.op = accumulate, .element = Element::kFloat16}, "'values' is missing");
  refuses({.op = find_or_insert}, "'values' is missing");
  refuses({.op = find_or_insert, .initial = InitialValue::Constant(std::span(rows).first(5))},
          "it must have 6");
  refuses({.op = find_or_insert, .initial = InitialValue::Uniform(1, 0, 1)}, "can't be drawn");
  const auto drawn = [&](const InitialValue& initial) {
    return Batch{.op = find_or_insert, .element = Element::kFloat16, .initial = initial};
  };
  refuses(drawn(InitialValue::Uniform(1, 2, 1)), "low 2");
  refuses(drawn(InitialValue::Normal(1, 0, -1)), "deviation -1");
  refuses(drawn(InitialValue::Normal(1, std::numeric_limits<float>::quiet_NaN(), 1)), "mean nan");
  refuses(drawn(InitialValue::Uniform(1, 0, 70'000)), "high 70000 can't be drawn as float16");
  refuses({.op = find_or_insert,
           .element = Element::kBFloat16,
           .initial = InitialValue::Uniform(1, std::numeric_limits<float>::lowest(), 0)},
          "can't be drawn as bfloat16");
  InitialValue cut = InitialValue::Uniform(1, 0, 1);
  cut.drawn_bytes = 3;
  refuses(drawn(cut), "3 bytes of its initial values");
  cut.drawn_bytes = 8;
  refuses(drawn(cut), "a value has 6");
  refuses(drawn({.from = static_cast<InitialValue::From>(7)}), "sources");
  const std::array<Op, 2> ops = {find_or_insert, Op::kInsert};
  refuses({.ops = ops, .initial = InitialValue::Constant(std::span(rows).first(6))},
          "'values' is missing");
  EXPECT_EQ(store.Stats().items, 0u);

  // In a mixed batch the results say it, since the kinds may be in device memory.
  const std::array<Op, 2> adds = {Op::kUpsert, accumulate};
  store.Apply({.ops = adds, .keys = bytes, .values = rows, .results = results});
  EXPECT_EQ(results[0], Result::kOk);
  EXPECT_EQ(results[1], Result::kInvalid);
}

}  // namespace
}  // namespace gpm::test
