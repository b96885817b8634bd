#ifndef GPM_SHARD_TOGETHER_H_
#define GPM_SHARD_TOGETHER_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "gpmstore/exchange.h"

namespace gpm {

/// An object of each rank, in their order. @throws as Exchange::AllGather
/// @tparam T trivially copyable
template <class T>
std::vector<T> GatherObjects(Exchange& exchange, const T& mine) {
  std::vector<T> all(exchange.ranks());
  exchange.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// All to all of bytes of which the others do not know how many: send[i] goes to rank i.
/// @return what each rank sent here
/// @throws as Exchange::AllToAll; std::bad_alloc: this rank leaves the exchange then
std::vector<std::vector<std::byte>> SendBytes(Exchange& exchange, Exchange::Send send);

/// Each rank does something of its own, and returns when all have.
/// @throws what `local` throws; to the others an Error that names the rank; kIo (Exchange)
void Together(Exchange& exchange, const std::function<void()>& local);

}  // namespace gpm

#endif  // GPM_SHARD_TOGETHER_H_
