#include "shard/collective_search.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "engine/query_plan.h"
#include "gpmstore/error.h"
#include "shard/merge_matches.h"
#include "shard/together.h"

namespace gpm {
namespace {

using Bytes = std::vector<std::byte>;

/// Puts numbers and arrays one behind the other.
class Writer {
 public:
  void Number(std::uint64_t number) { Append(std::as_bytes(std::span(&number, 1))); }
  template <class T>
  void Array(const std::vector<T>& array) {
    Number(array.size());
    Append(std::as_bytes(std::span(array)));
  }
  Bytes bytes;

 private:
  void Append(std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

/// Takes them again.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  std::uint64_t Number() {
    std::uint64_t number;
    std::memcpy(&number, Take(sizeof number), sizeof number);
    return number;
  }
  template <class T>
  std::vector<T> Array() {
    std::vector<T> array(Number());
    if (!array.empty())
      std::memcpy(array.data(), Take(array.size() * sizeof(T)), array.size() * sizeof(T));
    return array;
  }

 private:
  const std::byte* Take(std::size_t bytes) {
    const std::byte* const taken = left_.data();
    left_ = left_.subspan(bytes);
    return taken;
  }
  std::span<const std::byte> left_;
};

/// What a rank asks.
struct Request {
  std::vector<Query> queries;
  SearchOptions options;
};

Bytes BytesOf(std::span<const Query> queries, const SearchOptions& options) {
  Writer writer;
  writer.Number(options.limit);
  writer.Number(options.keys ? 1 : 0);
  writer.Number(options.values ? 1 : 0);
  writer.Number(queries.size());
  for (const Query& query : queries) {
    writer.Number(query.size());
    for (const Condition& condition : query) {
      writer.Number(condition.attribute);
      writer.Number(condition.least);
      writer.Number(condition.most);
    }
  }
  return std::move(writer.bytes);
}

Request RequestOf(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Request request;
  request.options.limit = reader.Number();
  request.options.keys = reader.Number() != 0;
  request.options.values = reader.Number() != 0;
  request.queries.resize(reader.Number());
  for (Query& query : request.queries) {
    query.resize(reader.Number());
    for (Condition& condition : query) {
      condition.attribute = static_cast<std::uint32_t>(reader.Number());
      condition.least = reader.Number();
      condition.most = reader.Number();
    }
  }
  return request;
}

Bytes BytesOf(const SearchResult& result) {
  Writer writer;
  writer.Array(result.counts);
  writer.Array(result.offsets);
  writer.Array(result.keys);
  writer.Array(result.values);
  return std::move(writer.bytes);
}

SearchResult ResultOf(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  SearchResult result;
  result.counts = reader.Array<std::uint64_t>();
  result.offsets = reader.Array<std::uint64_t>();
  result.keys = reader.Array<std::byte>();
  result.values = reader.Array<std::byte>();
  return result;
}

std::vector<std::span<const std::byte>> SpansOf(const std::vector<Bytes>& parts) {
  return {parts.begin(), parts.end()};
}

/// Of this rank's shards.
SearchResult SearchShards(ShardSet& set, const Request& request) {
  std::vector<SearchResult> parts(set.count());
  set.ForAll([&](std::uint32_t shard) {
    parts[shard - set.first()] = set.store(shard).Search(request.queries, request.options);
  });
  return MergeMatches(parts, request.options, set.key_size(), set.value_size());
}

/// @throws Error(kInvalidArgument)
void Validate(const ShardSet& set, std::span<const Query> queries) {
  const QueryPlan plan(queries, set.store(set.first()).attributes());
}

}  // namespace

SearchResult SearchTogether(Exchange& exchange, ShardSet& set, std::span<const Query> mine,
                            const SearchOptions& options) {
  Together(exchange, [&] { Validate(set, mine); });
  const Bytes asked = BytesOf(mine, options);
  const std::vector<std::span<const std::byte>> to_all(exchange.ranks(), asked);
  const std::vector<Bytes> requests = SendBytes(exchange, to_all);
  std::vector<Bytes> answers;
  Together(exchange, [&] {
    for (const Bytes& bytes : requests) {
      answers.push_back(BytesOf(SearchShards(set, RequestOf(bytes))));
    }
  });
  std::vector<SearchResult> parts;
  for (const Bytes& bytes : SendBytes(exchange, SpansOf(answers))) parts.push_back(ResultOf(bytes));
  return MergeMatches(parts, options, set.key_size(), set.value_size());
}

std::uint64_t ChangeTogether(Exchange& exchange, ShardSet& set, const Query& query,
                             const std::function<std::uint64_t()>& change) {
  const std::span<const Query> mine(&query, 1);
  Together(exchange, [&] { Validate(set, mine); });
  const Bytes asked = BytesOf(mine, {});
  const std::vector<std::span<const std::byte>> to_all(exchange.ranks(), asked);
  const std::vector<Bytes> theirs = SendBytes(exchange, to_all);
  for (std::uint32_t rank = 1; rank < theirs.size(); ++rank) {  // the same on every rank
    if (theirs[rank] == theirs.front()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the query of rank {} is not that of rank 0", rank));
  }
  std::uint64_t changed = 0;
  Together(exchange, [&] { changed = change(); });
  std::uint64_t sum = 0;
  for (const std::uint64_t part : GatherObjects(exchange, changed)) sum += part;
  return sum;
}

}  // namespace gpm
