#include "shard/collective_search.h"

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/query_plan.h"
#include "shard/merge_matches.h"

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

/// What a search of some of the queries would have given.
SearchResult Slice(const SearchResult& all, std::size_t first, std::size_t count,
                   std::uint32_t key_size, std::uint32_t value_size) {
  const auto part = [](const auto& rows, std::size_t from, std::size_t to) {
    using Rows = std::decay_t<decltype(rows)>;
    return Rows(rows.begin() + static_cast<std::ptrdiff_t>(from),
                rows.begin() + static_cast<std::ptrdiff_t>(to));
  };
  SearchResult some;
  some.counts = part(all.counts, first, first + count);
  if (all.offsets.empty()) return some;
  const std::uint64_t begin = all.offsets[first];
  const std::uint64_t end = all.offsets[first + count];
  for (std::size_t i = first; i <= first + count; ++i) {
    some.offsets.push_back(all.offsets[i] - begin);
  }
  some.keys = part(all.keys, begin * key_size, end * key_size);
  if (!all.values.empty()) some.values = part(all.values, begin * value_size, end * value_size);
  return some;
}

/// Looks in this rank's shards for what each rank asks: once for all that ask in one way.
std::vector<Bytes> Answers(ShardSet& set, const std::vector<Bytes>& asked) {
  std::vector<Request> requests;
  for (const Bytes& bytes : asked) requests.push_back(RequestOf(bytes));
  std::vector<Bytes> answers(requests.size());
  std::vector<char> answered(requests.size());
  for (std::size_t first = 0; first < requests.size(); ++first) {
    if (answered[first] != 0) continue;
    const SearchOptions& options = requests[first].options;
    std::vector<std::size_t> ranks;
    std::vector<Query> queries;
    for (std::size_t rank = first; rank < requests.size(); ++rank) {
      const SearchOptions& other = requests[rank].options;
      if (other.limit != options.limit || other.keys != options.keys ||
          other.values != options.values) {
        continue;
      }
      ranks.push_back(rank);
      queries.insert(queries.end(), requests[rank].queries.begin(), requests[rank].queries.end());
    }
    std::vector<SearchResult> parts(set.count());
    set.ForAll([&](std::uint32_t shard) {
      parts[shard - set.first()] = set.store(shard).Search(queries, options);
    });
    const SearchResult found = MergeMatches(parts, options, set.key_size(), set.value_size());
    std::size_t at = 0;
    for (const std::size_t rank : ranks) {
      const std::size_t count = requests[rank].queries.size();
      answers[rank] = BytesOf(Slice(found, at, count, set.key_size(), set.value_size()));
      answered[rank] = 1;
      at += count;
    }
  }
  return answers;
}

/// @throws Error(kInvalidArgument)
void Validate(const ShardSet& set, std::span<const Query> queries) {
  const QueryPlan plan(queries, set.store(set.first()).attributes());
}

}  // namespace

SearchResult SearchTogether(Exchange& exchange, ShardSet& set, std::span<const Query> mine,
                            const SearchOptions& options) {
  std::vector<Bytes> asked;
  BeginTogether(exchange, CollectiveCall::kSearch, [&] {
    Validate(set, mine);
    asked.push_back(BytesOf(mine, options));
  });
  asked = SendBytes(exchange, asked);
  Together(exchange, [&] { asked = Answers(set, asked); });
  std::vector<SearchResult> parts;
  for (const Bytes& bytes : SendBytes(exchange, asked)) parts.push_back(ResultOf(bytes));
  return MergeMatches(parts, options, set.key_size(), set.value_size());
}

std::uint64_t ChangeTogether(Exchange& exchange, ShardSet& set, CollectiveCall call,
                             const Query& query, const std::function<std::uint64_t()>& change) {
  const std::span<const Query> mine(&query, 1);
  Bytes asked;
  BeginTogether(exchange, call, [&] {
    Validate(set, mine);
    asked = BytesOf(mine, {});
  });
  RequireSame(exchange, "query", asked);
  std::uint64_t changed = 0;
  Together(exchange, [&] { changed = change(); });
  std::uint64_t sum = 0;
  for (const std::uint64_t part : GatherObjects(exchange, changed)) sum += part;
  return sum;
}

}  // namespace gpm
