#ifndef GPM_TABLE_CACHE_POLICIES_H_
#define GPM_TABLE_CACHE_POLICIES_H_

#include <cstdint>

#include "gpmstore/options.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

namespace gpm {

/// What makes a bucket hot: a type for each CachePolicy. A new policy is a type in this file, in
/// the list at its end, and an enumerator of CachePolicy.
///
///   kPolicy, kName           its enumerator, and its name in commands and reports
///   Count(media, score, uses, clock)
///                            a batch, the number of which is `clock`, has used the bucket so
///                            often; batches do so side by side
///   Rank(cache, bucket, score, seed)
///                            how hot a bucket with this score is: 0 (never cached) to kRanks - 1.
///                            `seed` is another one in each refresh
///   Age(bucket, score, ageing)
///                            once a refresh, when the bucket's rank was taken; also when other
///                            items have become hot
///
/// A bucket's score is a word in the executor's memory, 0 at first.
struct CachePolicies {
  static constexpr std::uint32_t kRanks = 4096;
};

/// Scores are counts of uses.
struct CountedUses : CachePolicies {
  template <class Media>
  static GPM_HD void Count(const Media&, std::uint32_t* score, std::uint32_t uses, std::uint32_t) {
    AtomicAdd32(score, uses);
  }
};

/// What a refresh takes from scores.
struct CacheAgeing {
  static constexpr std::uint32_t kOne = 1u << 16;
  std::uint32_t seed = 0;      ///< another one in each refresh
  std::uint32_t keeps = kOne;  ///< of kOne: the share of uses that still counts
};

/// Those used most often (after TinyLFU: Einziger, Friedman, Manes, ACM Transactions on Storage 13,
/// 2017). Scores age by as much as was counted since they aged last, however often the cache is
/// refreshed, and when other items become hot. A bucket gets another's frame only if it was clearly
/// used more.
struct TinyLfuPolicy : CountedUses {
  static constexpr CachePolicy kPolicy = CachePolicy::kTinyLfu;
  static constexpr const char* kName = "tinylfu";
  /// Finds for each frame that are remembered when scores have aged.
  static constexpr std::uint64_t kUsesPerFrame = 16;
  static constexpr std::uint64_t kLeastUses = std::uint64_t{1} << 16;

  template <class Cache>
  static GPM_HD std::uint32_t Rank(const Cache& cache, std::uint32_t bucket, std::uint32_t score,
                                   std::uint32_t) {
    // The counts of two buckets that are equally hot differ by chance, so who has a frame keeps it
    // against one that is hardly hotter. A bucket without uses keeps its frame while no other wants
    // that. It gets one where all do: else filling it would take more time than it ever saves.
    const bool has_frame = AtomicLoad32(&cache.frame_of[bucket]) != 0;
    if (score == 0 && !has_frame && !cache.holds_all) return 0;
    return RankOf(1 + std::uint64_t{score} + (has_frame ? score / 4 : 0));
  }
  /// Small counts as they are, others to within a hundredth or so: all of them have a rank.
  static GPM_HD std::uint32_t RankOf(std::uint64_t count) {
    std::uint32_t shift = 0;
    while (count >> shift >= 256) ++shift;
    return (shift << 7) + static_cast<std::uint32_t>(count >> shift);
  }
  static GPM_HD void Age(std::uint32_t bucket, std::uint32_t* score, const CacheAgeing& ageing) {
    const std::uint32_t uses = AtomicLoad32(score);
    if (uses == 0) return;
    // Rounded up or down by chance, so that single uses age too.
    const std::uint64_t chance = Scramble((std::uint64_t{ageing.seed} << 32) | bucket);
    const std::uint64_t kept =
        (std::uint64_t{uses} * ageing.keeps + chance % CacheAgeing::kOne) / CacheAgeing::kOne;
    AtomicAdd32(score, static_cast<std::uint32_t>(kept) - uses);
  }
  /// @param uses finds counted since scores aged last
  static CacheAgeing AgeingOf(std::uint32_t seed, std::uint64_t uses, std::uint64_t frames) {
    const std::uint64_t counted =
        frames * kUsesPerFrame > kLeastUses ? frames * kUsesPerFrame : kLeastUses;
    const double keeps =
        static_cast<double>(counted) / (static_cast<double>(counted) + static_cast<double>(uses));
    return {seed, static_cast<std::uint32_t>(keeps * CacheAgeing::kOne)};
  }
};

/// Those used most (GPHash). Uses before the last refresh count half, and so on.
struct LfuPolicy : CountedUses {
  static constexpr CachePolicy kPolicy = CachePolicy::kLfu;
  static constexpr const char* kName = "lfu";

