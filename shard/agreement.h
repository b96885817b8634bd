#ifndef GPM_SHARD_AGREEMENT_H_
#define GPM_SHARD_AGREEMENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/exchange.h"

namespace gpm {

/// What ranks find out together before anything is sent, and when something was done.

/// Each rank does something of its own, and returns when all have.
/// @throws what `local` throws; to the others an Error that names the rank; kIo (Exchange)
void Together(Exchange& exchange, const std::function<void()>& local);

/// What a rank can do, beside what its part of a batch says.
struct RankMeans {
  int device = -1;               ///< of its shards; -1: executor cpu
  bool takes_gpu = false;        ///< arrays in GPU memory: it has them exchanged
  bool lends_host = false;       ///< the others reach its memory in place (Exchange::Lends),
  bool lends_gpu = false;        ///< and its GPU's
  std::uint64_t chunk_rows = 0;  ///< finds are cut into chunks of at least so many rows; 0: not
};

/// How a batch is carried out, the same on all ranks.
struct BatchPlan {
  /// What is the same for all parts. Its arrays are of one element where there are such in some
  /// part, and else empty.
  Batch common;
  bool on_gpu = false;      ///< divided and exchanged in GPU memory
  bool lends = false;       ///< ranks write into each other's memory; else by way of buffers
  bool only_finds = false;  ///< so that its order does not matter
  bool some_want_found = false;
  std::vector<bool> wants_found;  ///< of each rank
  std::uint64_t chunks = 1;
  std::vector<std::byte> initial_row;  ///< of common.initial
};

/// Every rank finds the same, or throws.
/// @throws Error kInvalidArgument (a part is not valid, or they do not fit together), kUnsupported
///         (one has an array in GPU memory, which some rank does not take), kIo (Exchange): on all
///         ranks; std::bad_alloc on this one
BatchPlan AgreeOn(Exchange& exchange, const Batch& mine, std::uint32_t key_size,
                  std::uint32_t value_size, const RankMeans& means);

}  // namespace gpm

#endif  // GPM_SHARD_AGREEMENT_H_
