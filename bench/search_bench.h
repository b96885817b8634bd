#ifndef GPM_BENCH_SEARCH_BENCH_H_
#define GPM_BENCH_SEARCH_BENCH_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "gpmstore/options.h"

namespace gpm::bench {

/// The store whose searches, and writes beside an index (search_writes.h), are measured.
struct SearchBenchOptions {
  std::string pool;                ///< a file that does not exist, and goes at the end
  OpenOptions open;                ///< its executor and threads
  std::uint32_t value_size = 128;  ///< 16 at least
  std::uint64_t records = 16'000'000;
  unsigned repeats = 3;
};

/// Searches of items by a number, their group, and their rank in it: without an index, with one,
/// and with one of a pair of attributes. Arrays are in GPU memory with executor cuda.
/// @return the store's facts, a row of each kind of `searches`, what the index takes, and the
///         seconds of the searches that made it and the pair
/// @throws Error(kDamaged): a search did not find what it must
nlohmann::json MeasureSearches(const SearchBenchOptions& options);
void PrintSearches(const nlohmann::json& report);

}  // namespace gpm::bench

#endif  // GPM_BENCH_SEARCH_BENCH_H_
