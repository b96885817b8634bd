#include "bench/search_contest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_set>

#include "bench/contest.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "ycsb/buffer.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

constexpr std::uint32_t kNumber = 0;  ///< attributes
constexpr std::uint32_t kGroup = 1;
constexpr std::uint64_t kRowsAtOnce = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostMatches = 1'000'000;
constexpr double kPeerFill = 0.6;
/// The store without an index.
constexpr const char* kScanningName = "gpmstore-scanning";

void Require(bool right) {
  if (!right) throw Error(ErrorCode::kDamaged, "a search, or a batch, did not do what it must");
}

/// Numbers [0, 1) are of group 0, the next 10 of group 1, and so on as long as a whole group is
/// there; behind them each has a group of its own.
struct Groups {
  explicit Groups(std::uint64_t records) {
    for (std::uint64_t size = 1; size <= kMostMatches && end + size <= records; size *= 10) {
      sizes.push_back(size);
      ends.push_back(end += size);
    }
  }
  std::uint32_t Of(std::uint32_t number) const {
    const auto group = std::upper_bound(ends.begin(), ends.end(), number);
    return group != ends.end() ? static_cast<std::uint32_t>(group - ends.begin()) : 1000 + number;
  }
  std::vector<std::uint64_t> sizes, ends;
  std::uint64_t end = 0;
};

std::unique_ptr<KvAdapter> MakeContestant(const SearchContestOptions& options,
                                          const std::string& name, Capabilities* can) {
  const ycsb::Memory memory = MemoryOf(options.executor);
  const std::vector<Attribute> attributes{{"number", 0, 4}, {"group", 4, 4}};
  if (name == kStoreName || name == kScanningName) {
    *can = StoreAdapter::CapabilitiesOf(memory);
    OpenOptions open;
    open.executor = options.executor;
    open.threads = options.threads;
    if (name == kStoreName) {
      open.search_index_bytes = ~std::uint64_t{0};
      open.search_indexed = {"number", "group"};
    }
    return std::make_unique<StoreAdapter>("",
                                          CreateOptions{.value_size = options.value_size,
                                                        .initial_capacity = options.records,
                                                        .attributes = attributes},
                                          open);
  }
  const Peer& peer = FindPeer(name, memory);
  if (peer.can.searches == Searches::kNone) {
    throw Error(ErrorCode::kInvalidArgument, "--peers: " + name + " has no searches by attributes");
  }
  RequireItems(peer, 8, options.value_size);
  *can = peer.can;
  return peer.make({.items = options.records,
                    .max_batch = kRowsAtOnce,
                    .value_bytes = options.value_size,
                    .fill = kPeerFill,
                    .threads = ThreadsOf(options.threads),
                    .attributes = attributes});
}

/// One contestant with the items: keys from 1 on.
class SearchContestant {
 public:
  SearchContestant(const SearchContestOptions& options, const std::string& name)
      : options_(options),
        name_(name),
        groups_(options.records),
        adapter_(MakeContestant(options, name, &can_)) {
    ShowProgress(fmt::format("search, {}: loading", name_));
    // Numbers in another order than keys: a permutation.
    numbers_.resize(options.records + 1);
    for (std::uint64_t i = 0; i < options.records; ++i) {
      numbers_[i + 1] = static_cast<std::uint32_t>(i);
    }
    std::shuffle(numbers_.begin() + 1, numbers_.end(), random_);
    for (next_key_ = 1; next_key_ <= options.records;) {
      const std::uint64_t n = std::min(kRowsAtOnce, options.records + 1 - next_key_);
      Changes inserts;
      for (std::uint64_t i = 0; i < n; ++i) Add(Op::kInsert, next_key_++, &inserts);
      Apply(inserts);
    }
  }

  void Search(json* rows) {
    const auto measure = [&](const std::string& what, const std::vector<std::uint32_t>& wanted,
                             std::uint32_t attribute, std::uint64_t matches) {
      ShowProgress(fmt::format("search, {}: {}", name_, what));
      std::vector<double> seconds;
      for (unsigned i = 0; i < options_.repeats + 2; ++i) {  // the first two make indexes
        const double taken = Ask(wanted, attribute, matches);
        if (i >= 2) seconds.push_back(taken);
      }
      const double median = Median(seconds);
      const auto queries = static_cast<double>(wanted.size());
      rows->push_back({{"contestant", name_},
                       {"what", what},
                       {"queries", wanted.size()},
                       {"matches_each", matches},
                       {"seconds", median},
                       {"queries_per_s", queries / median},
                       {"matches_per_s", queries * static_cast<double>(matches) / median}});
    };
    for (const std::uint64_t count : options_.queries) {
      std::vector<std::uint32_t> wanted(count);
      for (std::uint32_t& number : wanted) number = NumberOfSomeItem();
      measure(std::has_single_bit(count) ? fmt::format("2^{} queries", std::countr_zero(count))
                                         : fmt::format("{} queries", count),
              wanted, kNumber, 1);
    }
    for (std::size_t g = 0; g < groups_.sizes.size(); ++g) {
      measure("1 query", {static_cast<std::uint32_t>(g)}, kGroup, groups_.sizes[g]);
    }
  }

