#include "shard/together.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <exception>

#include "gpmstore/error.h"

namespace gpm {

std::vector<std::vector<std::byte>> SendBytes(Exchange& exchange, Exchange::Send send) {
  try {
    const std::uint32_t ranks = exchange.ranks();
    std::vector<std::uint64_t> sent, received(ranks);
    std::vector<std::span<const std::byte>> sizes;
    std::vector<std::span<std::byte>> receive;
    for (const std::span<const std::byte> part : send) sent.push_back(part.size());
    for (std::uint32_t i = 0; i < ranks; ++i) {
      sizes.push_back(std::as_bytes(std::span(sent).subspan(i, 1)));
      receive.push_back(std::as_writable_bytes(std::span(received).subspan(i, 1)));
    }
    exchange.AllToAll(sizes, receive);
    std::vector<std::vector<std::byte>> parts(ranks);
    for (std::uint32_t i = 0; i < ranks; ++i) {
      parts[i].resize(received[i]);
      receive[i] = parts[i];
    }
    exchange.AllToAll(send, receive);
    return parts;
  } catch (const std::exception& error) {
    exchange.Leave(error.what());
    throw;
  }
}

void Together(Exchange& exchange, const std::function<void()>& local) {
  struct Status {
    int failed;
    ErrorCode code;
    char why[240];
  };
  Status status{};
  std::exception_ptr failure;
  const auto failed = [&](ErrorCode code, const char* why) {
    failure = std::current_exception();
    status.failed = 1;
    status.code = code;
    std::strncpy(status.why, why, sizeof status.why - 1);
  };
  try {
    local();
  } catch (const Error& error) {
    failed(error.code(), error.what());
  } catch (const std::exception& error) {
    failed(ErrorCode::kIo, error.what());
  }
  const std::vector<Status> all = GatherObjects(exchange, status);
  if (failure) std::rethrow_exception(failure);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed != 0) {
      throw Error(all[rank].code, fmt::format("rank {}: {}", rank, all[rank].why));
    }
  }
}

}  // namespace gpm
