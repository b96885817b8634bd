// How a store is searched by attributes (StoreImpl::Search; docs/SEARCH.md).

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/held_items.h"
#include "engine/kept_index.h"
#include "engine/match_lists.h"
#include "engine/query_plan.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"

namespace gpm {
namespace {

/// One thread for so many items: more would take longer to begin than to work.
constexpr std::uint64_t kItemsForThread = std::uint64_t{1} << 16;
constexpr unsigned kMostThreads = 16;
/// To look a query up in an index takes about as long as to look at so many items.
constexpr std::uint64_t kItemsForQuery = 16;
/// Rows whose values are found in device memory while no batch runs, and bytes of those: it takes
/// some milliseconds.
constexpr std::uint64_t kMostDeviceRows = std::uint64_t{1} << 20;
constexpr std::uint64_t kDeviceRowsBytes = std::uint64_t{256} << 20;
/// In a call: executors number them in 31 bits.
constexpr std::uint64_t kMostQueries = std::uint64_t{1} << 31;

unsigned ThreadsFor(std::uint64_t items) {
  const unsigned most = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  return static_cast<unsigned>(std::clamp<std::uint64_t>(items / kItemsForThread, 1, most));
}

[[noreturn]] void Refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "search: " + what);
}

/// @return rows that there is room for
std::uint64_t CheckMatches(const Matches& matches, std::uint64_t queries, std::uint64_t key_size,
                           std::uint64_t value_size) {
  if (matches.counts.size() != queries) {
    Refuse(fmt::format("'counts' has {} elements, and there are {} queries", matches.counts.size(),
                       queries));
  }
  if (!matches.offsets.empty() && matches.offsets.size() != queries + 1) {
    Refuse(fmt::format("'offsets' has {} elements; it must have {}, or none",
                       matches.offsets.size(), queries + 1));
  }
  const std::uint64_t room = matches.keys.size() / key_size;
  if (matches.keys.size() % key_size != 0 ||
      (!matches.values.empty() && matches.values.size() != room * value_size)) {
    Refuse(
        fmt::format("'keys' has {} bytes and 'values' {}; they must have {} and, if they are "
                    "wanted, {} for each row",
                    matches.keys.size(), matches.values.size(), key_size, value_size));
  }
  return room;
}

void CheckQueries(const QueryArray& queries, std::span<const Attribute> attributes) {
  const std::size_t conditions = queries.attributes.size();
  if (conditions == 0 || conditions > kMaxAttributes) {
    Refuse(fmt::format("an array of queries has conditions on {} attributes; it must be on 1 to {}",
                       conditions, kMaxAttributes));
  }
  if (queries.count() >= kMostQueries) {
    Refuse(fmt::format("{} queries; there may be {} in a call", queries.count(), kMostQueries - 1));
  }
  if (queries.bounds.size() % (2 * conditions) != 0) {
    Refuse(fmt::format("'bounds' has {} elements; it must have {} for each query",
                       queries.bounds.size(), 2 * conditions));
  }
  RequireHostMemory(queries.attributes.data(), queries.attributes.size_bytes(), "attributes");
  for (const std::uint32_t attribute : queries.attributes) {
    if (attribute >= attributes.size()) {
      Refuse(
          fmt::format("there is no attribute {}; the pool has {}", attribute, attributes.size()));
    }
  }
}

std::vector<Query> QueriesOf(const QueryArray& array, const std::uint64_t* bounds) {
  std::vector<Query> queries(array.count());
  for (Query& query : queries) {
    for (const std::uint32_t attribute : array.attributes) {
      query.push_back({attribute, bounds[0], bounds[1]});
      bounds += 2;
    }
  }
  return queries;
}

