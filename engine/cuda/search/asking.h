#ifndef GPM_ENGINE_CUDA_SEARCH_ASKING_H_
#define GPM_ENGINE_CUDA_SEARCH_ASKING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/executor.h"
#include "engine/cuda/graphs.h"
#include "engine/cuda/memory.h"
#include "engine/search_tiers.h"

namespace gpm {

struct RowsOut;

/// What the host is told of a search. All begins at 0.
struct SearchSums {
  std::uint64_t candidates;  ///< rows to be looked at; a query's only one counts if it matches
  std::uint64_t many;        ///< some query has several
  std::uint64_t unordered;   ///< some query's are not in the order of keys
  std::uint64_t matched;     ///< of a group of queries
  std::uint64_t answered;    ///< queries whose rows there is room for
  std::uint64_t given;       ///< rows of those
};

/// Blocks of AnswerFew, at most.
inline constexpr std::uint32_t kFewBlocks = 256;

/// What the blocks of AnswerFew tell each other; it leaves all at 0, as it found it.
struct FewTold {
  std::uint64_t arrived;  ///< at the GridBarrier
  std::uint32_t done;
  std::uint32_t many, unordered;  ///< as in SearchSums
  std::uint64_t totals[kFewBlocks];
};

/// Of queries that had many candidates, a typical one: that of the candidate in the middle.
struct QuerySample {
  std::uint64_t candidates;
  std::uint64_t matches;
  std::uint64_t bounds[2 * kMaxAttributes];  ///< least and most of each condition
  std::uint64_t rows[kMaxAttributes];        ///< that meet it alone
};

/// Where an answer goes, in GPU memory.
struct AnswerPlaces {
  std::uint64_t* counts = nullptr;
  std::uint64_t* offsets = nullptr;        ///< and one more; null: counts alone are wanted
  std::byte* keys = nullptr;               ///< null: rows are kept, for CopyKeys
  std::uint64_t room = ~std::uint64_t{0};  ///< keys
};

/// What an answer came to.
struct AnswerTotals {
  std::uint64_t rows = 0;  ///< in all
  std::uint64_t answered =
      0;                    ///< queries whose rows there is room for; the others' offsets give none
  std::uint64_t given = 0;  ///< rows of those
  /// Rows that were looked at, if many may have been so in vain, for want of a pair; else 0.
  std::uint64_t looked_at = 0;
};

/// Answers queries by the tiers of an index: a thread for each query finds the rows that it has to
/// look at; where one is all that any has to look at, that is the answer. Else all those rows are
/// looked at, some queries at a time, and those that match are sorted by query and key, unless they
/// are in order. (After GHSH, Ren et al. 2021, 4.1, which expands queries into queues so that each
/// node is read once; sorted arrays need no queues, since a query's rows lie side by side.)
///
/// It has a stream of its own, and keeps the arrays that it needs. Thread safety: one thread at a
/// time, with the device current.
class Asking {
 public:
  Asking(CudaExecutor& executor, DeviceMemory* memory);
  static void LoadKernels();
  /// Gives back what bytes() counts.
  void Shrink();
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  /// The caller's queries, in GPU memory: a copy of them, if they are not there.
  const std::uint64_t* Bounds(const std::uint64_t* bounds, std::uint64_t count, bool on_device);
  /// @param limit rows of a query at most @throws Error(kGpu); nothing is written then any more
  AnswerTotals Answer(const SearchTiers& tiers, const TierQueries& queries, std::uint64_t count,
                      std::uint64_t limit, std::uint32_t key_size, const AnswerPlaces& places);
  /// Copies keys of the kept rows to host memory, from the first one on.
  void CopyKeys(const SearchTiers& tiers, std::uint64_t count, std::uint32_t key_size,
                std::byte* keys);

  /// A typical query of those just answered, which looked at so many rows: one or more.
  /// @param counts as they were answered @throws Error(kGpu)
  QuerySample Sample(const SearchTiers& tiers, const TierQueries& queries, std::uint64_t count,
                     std::uint64_t looked_at, const std::uint64_t* counts);
  std::uint64_t bytes() const;  ///< of GPU memory that it keeps, but for a few
  // For answers that go to host memory.
  void Fetch(const std::uint64_t* from, std::uint64_t count, std::uint64_t* to);
  DeviceArray<std::uint64_t>& counts() { return counts_; }
  DeviceArray<std::uint64_t>& offsets() { return offsets_; }

 private:
  struct Call;

  // Each of these waits for what it has begun.

  /// Sets the rows there are, and those looked at.
  void AnswerSome(const Call& call, AnswerTotals* totals);
  /// Answers, if no query has several candidates; else it has found them.
  SearchSums AnswerFewSingles(const Call& call, const RowsOut& out);
  SearchSums AnswerManySingles(const Call& call, const RowsOut& out);
  /// Where some query has several candidates. Sets the same.
  void AnswerAll(const Call& call, const SearchSums& sums, AnswerTotals* totals);
  void ClearOffsets(const Call& call, std::uint64_t count);

  // These do not.

  /// Answers groups of queries.
  std::uint64_t AnswerGroups(const Call& call, const SearchSums& sums);
  /// Of queries [first, last), whose candidates are [begin, end). @param before rows of those
  /// before
  /// @return rows, with those
  std::uint64_t AnswerGroup(const Call& call, std::uint64_t first, std::uint64_t last,
                            std::uint64_t begin, std::uint64_t end, std::uint64_t before,
                            bool unordered);
  void SortMatches(std::uint64_t count, std::uint32_t row_bits, std::uint32_t query_bits);
  SearchSums ReadSums();
  void KeepRows(std::uint64_t rows, std::uint64_t kept);
  /// Waits.
  void FetchBytes(const std::byte* from, std::uint64_t bytes, std::byte* to);

  CudaExecutor& executor_;
  DeviceMemory* const memory_;
  CudaStream stream_;  ///< of all that it does
  DeviceArray<std::uint64_t> bounds_, begins_, counts_, offsets_, found_counts_, starts_, capped_;
  DeviceArray<TierCandidates> candidates_;
  DeviceArray<std::uint32_t> single_;
  DeviceArray<std::uint32_t> rows_;              ///< kept
  DeviceArray<std::uint64_t> matches_, sorted_;  ///< by query and place
  DeviceArray<std::uint8_t> flags_;
  DeviceArray<std::byte> keys_;
  DeviceArray<std::byte> library_;  ///< temporary storage of CUB
  DeviceArray<SearchSums> sums_;
  DeviceArray<FewTold> few_told_;
  const std::uint64_t few_queries_;  ///< that one AnswerFew answers
  KernelGraph few_, few_of_pairs_;
  PinnedBox<SearchSums> told_;
  PinnedBox<QuerySample> sample_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_ASKING_H_
