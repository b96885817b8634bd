#ifndef GPM_TESTS_SEARCH_TEST_UTIL_H_
#define GPM_TESTS_SEARCH_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gpmstore/search.h"
#include "tests/test_util.h"

namespace gpm::test {

inline constexpr std::uint32_t kSession = 0;
inline constexpr std::uint32_t kModel = 1;
inline constexpr std::uint32_t kBoth = 2;

/// Of values of at least 8 bytes, which begin with their tag.
inline std::vector<Attribute> TestAttributes() {
  return {{"session", 0, 4}, {"model", 4, 4}, {"both", 0, 8}};
}
inline std::uint64_t Tag(std::uint64_t session, std::uint64_t model) {
  return session | model << 32;
}

inline CreateOptions SearchedShape(std::uint32_t key_size, std::uint32_t value_size) {
  CreateOptions create = Shape(key_size, value_size);
  create.attributes = TestAttributes();
  return create;
}

inline bool Meets(const Query& query, const std::vector<Attribute>& attributes,
                  const std::string& value) {
  return std::all_of(query.begin(), query.end(), [&](const Condition& condition) {
    const Attribute& attribute = attributes[condition.attribute];
    std::uint64_t number = 0;
    std::memcpy(&number, value.data() + attribute.offset, attribute.bytes);
    return condition.least <= number && number <= condition.most;
  });
}

/// Keys, in their order, and values of what a query matches.
using Rows = std::map<std::string, std::string>;

inline Rows PlainScan(const Query& query, const std::vector<Attribute>& attributes,
                      const Model& model) {
  Rows rows;
  for (const auto& [key, value] : model) {
    if (Meets(query, attributes, value)) rows.emplace(key, value);
  }
  return rows;
}

/// Queries as an array with a condition on each of the test's attributes.
struct QueryRows {
  explicit QueryRows(const std::vector<Query>& queries) {
    for (const Query& query : queries) {
      std::vector<std::uint64_t> row;
      for (std::uint32_t a = 0; a < attributes.size(); ++a) {
        row.insert(row.end(), {0, ~std::uint64_t{0}});
      }
      for (const Condition& condition : query) {
        std::uint64_t* const range = row.data() + 2 * condition.attribute;
        range[0] = std::max(range[0], condition.least);
        range[1] = std::min(range[1], condition.most);
      }
      bounds.insert(bounds.end(), row.begin(), row.end());
    }
  }
  QueryArray array() const { return {.attributes = attributes, .bounds = bounds}; }

  std::vector<std::uint32_t> attributes{kSession, kModel, kBoth};
  std::vector<std::uint64_t> bounds;
};

/// An array of the queries has the same rows, and counts, as the queries.
inline void ExpectMatchesOfArray(ModelledStore& store, const std::vector<Query>& queries,
                                 const SearchOptions& options) {
  const SearchResult right = store.store().Search(queries, options);
  std::vector<std::uint64_t> counts(queries.size(), 99);
  std::vector<std::uint64_t> offsets(options.keys ? queries.size() + 1 : 0, 99);
  Bytes keys(right.keys.size(), std::byte{9});
  Bytes values(right.values.size(), std::byte{9});
  Matches matches{.counts = counts, .offsets = offsets, .keys = keys, .values = values};
  store.store().Search(QueryRows(queries).array(), options.limit, &matches);
  EXPECT_EQ(counts, right.counts);
  EXPECT_EQ(offsets, right.offsets);
  EXPECT_EQ(matches.answered, queries.size());
  EXPECT_EQ(matches.rows, options.keys ? right.offsets.back() : 0);
  EXPECT_EQ(keys, right.keys);
  EXPECT_EQ(values, right.values);
}

inline void ExpectMatches(ModelledStore& store, const std::vector<Query>& queries,
                          const SearchOptions& options) {
  const std::uint64_t key_size = store.store().key_size();
  const std::uint64_t value_size = store.store().value_size();
  const SearchResult result = store.store().Search(queries, options);
  ASSERT_EQ(result.counts.size(), queries.size());
  std::uint64_t row = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const Rows right = PlainScan(queries[i], store.store().attributes(), store.model());
    ASSERT_EQ(result.counts[i], right.size()) << "query " << i;
    if (!options.keys) continue;
    ASSERT_EQ(result.offsets[i], row);
    std::uint64_t left = options.limit;
    for (const auto& [key, value] : right) {
      if (left-- == 0) break;
      ASSERT_LT(row, result.keys.size() / key_size);
      ASSERT_EQ(AsString(std::span(result.keys).subspan(row * key_size, key_size)), key)
          << "query " << i;
      if (options.values) {
        ASSERT_EQ(AsString(std::span(result.values).subspan(row * value_size, value_size)), value);
      }
      ++row;
    }
  }
  EXPECT_EQ(result.keys.size(), row * key_size);
  EXPECT_EQ(result.values.size(), options.values ? row * value_size : 0);
  EXPECT_EQ(result.offsets.size(), options.keys ? queries.size() + 1 : 0);
  if (options.keys) {
    EXPECT_EQ(result.offsets.back(), row);
  }
}

class SearchTest : public PoolTest {
 protected:
  std::uint64_t Random(std::uint64_t below) { return random_() % below; }

  std::uint64_t RandomTag() { return Tag(Random(2) == 0 ? 7 : Random(40), Random(5)); }

  Query RandomQuery() {
    Query query;
    for (std::uint64_t conditions = Random(4); conditions > 0; --conditions) {
      Condition condition{.attribute = static_cast<std::uint32_t>(Random(3))};
      const std::uint64_t number = condition.attribute == kBoth ? RandomTag() : Random(41);
      switch (Random(5)) {
        case 0:
          condition.least = number;
          break;
        case 1:
          condition.most = number;
          break;
        case 2:
          condition.least = number;
          condition.most = number + Random(10) - 1;  // none, if that is smaller
          break;
        default:
          condition.least = condition.most = number;
      }
      query.push_back(condition);
    }
    return query;
  }

  TestBatch RandomBatch(const ModelledStore& store, std::uint64_t operations,
                        std::uint64_t keys = 3000) {
    static constexpr Op kKinds[] = {Op::kInsert, Op::kUpsert, Op::kUpdate, Op::kErase};
    TestBatch batch = store.NewBatch();
    for (; operations > 0; --operations) batch.Add(kKinds[Random(4)], Random(keys), RandomTag());
    return batch;
  }

 private:
  std::mt19937_64 random_{TestSeed()};
};

}  // namespace gpm::test

#endif  // GPM_TESTS_SEARCH_TEST_UTIL_H_
