#ifndef GPM_ENGINE_LOG_H_
#define GPM_ENGINE_LOG_H_

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "gpmstore/options.h"

namespace gpm {

/// What a store tells its OpenOptions::log: kept while who adds it holds locks or has the store to
/// itself, and told afterwards, so that the user's function may call the store.
///
/// Thread safety: any thread.
class Log {
 public:
  explicit Log(LogFunction function) : function_(std::move(function)) {}

  bool enabled() const { return function_ != nullptr; }

  /// @param text makes the message, if anybody wants it; a message that there is no memory for is
  ///        lost
  template <class Text>
  void Add(LogLevel level, const Text& text) noexcept {
    if (!enabled()) return;
    try {
      std::string message = text();
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(level, std::move(message));
    } catch (...) {
    }
  }

  /// Tells what was added. REQUIRES: the caller holds no lock, and not the store to itself.
  void Tell() noexcept {
    if (!enabled()) return;
    for (;;) {
      try {
        std::unique_lock lock(mutex_);
        if (waiting_.empty()) return;
        const auto [level, message] = std::move(waiting_.front());
        waiting_.pop_front();
        lock.unlock();
        function_(level, message);
      } catch (...) {  // the user's own
      }
    }
  }

  /// Tells at the end of its life what was added, also when something is thrown.
  class TellsAtEnd {
   public:
    explicit TellsAtEnd(Log& log) : log_(log) {}
    ~TellsAtEnd() { log_.Tell(); }
    TellsAtEnd(const TellsAtEnd&) = delete;
    TellsAtEnd& operator=(const TellsAtEnd&) = delete;

   private:
    Log& log_;
  };

 private:
  const LogFunction function_;
  std::mutex mutex_;
  std::deque<std::pair<LogLevel, std::string>> waiting_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_LOG_H_
