#include "cli/out_of_memory.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <system_error>

#include "cli/common.h"
#include "gpmstore/error.h"

namespace gpm::cli {
namespace {

bool IsBadAlloc(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

}  // namespace

bool IsOutOfMemory(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    return ours->code() == ErrorCode::kNoSpace;
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    return system->code() == std::errc::resource_unavailable_try_again ||
           system->code() == std::errc::not_enough_memory;
  }
  return IsBadAlloc(error);
}

int ReportError(const std::exception& error) {
  std::fputs(
      fmt::format("gpmstore: {}\n", IsBadAlloc(error) ? "out of memory" : error.what()).c_str(),
      stderr);
  return IsOutOfMemory(error) ? kExitNoMemory : kExitError;
}

}  // namespace gpm::cli
