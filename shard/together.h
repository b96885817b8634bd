#ifndef GPM_SHARD_TOGETHER_H_
#define GPM_SHARD_TOGETHER_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "gpmstore/exchange.h"

namespace gpm {

/// What `step` returns. @throws what it throws, when this rank has left the exchange
template <class Step>
auto OrLeave(Exchange& exchange, const Step& step) {
  try {
    return step();
  } catch (const std::exception& error) {
    exchange.Leave(error.what());
    throw;
  }
}

// What all ranks call, in the same order. A rank that can't go on amid these, for want of memory,
// leaves the exchange, so that the others do not wait for it.

/// An object of each rank, in their order. @throws as Exchange::AllGather; std::bad_alloc
/// @tparam T trivially copyable
template <class T>
std::vector<T> GatherObjects(Exchange& exchange, const T& mine) {
  return OrLeave(exchange, [&] {
    std::vector<T> all(exchange.ranks());
    exchange.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  });
}

/// All to all of bytes of which the others do not know how many.
/// @param send what each rank gets; or one element, which all get
/// @return what each rank sent here @throws as Exchange::AllToAll; std::bad_alloc
std::vector<std::vector<std::byte>> SendBytes(Exchange& exchange,
                                              const std::vector<std::vector<std::byte>>& send);

/// Calls that all ranks make together. Those of batches are told with a part (Terms).
enum class CollectiveCall : std::uint8_t {
  kReserve,
  kCompact,
  kSearch,
  kErase,
  kUpdate,
  kSnapshot,
  kApply,
  kBulkLoad,
};

/// A call begins: each rank looks whether it can make it.
/// @throws what `check` throws; to the others an Error that names the rank; kInvalidArgument when
///         the ranks make different calls; kIo (Exchange)
void BeginTogether(Exchange& exchange, CollectiveCall call, const std::function<void()>& check);

/// Each rank does something of its own, and returns when all have.
/// @param all_ended called when all ranks have, well or not; throws nothing
/// @throws what `local` throws; to the others an Error that names the rank; kIo (Exchange)
void Together(
    Exchange& exchange, const std::function<void()>& local,
    const std::function<void()>& all_ended = [] {});

/// @param what of the call these bytes are, for the error
/// @throws Error(kInvalidArgument), on all ranks, when they are not the same on all; as SendBytes
void RequireSame(Exchange& exchange, const char* what, const std::vector<std::byte>& mine);

}  // namespace gpm

#endif  // GPM_SHARD_TOGETHER_H_