  template <class Cache>
  static GPM_HD std::uint32_t Rank(const Cache& cache, std::uint32_t bucket, std::uint32_t score,
                                   std::uint32_t) {
    if (score == 0) return 0;
    // Who has a frame keeps it against one that is hardly hotter: chance decides between them, and
    // frames would change hands, and be filled, at every refresh.
    const bool has_frame = AtomicLoad32(&cache.frame_of[bucket]) != 0;
    const std::uint64_t rank = has_frame ? std::uint64_t{score} + score / 4 : score;
    return rank < kRanks ? static_cast<std::uint32_t>(rank) : kRanks - 1;
  }
  static GPM_HD void Age(std::uint32_t, std::uint32_t* score, const CacheAgeing&) {
    const std::uint32_t uses = AtomicLoad32(score);
    AtomicAdd32(score, uses / 2 - uses);
  }
};

/// Those used last.
struct LruPolicy : CachePolicies {
  static constexpr CachePolicy kPolicy = CachePolicy::kLru;
  static constexpr const char* kName = "lru";

  template <class Media>
  static GPM_HD void Count(const Media& media, std::uint32_t* score, std::uint32_t,
                           std::uint32_t clock) {
    media.StoreShared(score, clock);
  }
  template <class Cache>
  static GPM_HD std::uint32_t Rank(const Cache& cache, std::uint32_t, std::uint32_t score,
                                   std::uint32_t) {
    if (score == 0) return 0;
    // A batch that began after the refresh is younger than its clock.
    const auto age = static_cast<std::int32_t>(cache.clock - score);
    if (age <= 0) return kRanks - 1;
    return static_cast<std::uint32_t>(age) < kRanks - 1
               ? kRanks - 1 - static_cast<std::uint32_t>(age)
               : 1;
  }
  static GPM_HD void Age(std::uint32_t, std::uint32_t*, const CacheAgeing&) {}
};

/// Any.
struct RandomPolicy : CachePolicies {
  static constexpr CachePolicy kPolicy = CachePolicy::kRandom;
  static constexpr const char* kName = "random";

  template <class Media>
  static GPM_HD void Count(const Media&, std::uint32_t*, std::uint32_t, std::uint32_t) {}
  template <class Cache>
  static GPM_HD std::uint32_t Rank(const Cache&, std::uint32_t bucket, std::uint32_t,
                                   std::uint32_t seed) {
    const std::uint64_t mixed = Scramble((std::uint64_t{seed} << 32) | bucket);
    return 1 + static_cast<std::uint32_t>(mixed % (kRanks - 1));
  }
  static GPM_HD void Age(std::uint32_t, std::uint32_t*, const CacheAgeing&) {}
};

template <class... Policies>
struct CachePolicyList {
  /// Calls visit(Policy{}) for each.
  template <class Visit>
  static GPM_HD void ForEach(const Visit& visit) {
    (visit(Policies{}), ...);
  }
  /// Calls visit(Policy{}) for the type of a policy; kOff has none.
  template <class Visit>
  static GPM_HD void With(CachePolicy policy, const Visit& visit) {
    ForEach([&](auto type) {
      if (type.kPolicy == policy) visit(type);
    });
  }
};
using AllCachePolicies = CachePolicyList<TinyLfuPolicy, LfuPolicy, LruPolicy, RandomPolicy>;

}  // namespace gpm

#endif  // GPM_TABLE_CACHE_POLICIES_H_