  json RunMix(const SearchMix& mix) {
    ShowProgress(fmt::format("search, {}: mixes", name_));
    const auto part = [&](double share) {
      return static_cast<std::uint64_t>(share * static_cast<double>(options_.batch));
    };
    double seconds = 0;
    std::uint64_t operations = 0;
    // What the mix before left for an index to follow is not this one's.
    (void)Ask({NumberOfSomeItem()}, kNumber, 1);
    for (unsigned round = 0; round < options_.repeats; ++round) {
      std::vector<Changes> batches(1);
      const auto next_kind = [&] {
        if (!(can_.mixed && can_.mixed_erases) && !batches.back().ops.empty()) {
          batches.emplace_back();
        }
      };
      // Two items exchange their numbers; these are not inserted or erased in the same round.
      const std::uint64_t oldest = first_key_ + part(mix.erases);
      std::unordered_set<std::uint64_t> taken;
      while (taken.size() + 1 < part(mix.updates)) {
        const std::uint64_t one = SomeKey(oldest);
        const std::uint64_t other = SomeKey(oldest);
        if (one == other || taken.count(one) != 0 || taken.count(other) != 0) continue;
        taken.insert({one, other});
        std::swap(numbers_[one], numbers_[other]);
        Add(Op::kUpdate, one, &batches.back());
        Add(Op::kUpdate, other, &batches.back());
      }
      next_kind();
      for (std::uint64_t i = part(mix.erases); i > 0; --i) {
        Add(Op::kErase, first_key_++, &batches.back());
      }
      next_kind();
      for (std::uint64_t i = part(mix.inserts); i > 0; --i) {
        numbers_.push_back(static_cast<std::uint32_t>(next_key_ - 1));
        Add(Op::kInsert, next_key_++, &batches.back());
      }
      for (const Changes& changes : batches) {
        seconds += Apply(changes);
        operations += changes.ops.size();
      }
      std::vector<std::uint32_t> wanted(part(mix.searches));
      for (std::uint32_t& number : wanted) number = NumberOfSomeItem();
      if (!wanted.empty()) seconds += Ask(wanted, kNumber, 1);
      operations += wanted.size();
    }
    return {{"contestant", name_},
            {"batches_a_round", can_.mixed && can_.mixed_erases ? 1 : 3},
            {"inserts", mix.inserts},
            {"erases", mix.erases},
            {"searches", mix.searches},
            {"updates", mix.updates},
            {"ops_per_s", static_cast<double>(operations) / seconds}};
  }

 private:
  struct Changes {
    std::vector<Op> ops;
    std::vector<std::uint64_t> keys;
    std::vector<std::byte> values;
  };

  std::uint64_t SomeKey(std::uint64_t oldest) { return oldest + random_() % (next_key_ - oldest); }
  std::uint32_t NumberOfSomeItem() { return numbers_[SomeKey(first_key_)]; }

  void Add(Op op, std::uint64_t key, Changes* to) const {
    to->ops.push_back(op);
    to->keys.push_back(key);
    to->values.resize(to->values.size() + options_.value_size, static_cast<std::byte>(key | 1));
    std::byte* const value = to->values.data() + to->values.size() - options_.value_size;
    const std::uint32_t fields[] = {numbers_[key], groups_.Of(numbers_[key])};
    std::memcpy(value, fields, sizeof fields);
  }

  template <class T>
  ycsb::Buffer Placed(const std::vector<T>& array) const {
    ycsb::Buffer buffer(can_.memory, array.size() * sizeof(T));
    buffer.CopyFrom(std::as_bytes(std::span(array)));
    return buffer;
  }

  /// @return seconds that it took
  double Apply(const Changes& changes) {
    const bool is_one_kind = std::adjacent_find(changes.ops.begin(), changes.ops.end(),
                                                std::not_equal_to<>()) == changes.ops.end();
    const ycsb::Buffer ops = Placed(changes.ops);
    const ycsb::Buffer keys = Placed(changes.keys);
    const ycsb::Buffer values = Placed(changes.values);
    const ycsb::Buffer results = Placed(std::vector<Result>(changes.ops.size(), Result::kInvalid));
    Batch batch{.keys = keys.bytes(), .results = results.as<Result>()};
    if (is_one_kind) {
      batch.op = changes.ops.front();
    } else {
      batch.ops = ops.as<const Op>();
    }
    if (!is_one_kind || batch.op != Op::kErase) batch.values = values.bytes();
    const Clock::time_point start = Clock::now();
    adapter_->Apply(batch);
    const double seconds = SecondsSince(start);
    std::vector<Result> on_host(changes.ops.size());
    results.CopyTo(std::as_writable_bytes(std::span(on_host)));
    Require(std::ranges::all_of(on_host, [](Result result) { return result == Result::kOk; }));
    return seconds;
  }

