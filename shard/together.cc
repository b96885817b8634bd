#include "shard/together.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <exception>

#include "gpmstore/error.h"

namespace gpm {
namespace {

/// How a rank's step ended.
struct Status {
  CollectiveCall call;
  bool failed;
  ErrorCode code;
  char why[240];
};

/// @param differs whether ranks that make different calls are told so
/// @param all_ended called when all have said how theirs ended
void Meet(
    Exchange& exchange, CollectiveCall call, bool differs, const std::function<void()>& local,
    const std::function<void()>& all_ended = [] {}) {
  Status status{};
  status.call = call;
  std::exception_ptr failure;
  const auto failed = [&](ErrorCode code, const char* why) {
    failure = std::current_exception();
    status.failed = true;
    status.code = code;
    std::strncpy(status.why, why, sizeof status.why - 1);
  };
  try {
    local();
  } catch (const Error& error) {
    failed(error.code(), error.what());
  } catch (const std::exception& error) {
    failed(ErrorCode::kIo, error.what());
  } catch (...) {
    failed(ErrorCode::kIo, "it threw what is no exception");
  }
  const std::vector<Status> all = GatherObjects(exchange, status);
  all_ended();
  if (failure) std::rethrow_exception(failure);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed) {
      throw Error(all[rank].code, fmt::format("rank {}: {}", rank, all[rank].why));
    }
  }
  for (std::uint32_t rank = 1; differs && rank < all.size(); ++rank) {
    if (all[rank].call == all[0].call) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} makes another call than rank 0", rank));
  }
}

}  // namespace

std::vector<std::vector<std::byte>> SendBytes(Exchange& exchange,
                                              const std::vector<std::vector<std::byte>>& send) {
  return OrLeave(exchange, [&] {
    const std::uint32_t ranks = exchange.ranks();
    std::vector<std::uint64_t> sent(ranks), received(ranks);
    std::vector<std::span<const std::byte>> sizes, parts;
    std::vector<std::span<std::byte>> receive;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      parts.push_back(send.size() == 1 ? send.front() : send[i]);
      sent[i] = parts[i].size();
      sizes.push_back(std::as_bytes(std::span(sent).subspan(i, 1)));
      receive.push_back(std::as_writable_bytes(std::span(received).subspan(i, 1)));
    }
    exchange.AllToAll(sizes, receive);
    std::vector<std::vector<std::byte>> all(ranks);
    for (std::uint32_t i = 0; i < ranks; ++i) {
      all[i].resize(received[i]);
      receive[i] = all[i];
    }
    exchange.AllToAll(parts, receive);
    return all;
  });
}

void BeginTogether(Exchange& exchange, CollectiveCall call, const std::function<void()>& check) {
  Meet(exchange, call, true, check);
}

void Together(Exchange& exchange, const std::function<void()>& local,
              const std::function<void()>& all_ended) {
  Meet(exchange, CollectiveCall{}, false, local, all_ended);
}

void RequireSame(Exchange& exchange, const char* what, const std::vector<std::byte>& mine) {
  const std::vector<std::vector<std::byte>> all =
      OrLeave(exchange, [&] { return SendBytes(exchange, {mine}); });
  for (std::uint32_t rank = 1; rank < all.size(); ++rank) {  // the same on every rank
    if (all[rank] == all[0]) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the {} of rank {} is not that of rank 0", what, rank));
  }
}

}  // namespace gpm
