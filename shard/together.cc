#include "shard/together.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <exception>

#include "gpmstore/error.h"

namespace gpm {

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