  /// Searches for numbers of an attribute. @param matches of each @return seconds that it took
  double Ask(const std::vector<std::uint32_t>& wanted, std::uint32_t attribute,
             std::uint64_t matches) {
    std::vector<std::uint64_t> both_bounds;
    for (const std::uint32_t number : wanted) both_bounds.insert(both_bounds.end(), 2, number);
    const std::uint64_t n = wanted.size();
    const std::uint32_t attributes[] = {attribute};
    const ycsb::Buffer bounds = Placed(both_bounds);
    const ycsb::Buffer counts(can_.memory, 8 * n);
    const ycsb::Buffer offsets(can_.memory, 8 * (n + 1));
    const ycsb::Buffer keys(can_.memory, 8 * n * matches);
    Matches found{.counts = counts.as<std::uint64_t>(),
                  .offsets = offsets.as<std::uint64_t>(),
                  .keys = keys.bytes()};
    const Clock::time_point start = Clock::now();
    adapter_->Search({.attributes = attributes, .bounds = bounds.as<const std::uint64_t>()},
                     &found);
    const double seconds = SecondsSince(start);
    std::vector<std::uint64_t> rows(n * matches);
    std::vector<std::uint64_t> its_offsets(n + 1);
    keys.CopyTo(std::as_writable_bytes(std::span(rows)));
    offsets.CopyTo(std::as_writable_bytes(std::span(its_offsets)));
    for (std::uint64_t q = 0; q < n; ++q) {
      Require(its_offsets[q + 1] - its_offsets[q] == matches);
      for (std::uint64_t r = its_offsets[q]; r < its_offsets[q + 1]; ++r) {
        Require(rows[r] < numbers_.size());
        const std::uint32_t number = numbers_[rows[r]];
        Require((attribute == kNumber ? number : groups_.Of(number)) == wanted[q]);
      }
    }
    return seconds;
  }

  const SearchContestOptions& options_;
  const std::string name_;
  const Groups groups_;
  Capabilities can_;
  std::unique_ptr<KvAdapter> adapter_;
  std::vector<std::uint32_t> numbers_;  ///< by key
  std::uint64_t first_key_ = 1;         ///< of those that are there
  std::uint64_t next_key_ = 1;
  std::mt19937_64 random_{1};
};

}  // namespace

std::vector<std::string> SearchingPeers(ExecutorKind executor, std::uint32_t value_size) {
  std::vector<std::string> names;
  const ycsb::Memory memory = MemoryOf(executor);
  for (const std::string& name : PeerNames(memory)) {
    const Peer& peer = FindPeer(name, memory);
    const bool can = WhyNotItems(peer, 8, value_size).empty();
    if (can && peer.can.searches != Searches::kNone) names.push_back(name);
  }
  return names;
}

json MeasureSearchContest(const SearchContestOptions& options) {
  json searches = json::array();
  json mixes = json::array();
  std::vector<std::string> names;
  if (options.store) names = {kStoreName, kScanningName};
  names.insert(names.end(), options.peers.begin(), options.peers.end());
  for (const std::string& name : names) {
    try {
      SearchContestant contestant(options, name);
      contestant.Search(&searches);
      for (const SearchMix& mix : kSearchMixes) mixes.push_back(contestant.RunMix(mix));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
    }
  }
  return {{"contest_searches", searches}, {"contest_mixes", mixes}};
}

void PrintSearchContest(const json& contest) {
  fmt::print("\n{:<19}{:<14}{:>9}{:>9}{:>12}{:>14}{:>14}\n", "", "", "queries", "matches", "ms",
             "queries/s", "matches/s");
  for (const json& row : contest.at("contest_searches")) {
    fmt::print("{:<19}{:<14}{:>9}{:>9}{:>12.3f}{:>14.0f}{:>14.0f}\n",
               row.at("contestant").get<std::string>(), row.at("what").get<std::string>(),
               row.at("queries").get<std::uint64_t>(), row.at("matches_each").get<std::uint64_t>(),
               1e3 * row.at("seconds").get<double>(), row.at("queries_per_s").get<double>(),
               row.at("matches_per_s").get<double>());
  }
  fmt::print("\n{:<19}{:>8}{:>8}{:>8}{:>8}{:>14}\n", "", "insert", "erase", "search", "update",
             "operations/s");
  for (const json& mix : contest.at("contest_mixes")) {
    fmt::print("{:<19}{:>8.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>14.0f}\n",
               mix.at("contestant").get<std::string>(), mix.at("inserts").get<double>(),
               mix.at("erases").get<double>(), mix.at("searches").get<double>(),
               mix.at("updates").get<double>(), mix.at("ops_per_s").get<double>());
  }
}

}  // namespace gpm::bench
