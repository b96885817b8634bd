#ifndef GPM_BENCH_SEARCH_WRITES_H_
#define GPM_BENCH_SEARCH_WRITES_H_

#include <nlohmann/json_fwd.hpp>

#include "bench/search_bench.h"

namespace gpm::bench {

/// What an index of two attributes (of 8 and 4 bytes) costs inserts and updates: batches of 2^12,
/// and of a 32nd of the records, a round of which is a 32nd of the records, without an index, with
/// one, and with the search that brings it up to date behind each round. Arrays are in GPU memory
/// with executor cuda.
/// @return a row of each: kind, batch, indexed, and operations a second without and with that
///         search, medians of the rounds
/// @throws Error(kDamaged): a search had no index, or a batch did not do what it must
nlohmann::json MeasureWritesBesideIndex(const SearchBenchOptions& options);
void PrintWritesBesideIndex(const nlohmann::json& rows);

}  // namespace gpm::bench

#endif  // GPM_BENCH_SEARCH_WRITES_H_