/// Sets an answer in host memory. @param room in rows
void Answer(const MatchedRows& rows, std::uint64_t room, Matches* matches, ThreadPool* threads) {
  std::copy(rows.counts().begin(), rows.counts().end(), matches->counts.begin());
  matches->answered = matches->counts.size();
  matches->rows = 0;
  if (matches->offsets.empty()) return;
  const std::vector<std::uint64_t>& offsets = rows.offsets();
  matches->rows = offsets.back();
  const auto beyond = std::upper_bound(offsets.begin(), offsets.end(), room);
  matches->answered = static_cast<std::uint64_t>(beyond - offsets.begin()) - 1;
  const std::uint64_t end = offsets[matches->answered];
  std::transform(offsets.begin(), offsets.end(), matches->offsets.begin(),
                 [&](std::uint64_t offset) { return std::min(offset, end); });
  rows.CopyRows(end, matches->keys.data(),
                matches->values.empty() ? nullptr : matches->values.data(), threads);
}

/// Whether an array is in the memory of the executor's GPU.
bool IsInGpuOf(const Executor& executor, const void* array, const char* name) {
  if (array == nullptr || executor.device() < 0 || !IsGpuMemory(array)) return false;
  if (GpuOf(array) != executor.device()) {
    Refuse(fmt::format("'{}' is in the memory of device {}, the store runs on device {}", name,
                       GpuOf(array), executor.device()));
  }
  return true;
}

/// An array of the caller's, of which there is a copy in host memory, once it is asked for, where
/// itself is in the memory of a device.
template <class T>
class ReachedArray {
 public:
  ReachedArray(const Executor& executor, std::span<T> array, const char* name)
      : array_(array), on_device_(IsInGpuOf(executor, array.data(), name)) {
    if (!on_device_) RequireHostMemory(array.data(), array.size_bytes(), name);
  }
  std::span<T> OnHost() {
    if (!on_device_) return array_;
    copy_.resize(array_.size());
    return copy_;
  }
  bool on_device() const { return on_device_; }
  /// Gives the caller the first `count` elements of the copy.
  void Deliver(Executor& executor, std::uint64_t count) const {
    if (!on_device_ || count == 0) return;
    executor.CopyToGpu(array_.data(), copy_.data(), count * sizeof(T));
  }

 private:
  const std::span<T> array_;
  const bool on_device_;
  std::vector<T> copy_;
};

}  // namespace

void StoreImpl::AddSearchesTo(StoreStats* stats) {
  stats->searches = searches_;
  stats->search_scans = search_scans_;
  kept_index_.AddTo(stats);
}

template <class Use>
void StoreImpl::SearchInto(std::span<const Query> queries, bool rows, bool values,
                           std::uint64_t limit, const Use& use) {
  const QueryPlan plan(queries, attributes_);
  const KeptIndex::Mask asked = KeptIndex::AskedBy(queries);
  bool by_index = kept_index_.enabled();
  bool answered = false;
  const auto look_at_all = [&](const HeldItems& items, ThreadPool* threads) {
    use(MatchLists(items, plan, ShapeOf(queries.size(), rows, limit), threads), threads);
    answered = true;
  };
  // With values: the index has the keys, and their values are found while no batch runs, if they
  // are few, and none has come between.
  for (int tries = 0; values && by_index && !answered; ++tries) {
    std::optional<FoundRows> found;
    SearchBy(
        asked, true,
        [&](const SearchIndex& index) {
          ThreadPool threads(ThreadsFor(queries.size() * kItemsForQuery));
          const auto counted = index.Ask(queries, false, limit, &threads);
          std::uint64_t wanted = 0;
          for (const std::uint64_t count : counted->counts()) wanted += std::min(count, limit);
          if (wanted > RowsAtOnce()) return;
          found.emplace(*index.Ask(queries, true, limit, &threads), index.version(), key_size_,
                        value_size_, &threads);
        },
        look_at_all);
    if (found && FindValues(found->keys, found->values, found->version)) {
      ThreadPool threads(1);
      use(*found, &threads);
      answered = true;
    }
    by_index = found && tries == 0;
  }
  if (!answered) {
    SearchBy(
        asked, kept_index_.enabled() && !values,
        [&](const SearchIndex& index) {
          ThreadPool threads(ThreadsFor(queries.size() * kItemsForQuery));
          use(*index.Ask(queries, rows, limit, &threads), &threads);
        },
        look_at_all);
  }
  searches_.fetch_add(1, std::memory_order_relaxed);
}

