#ifndef GPM_SHARD_TERMS_H_
#define GPM_SHARD_TERMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/exchange.h"
#include "shard/splitter.h"
#include "shard/together.h"

namespace gpm {

/// What a rank says of its part before anything is sent.
struct Terms {
  std::uint64_t n;
  std::uint64_t seed;
  float first, second;
  std::uint32_t drawn_bytes;
  std::uint8_t valid, mixed, op, has_values, wants_found, element, from, has_initial;
  std::uint8_t on_gpu, takes_gpu;  ///< an array is in GPU memory; it can exchange such
  std::uint8_t lends_host, lends_gpu;
  CollectiveCall call;
};

/// The memory that a rank's side of an exchange reaches.
struct Reach {
  int device;      ///< -1: the host's alone
  bool takes_gpu;  ///< arrays there can be exchanged (Exchange::TakesGpuMemory)
  bool lends_gpu;  ///< the other ranks reach it (Exchange::Lends)
};

/// The terms of all parts, in the order of the ranks. All ranks call it.
/// @param call of which `mine` is a part
/// @throws Error kInvalidArgument (some part is not valid), kUnsupported (an array of `mine` is in
///         memory that this rank can't take), on all ranks; kIo (Exchange)
std::vector<Terms> GatherTerms(Exchange& exchange, CollectiveCall call, const Batch& mine,
                               std::uint32_t key_size, std::uint32_t value_size,
                               const Reach& reach);

/// What is the same for all parts. Every rank finds the same, or throws the same. All ranks call
/// it.
/// @param initial_row what InitialValue::row of the answer refers to
/// @return a batch whose arrays say, by being there, which ones are sent
/// @throws Error kInvalidArgument (the parts do not fit together, or are of different calls); kIo
///         (Exchange)
Batch Agree(Exchange& exchange, const Batch& mine, const std::vector<Terms>& terms,
            std::uint32_t value_size, std::vector<std::byte>* initial_row);

bool AnyWantsFound(const std::vector<Terms>& terms);
/// Whether it is divided on GPUs, on every rank. @throws Error(kUnsupported), on all
bool IsOnGpu(const std::vector<Terms>& terms);

/// What the operations of a part are sent as: one that lacks what it needs in this part finds none
/// of that in the others' either.
Splitter::KindMap KindsSent(const Batch& mine, const InitialValue& initial);

}  // namespace gpm

#endif  // GPM_SHARD_TERMS_H_
