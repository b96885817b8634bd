#ifndef GPM_BENCH_SEARCH_CONTEST_H_
#define GPM_BENCH_SEARCH_CONTEST_H_

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gpmstore/options.h"

namespace gpm::bench {

/// Of Ren et al. 2021, GHSH: shares of inserts, deletions, searches by attribute, modifications.
struct SearchMix {
  double inserts, erases, searches, updates;
};
inline constexpr std::array<SearchMix, 3> kSearchMixes{
    {{.4, .4, 0, .2}, {.2, .2, .5, .1}, {.1, .1, .7, .1}}};

struct SearchContestOptions {
  std::uint64_t records = 0;
  std::uint32_t value_size = 128;  ///< 8 at least, a multiple of 8
  std::uint64_t batch = 0;         ///< operations of a round of a mix; no more than records
  unsigned repeats = 3;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  bool store = true;  ///< it is measured, too
  std::vector<std::string> peers;
  /// How many queries of one match each there are at once. A peer that has an index of what was
  /// asked for is told by the first of them, which are not measured.
  std::vector<std::uint64_t> queries{std::uint64_t{1} << 20, std::uint64_t{1} << 12};
};

/// The peers that an executor has, not auto, and that search by attributes of such values.
std::vector<std::string> SearchingPeers(ExecutorKind executor, std::uint32_t value_size);

/// The store, with an index of both attributes and without one, and peers, on the same queries,
/// arrays and operations. Items have two attributes of 4 bytes: a number, which no other item has,
/// and a group of 1, 10, 100, ... items. What is searched for is one attribute's number, as a hash
/// finds it: `queries` items at once, and one group. Then come the mixes: of a round,
/// operations that change items are one batch, or one of each kind where a contestant can't mix
/// them; the searches are one call behind them, for items that are there. All counts and keys are
/// checked.
/// @return contest_searches and contest_mixes, each with rows by contestant
/// @throws Error(kInvalidArgument) (a peer that there is not, or that has no searches),
///         Error(kDamaged) (a wrong answer, with the contestant's name)
nlohmann::json MeasureSearchContest(const SearchContestOptions& options);
void PrintSearchContest(const nlohmann::json& contest);

}  // namespace gpm::bench

#endif  // GPM_BENCH_SEARCH_CONTEST_H_