bool StoreImpl::FindValues(std::span<const std::byte> keys, std::span<std::byte> values,
                           std::uint64_t version) {
  const std::uint64_t count = keys.size() / key_size_;
  if (count == 0) return true;
  const std::unique_ptr<ResultArray> made = executor_->MakeResults(count);
  // (Whose batch is finished here tells the log, which may close the store.)
  const Admission::Alone alone(admission_, Admission::Telling::kLater);
  health_.Check();
  FinishBatches();
  if (admission_.changers() != version) return false;
  return RunAlone({.op = Op::kFind, .keys = keys, .found = values, .results = made->results}) ==
         count;
}

MatchLists::Shape StoreImpl::ShapeOf(std::uint64_t queries, bool rows, std::uint64_t limit) const {
  return {.queries = queries,
          .key_size = key_size_,
          .value_size = value_size_,
          .rows = rows,
          .limit = limit};
}

template <class Ask, class UseItems>
void StoreImpl::SearchBy(KeptIndex::Mask asked, bool indexed, const Ask& ask,
                         const UseItems& use_items) {
  health_.Check();
  // (Until it is asked how many have begun, no batch that may write has.)
  const std::uint64_t begun = admission_.changers();
  if (indexed) kept_index_.PairAsDue(asked, begun, ThreadsFor);
  const auto use_index = [&](std::uint64_t version) {
    return indexed && kept_index_.Use(asked, version, ask);
  };
  if (!use_index(begun)) {
    const Snapshots::Turn turn(snapshots_);
    std::uint64_t version = admission_.changers();
    if (!use_index(version)) {
      if (HoldForSearch(indexed, asked, &version, use_items)) use_index(version);
    }
  }
}

template <class UseItems>
bool StoreImpl::HoldForSearch(bool indexed, KeptIndex::Mask asked, std::uint64_t* version,
                              const UseItems& use) {
  KeptIndex::Plan plan;
  if (indexed) plan = kept_index_.Begin(asked, ItemsNow(), *version, *executor_);
  try {
    HeldItems items(*this, plan.follows, plan.log_room);
    *version = items.version();
    ThreadPool threads(ThreadsFor(items.count()));
    const bool has_index = kept_index_.Take(plan, asked, items, *executor_, &threads);
    if (!items.of_logged()) search_scans_.fetch_add(1, std::memory_order_relaxed);
    if (has_index) return true;
    items.BringToHost();
    use(items, &threads);
    return false;
  } catch (...) {
    if (plan.log_room > 0) kept_index_.Drop();
    throw;
  }
}

SearchResult StoreImpl::Search(std::span<const Query> queries, const SearchOptions& options) {
  if (options.values && !options.keys) {
    throw Error(ErrorCode::kInvalidArgument, "search: values are given back with keys alone");
  }
  SearchResult result;
  SearchInto(queries, options.keys, options.values, options.limit,
             [&](const auto& lists, ThreadPool* threads) {
               result.counts = lists.counts();
               if (!options.keys) return;
               result.offsets = lists.offsets();
               const std::uint64_t rows = result.offsets.back();
               result.keys.resize(rows * key_size_);
               if (options.values) result.values.resize(rows * value_size_);
               lists.CopyRows(rows, result.keys.data(),
                              options.values ? result.values.data() : nullptr, threads);
             });
  return result;
}

void StoreImpl::Search(std::span<const Query> queries, std::uint64_t limit, Matches* matches) {
  const std::uint64_t room = CheckMatches(*matches, queries.size(), key_size_, value_size_);
  RequireHostMemory(matches->counts.data(), matches->counts.size_bytes(), "counts");
  RequireHostMemory(matches->offsets.data(), matches->offsets.size_bytes(), "offsets");
  RequireHostMemory(matches->keys.data(), matches->keys.size(), "keys");
  RequireHostMemory(matches->values.data(), matches->values.size(), "values");
  SearchInto(
      queries, !matches->offsets.empty(), !matches->values.empty(), limit,
      [&](const MatchedRows& rows, ThreadPool* threads) { Answer(rows, room, matches, threads); });
}

