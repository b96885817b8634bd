#include "engine/health.h"

#include <fmt/format.h>

#include <new>

#include "gpmstore/error.h"

namespace gpm {

void Health::SetUnusable(const char* what) noexcept {
  if (is_set_.exchange(true)) return;
  cause_ = std::current_exception();
  unusable_ = what;
}

void Health::Check() const {
  const char* const what = unusable_.load();
  if (what == nullptr) return;
  const auto fail = [&](ErrorCode code, const char* why) {
    throw Error(code, fmt::format("{} half-way: {}; opening the pool again (with a larger maximum, "
                                  "if that is what is short) goes on with it, and finds every item",
                                  what, why));
  };
  try {
    std::rethrow_exception(cause_);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kNoSpace, "not enough memory");
  } catch (const std::exception& error) {
    fail(ErrorCode::kIo, error.what());
  }
}

}  // namespace gpm
