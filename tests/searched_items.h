#ifndef GPM_TESTS_SEARCHED_ITEMS_H_
#define GPM_TESTS_SEARCHED_ITEMS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpmstore/search.h"
#include "tests/test_util.h"

namespace gpm::test {

/// Bytes of a value with two attributes.
inline constexpr std::uint32_t kSearchedValueSize = 24;

inline CreateOptions SearchedShape(std::uint32_t key_size) {
  CreateOptions create = Shape(key_size, kSearchedValueSize);
  create.attributes = {{"session", 0, 4}, {"model", 4, 4}};
  return create;
}

/// The first word of the value of the item with this number.
inline std::uint64_t TagOf(std::uint64_t number) { return number % 40 | number % 7 << 32; }

/// A batch of one kind on items with these numbers, in sessions and models that follow from them.
template <class AnyStore>
TestBatch SearchedBatch(const AnyStore& store, Op kind, const std::vector<std::uint64_t>& numbers) {
  TestBatch batch(store.key_size(), store.value_size());
  for (const std::uint64_t number : numbers) batch.Add(kind, number, TagOf(number));
  return batch;
}
template <class AnyStore>
void ApplyTo(AnyStore& store, Op kind, const std::vector<std::uint64_t>& numbers) {
  SearchedBatch(store, kind, numbers).ApplySingle(store, kind);
}

inline std::vector<Query> SomeQueries(const std::vector<Attribute>& attributes) {
  std::vector<Query> queries;
  for (const char* text : {"session = 7", "model < 3", "session = 7 and model = 0", "session > 50",
                           "", "session >= 38 and model > 1"}) {
    queries.push_back(ParseQuery(text, attributes));
  }
  return queries;
}

inline void ExpectSame(const SearchResult& a, const SearchResult& b) {
  EXPECT_EQ(a.counts, b.counts);
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.values, b.values);
}

}  // namespace gpm::test

#endif  // GPM_TESTS_SEARCHED_ITEMS_H_