void StoreImpl::Search(const QueryArray& queries, std::uint64_t limit, Matches* matches,
                       Stream stream) {
  CheckQueries(queries, attributes_);
  const std::uint64_t count = queries.count();
  const std::uint64_t room = CheckMatches(*matches, count, key_size_, value_size_);
  const bool rows = !matches->offsets.empty();
  ReachedArray counts(*executor_, matches->counts, "counts");
  ReachedArray offsets(*executor_, matches->offsets, "offsets");
  ReachedArray keys(*executor_, matches->keys, "keys");
  ReachedArray values(*executor_, matches->values, "values");
  const bool bounds_on_device = IsInGpuOf(*executor_, queries.bounds.data(), "bounds");
  if (!bounds_on_device) {
    RequireHostMemory(queries.bounds.data(), queries.bounds.size_bytes(), "bounds");
  }
  // (Nobody is to wait for the stream while he holds what others wait for.)
  if (stream != nullptr || bounds_on_device || counts.on_device() || offsets.on_device() ||
      keys.on_device() || values.on_device()) {
    executor_->AwaitStream(stream);
  }
  const auto listed = [&] {
    std::vector<std::byte> copy;
    return QueriesOf(queries, reinterpret_cast<const std::uint64_t*>(executor_->OnHost(
                                  queries.bounds.data(), queries.bounds.size_bytes(), &copy)));
  };
  const auto answer = [&](const MatchedRows& found, ThreadPool* threads) {
    Matches on_host = *matches;
    on_host.counts = counts.OnHost();
    on_host.offsets = offsets.OnHost();
    on_host.keys = keys.OnHost();
    on_host.values = values.OnHost();
    Answer(found, room, &on_host, threads);
    counts.Deliver(*executor_, count);
    offsets.Deliver(*executor_, on_host.offsets.size());
    if (rows) keys.Deliver(*executor_, on_host.offsets.back() * key_size_);
    if (rows && !matches->values.empty())
      values.Deliver(*executor_, on_host.offsets.back() * value_size_);
    matches->answered = on_host.answered;
    matches->rows = on_host.rows;
  };
  // Values in device memory are found there, by keys that the index put there.
  const bool finds_values =
      values.on_device() && keys.on_device() &&
      (key_size_ % 8 != 0 || reinterpret_cast<std::uintptr_t>(matches->keys.data()) % 8 == 0);
  if (!matches->values.empty() && !finds_values) {
    SearchInto(listed(), rows, true, limit, answer);
    return;
  }
  KeptIndex::Mask asked = 0;
  for (const std::uint32_t attribute : queries.attributes) asked |= KeptIndex::Mask{1} << attribute;
  bool answered = false;
  bool by_index = kept_index_.enabled();
  for (int tries = 0; !answered; ++tries) {
    std::uint64_t found = 0;
    std::uint64_t version = 0;
    SearchBy(
        asked, by_index,
        [&](const SearchIndex& index) {
          if (const auto given = index.AskArrays(queries, limit, matches)) {
            found = *given;
            version = index.version();
            answered = !finds_values;
            return;
          }
          ThreadPool threads(ThreadsFor(count * kItemsForQuery));
          answer(*index.Ask(listed(), rows, limit, &threads), &threads);
          answered = true;
        },
        [&](const HeldItems& items, ThreadPool* threads) {
          const std::vector<Query> list = listed();
          answer(
              MatchLists(items, QueryPlan(list, attributes_), ShapeOf(count, rows, limit), threads),
              threads);
          answered = true;
        });
    const bool few = found <= std::min(kMostDeviceRows, kDeviceRowsBytes / value_size_);
    if (!answered && few) {
      answered = FindValues(matches->keys.first(found * key_size_),
                            matches->values.first(found * value_size_), version);
    }
    by_index = by_index && few && tries == 0;
  }
  searches_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gpm
