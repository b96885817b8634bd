// Searches of executor cuda with arrays in GPU memory, and by its index (DeviceIndex); what else
// searches promise, search_test and search_index_test check on this executor, too.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_test_util.cuh"
#include "tests/search_test_util.h"

namespace gpm::test {
namespace {

/// An array in host or GPU memory; poisoned.
template <class T>
class Array {
 public:
  Array(bool on_device, std::size_t size, std::size_t shift = 0)
      : shift_(shift), host_(size, T{0x5A}), device_(on_device ? size + shift : 0) {
    if (on_device && size > 0) {
      CheckCuda(cudaMemcpy(device_.data() + shift, host_.data(), size * sizeof(T),
                           cudaMemcpyHostToDevice),
                "cudaMemcpy");
    }
    on_device_ = on_device;
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void Set(const std::vector<T>& contents, cudaStream_t stream) {
    host_ = contents;
    if (!on_device_ || host_.empty()) return;
    CheckCuda(cudaMemcpyAsync(device_.data() + shift_, host_.data(), host_.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  }
  std::span<T> span() {
    return {on_device_ ? device_.data() + shift_ : host_.data(), host_.size()};
  }
  std::vector<T> Contents() {
    if (on_device_ && !host_.empty()) {
      CheckCuda(cudaMemcpy(host_.data(), device_.data() + shift_, host_.size() * sizeof(T),
                           cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    }
    return host_;
  }

 private:
  std::size_t shift_;
  std::vector<T> host_;
  OnDevice<T> device_;
  bool on_device_ = false;
};

class CudaSearchTest : public SearchTest {
 protected:
  static OpenOptions Indexed(bool indexed, const std::vector<std::string>& fixed = {}) {
    OpenOptions open = TestOpenOptions();
    if (indexed) open.search_index_bytes = std::uint64_t{1} << 32;
    open.search_indexed = fixed;
    return open;
  }
};

TEST_F(CudaSearchTest, AStreamThatIsCapturedIsRefused) {
  for (const bool indexed : {false, true}) {
    ModelledStore store(NewPath(), SearchedShape(8, 40), Indexed(indexed));
    TestBatch batch = RandomBatch(store, 700);
    store.Apply(batch);
    const QueryRows queries({RandomQuery()});
    std::vector<std::uint64_t> counts(1);
    Matches matches{.counts = counts};
    const auto search = [&](cudaStream_t stream) {
      store.store().Search(queries.array(), kAllOnes, &matches, stream);
    };
    cudaStream_t stream = nullptr;
    CheckCuda(cudaStreamCreate(&stream), "cudaStreamCreate");
    search(stream);
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    EXPECT_EQ(ErrorOf([&] { search(stream); }), ErrorCode::kInvalidArgument);
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");  // it captured on
    CheckCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    search(stream);
    CheckCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
}

/// Columns have 4 bytes an item until a number needs more, in what was made first and in what
/// changed.
TEST_F(CudaSearchTest, NumbersThatNeedEightBytesComeAndGo) {
  constexpr std::uint64_t kItems = 3000;
  constexpr std::uint64_t kWide = std::uint64_t{1} << 33;
  constexpr std::uint64_t kMostNarrow = 0xFFFF'FFFF;
  CreateOptions create = Shape(8, 40);
  create.attributes = {{"number", 0, 8}};
  ModelledStore store(NewPath(), create, Indexed(true));
  const auto put = [&](Op kind, std::uint64_t count, std::uint64_t add) {
    TestBatch batch(8, 40);
    for (std::uint64_t i = 0; i < count; ++i) batch.Add(kind, i, i + add);
    batch.ApplySingle(store.store(), kind);
  };
  /// @param wide items with such numbers @param first of them, item 0
  const auto expect = [&](std::uint64_t wide, std::uint64_t from_500, std::uint64_t first) {
    const auto range = [](std::uint64_t least, std::uint64_t most) {
      return Query{{.attribute = 0, .least = least, .most = most}};
    };
    const std::vector<Query> queries = {range(0, kMostNarrow), range(kMostNarrow + 1, kAllOnes),
                                        range(500, kAllOnes), range(kWide, kWide),
                                        range(kMostNarrow, kMostNarrow + 1)};
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(store.store().Search(queries, {.keys = false}).counts,
                (std::vector<std::uint64_t>{kItems - wide, wide, from_500, first, 0}));
    }
  };
  put(Op::kInsert, kItems, 0);
  expect(0, kItems - 500, 0);
  put(Op::kUpdate, 100, kWide);
  expect(100, kItems - 500 + 100, 1);
  put(Op::kUpdate, 50, 0);
  put(Op::kUpdate, 1, kWide);
  expect(51, kItems - 500 + 51, 1);
  put(Op::kUpdate, kItems, kWide);
  expect(kItems, kItems, 1);
  put(Op::kUpdate, kItems - 1, 0);
  expect(1, kItems - 500, 0);  // (the one is the last, which is past 500 anyway)
  put(Op::kUpdate, kItems, 0);
  expect(0, kItems - 500, 0);
  EXPECT_GE(store.store().Stats().search_index_updates, 2u);
}

TEST_F(CudaSearchTest, ArraysInAnyMemory) {
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const std::vector<std::string> pairs{"session+model", "both+session", "model"};
  for (const std::uint32_t key_size : {8, 5, 32}) {
    for (const int kind : {0, 1, 2}) {
      const bool indexed = kind > 0;
      ModelledStore store(NewPath(), SearchedShape(key_size, 40),
                          kind == 2 ? Indexed(true, pairs) : Indexed(indexed));
      for (int round = 0; round < 24; ++round) {
        TestBatch batch = RandomBatch(store, 300);
        store.Apply(batch);
        std::vector<Query> queries(round % 3 == 0 ? Random(3) : Random(400));
        for (Query& query : queries) query = RandomQuery();
        const std::uint64_t limit = Random(2) == 0 ? Random(20) : kAllOnes;

        std::vector<std::uint64_t> counts;
        std::vector<std::uint64_t> offsets{0};
        std::string keys;
        std::string values;
        for (const Query& query : queries) {
          const Rows rows = PlainScan(query, store.store().attributes(), store.model());
          counts.push_back(rows.size());
          std::uint64_t left = limit;
          for (const auto& [key, value] : rows) {
            if (left-- == 0) break;
            keys += key;
            values += value;
          }
          offsets.push_back(keys.size() / key_size);
        }
        // Perhaps there is room for some queries' rows alone.
        const std::uint64_t rows = offsets.back();
        const std::uint64_t room = Random(3) == 0 ? Random(rows + 1) : rows;
        std::uint64_t answered = 0;
        while (answered < queries.size() && offsets[answered + 1] <= room) ++answered;
        for (std::uint64_t& offset : offsets) offset = std::min(offset, offsets[answered]);

        Array<std::uint64_t> bounds(Random(2) == 0, 6 * queries.size());
        Array<std::uint64_t> its_counts(Random(2) == 0, counts.size());
        Array<std::uint64_t> its_offsets(Random(2) == 0, offsets.size());
        Array<std::byte> its_keys(Random(2) == 0, room * key_size, Random(2));
        const bool wants_values = Random(2) == 0;
        Array<std::byte> its_values(Random(2) == 0, wants_values ? room * 40 : 0, Random(2));
        const QueryRows query_rows(queries);
        bounds.Set(query_rows.bounds, stream);
        Matches matches{.counts = its_counts.span(),
                        .offsets = its_offsets.span(),
                        .keys = its_keys.span(),
                        .values = its_values.span()};
        store.store().Search({.attributes = query_rows.attributes, .bounds = bounds.span()}, limit,
                             &matches, stream);
        ASSERT_EQ(its_counts.Contents(), counts);
        ASSERT_EQ(its_offsets.Contents(), offsets);
        EXPECT_EQ(matches.rows, rows);
        EXPECT_EQ(matches.answered, answered);
        const std::vector<std::byte> found = its_keys.Contents();
        const std::uint64_t given = offsets[answered] * key_size;
        ASSERT_EQ(AsString(std::span(found).first(given)), keys.substr(0, given));
        if (wants_values && room > 0) {
          const std::vector<std::byte> found_values = its_values.Contents();
          const std::uint64_t bytes = offsets[answered] * 40;
          ASSERT_EQ(AsString(std::span(found_values).first(bytes)), values.substr(0, bytes));
        }

        Matches alone{.counts = its_counts.span()};
        store.store().Search({.attributes = query_rows.attributes, .bounds = bounds.span()}, limit,
                             &alone, stream);
        ASSERT_EQ(its_counts.Contents(), counts);
      }
      const StoreStats stats = store.store().Stats();
      EXPECT_EQ(stats.search_indexes_made, indexed ? 1u : 0u);
      EXPECT_EQ(stats.search_index_updates > 0, indexed);
      if (kind == 0) EXPECT_EQ(stats.search_pairs, 0u);
      if (kind == 2) EXPECT_GE(stats.search_pairs, 2u);
    }
  }
  CheckCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

/// Values in GPU memory are found by keys of the index, where they are not too many; and by a look
/// at all items where batches come between.
TEST_F(CudaSearchTest, ValuesAreFoundInGpuMemory) {
  constexpr std::uint64_t kItems = 70'000;
  ModelledStore store(NewPath(), SearchedShape(8, 40), Indexed(true));
  store.Apply(Op::kInsert, Numbers(0, kItems));
  const std::vector<std::uint32_t> attributes{kSession};
  Array<std::uint64_t> bounds(true, 2);
  bounds.Set({0, kAllOnes}, nullptr);
  const auto search = [&] {
    Array<std::uint64_t> counts(true, 1);
    Array<std::uint64_t> offsets(true, 2);
    Array<std::byte> keys(true, kItems * 8);
    Array<std::byte> values(true, kItems * 40);
    Matches matches{.counts = counts.span(),
                    .offsets = offsets.span(),
                    .keys = keys.span(),
                    .values = values.span()};
    store.store().Search({.attributes = attributes, .bounds = bounds.span()}, kAllOnes, &matches);
    ASSERT_EQ(matches.rows, kItems);
    ASSERT_EQ(offsets.Contents()[1], kItems);
    const std::string its_keys = AsString(keys.Contents());
    const std::string its_values = AsString(values.Contents());
    std::uint64_t row = 0;
    for (const auto& [key, value] : Rows(store.model().begin(), store.model().end())) {
      ASSERT_EQ(its_keys.substr(8 * row, 8), key);
      ASSERT_EQ(its_values.substr(40 * row++, 40), value);
    }
  };
  for (int again = 0; again < 4; ++again) search();
  EXPECT_EQ(store.store().Stats().search_scans, 2u) << "the others found all by the index";
  store.Apply(Op::kUpdate, Numbers(100, 50), 3);
  search();
  EXPECT_EQ(store.store().Stats().search_scans, 2u);
}

/// More candidates than are looked at together; and one match for each of many queries.
TEST_F(CudaSearchTest, ManyItemsAndQueries) {
  constexpr std::uint64_t kItems = 150'000;
  constexpr std::uint64_t kModels = 5;
  Store store = Store::Create(NewPath(), SearchedShape(8, 8), Indexed(true));
  TestBatch batch(8, 8);
  for (std::uint64_t i = 0; i < kItems; ++i) batch.Add(Op::kInsert, i, Tag(i, i % kModels));
  EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  std::vector<std::string> by_key;
  for (std::uint64_t i = 0; i < kItems; ++i) by_key.push_back(MakeKey(i, 8));

  const auto search = [&](const std::vector<std::uint32_t>& attributes,
                          const std::vector<std::uint64_t>& bounds, std::uint64_t limit,
                          std::vector<std::uint64_t>* counts, std::vector<std::uint64_t>* offsets,
                          std::vector<std::byte>* keys) {
    const OnDevice<std::uint64_t> its_bounds(bounds);
    const std::size_t n = bounds.size() / (2 * attributes.size());
    const OnDevice<std::uint64_t> its_counts(n);
    const OnDevice<std::uint64_t> its_offsets(n + 1);
    const OnDevice<std::byte> its_keys(keys->size());
    Matches matches{.counts = {its_counts.data(), n}, .keys = its_keys.Out()};
    if (offsets != nullptr) matches.offsets = {its_offsets.data(), n + 1};
    store.Search({.attributes = attributes, .bounds = {its_bounds.data(), bounds.size()}}, limit,
                 &matches);
    *counts = its_counts.Host();
    if (offsets != nullptr) *offsets = its_offsets.Host();
    *keys = its_keys.Host();
  };

  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> offsets;
  std::vector<std::byte> keys;
  std::vector<std::uint64_t> singles;
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 200'000; ++i) {
    numbers.push_back(Random(2 * kItems));  // every second one is no item's
    const std::uint64_t model = numbers.back() % kModels;
    singles.insert(singles.end(), {numbers.back(), numbers.back(), model, model});
  }
  for (int again = 0; again < 3; ++again) {  // the last one by the index
    keys.resize(numbers.size() * 8);
    search({kSession, kModel}, singles, kAllOnes, &counts, &offsets, &keys);
    std::uint64_t row = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(counts[i], numbers[i] < kItems ? 1u : 0u);
      ASSERT_EQ(offsets[i], row);
      if (counts[i] == 0) continue;
      ASSERT_EQ(AsString(std::span(keys).subspan(8 * row++, 8)), by_key[numbers[i]]);
    }
  }
  EXPECT_EQ(store.Stats().search_scans, 2u);

  // 300 queries of all items but some, of one model each.
  std::vector<std::uint64_t> ranges;
  for (std::uint64_t q = 0; q < 300; ++q) {
    ranges.insert(ranges.end(), {q, kItems, q % kModels, q % kModels});
  }
  ranges[1] = 0;  // but the first one, of one item
  std::vector<std::vector<std::string>> of_model(kModels);
  std::map<std::string, std::uint64_t> number_of;
  for (std::uint64_t i = 0; i < kItems; ++i) {
    of_model[i % kModels].push_back(by_key[i]);
    number_of[by_key[i]] = i;
  }
  for (auto& sorted : of_model) std::sort(sorted.begin(), sorted.end());
  for (const bool rows : {false, true}) {
    constexpr std::uint64_t kLimit = 7;
    keys.resize(rows ? 300 * kLimit * 8 : 0);
    search({kSession, kModel}, ranges, kLimit, &counts, rows ? &offsets : nullptr, &keys);
    for (std::uint64_t q = 0; q < 300; ++q) {
      const std::uint64_t model = q % kModels;
      std::uint64_t right = 0;
      for (std::uint64_t i = q; i < kItems; ++i) right += i % kModels == model ? 1 : 0;
      ASSERT_EQ(counts[q], q == 0 ? 1 : right) << q;
      if (!rows) continue;
      ASSERT_EQ(offsets[q + 1], q == 0 ? 1 : 1 + kLimit * q);
      if (q == 0) continue;
      std::uint64_t at = offsets[q];
      for (const std::string& key : of_model[model]) {
        if (at == offsets[q + 1]) break;
        if (number_of[key] < q) continue;
        ASSERT_EQ(AsString(std::span(keys).subspan(8 * at++, 8)), key);
      }
    }
  }
  // One query of all items of a model, and of all items.
  for (const std::uint64_t least : {2, 0}) {
    keys.resize(kItems * 8);
    search({kModel}, {least, least == 0 ? kAllOnes : least}, kAllOnes, &counts, &offsets, &keys);
    const std::uint64_t right = least == 0 ? kItems : kItems / kModels;
    ASSERT_EQ(counts[0], right);
    ASSERT_EQ(offsets[1], right);
    std::vector<std::string> all = of_model[least];
    if (least == 0) {
      all = by_key;
      std::sort(all.begin(), all.end());
    }
    for (std::uint64_t i = 0; i < right; ++i) {
      ASSERT_EQ(AsString(std::span(keys).subspan(8 * i, 8)), all[i]);
    }
  }
}

/// Few and many queries of arrays in GPU memory get a pair that they look in vain without, and
/// find the same then.
TEST_F(CudaSearchTest, ArraysGetPairs) {
  constexpr std::uint64_t kSessions = 100;
  constexpr std::uint64_t kModels = 500;
  for (const bool keys : {false, true}) {
    for (const std::size_t count : {1000u, 20'000u}) {
      Store store = Store::Create(NewPath(), SearchedShape(8, 8), Indexed(true));
      TestBatch batch(8, 8);
      for (std::uint64_t i = 0; i < kSessions * kModels; ++i) {
        batch.Add(Op::kInsert, i, Tag(i % kSessions, i / kSessions));
      }
      EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
      const std::vector<std::uint32_t> attributes{kSession, kModel};
      const auto search = [&] {
        std::vector<std::uint64_t> bounds;
        std::vector<std::uint64_t> right;
        std::vector<std::string> right_keys;
        for (std::size_t q = 0; q < count; ++q) {
          const std::uint64_t session = Random(kSessions);
          const std::uint64_t model = Random(kModels + 5);
          bounds.insert(bounds.end(), {session, session, model, model});
          right.push_back(model < kModels ? 1 : 0);
          if (model < kModels) right_keys.push_back(MakeKey(model * kSessions + session, 8));
        }
        const OnDevice<std::uint64_t> its_bounds(bounds);
        const OnDevice<std::uint64_t> counts(count);
        const OnDevice<std::uint64_t> offsets(count + 1);
        const OnDevice<std::byte> found(8 * count);
        Matches matches{.counts = {counts.data(), count}};
        if (keys) {
          matches.offsets = {offsets.data(), count + 1};
          matches.keys = found.Out();
        }
        store.Search({.attributes = attributes, .bounds = {its_bounds.data(), bounds.size()}},
                     kAllOnes, &matches);
        ASSERT_EQ(counts.Host(), right);
        if (!keys) return;
        ASSERT_EQ(matches.rows, right_keys.size());
        const std::string all = AsString(found.Host());
        for (std::size_t row = 0; row < right_keys.size(); ++row) {
          ASSERT_EQ(all.substr(8 * row, 8), right_keys[row]);
        }
      };
      for (int again = 0; again < 6; ++again) search();
      EXPECT_EQ(store.Stats().search_pairs, 1u);
      TestBatch changes(8, 8);  // the same items again: of a delta, and of dead rows
      for (std::uint64_t i = 0; i < 700; ++i) {
        changes.Add(Op::kUpdate, 7 * i, Tag(7 * i % kSessions, 7 * i / kSessions));
      }
      EXPECT_EQ(changes.CallFor(store, Op::kUpdate), 0u);
      for (int again = 0; again < 2; ++again) search();
      EXPECT_EQ(store.Stats().search_scans, 2u);
      EXPECT_EQ(store.Stats().search_pairs, 1u);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gpm::test
