#include "python/src/gate.h"

#include <string>

#include "gpmstore/error.h"

namespace gpm::python {

thread_local const Gate::Use* Gate::innermost_ = nullptr;
thread_local bool Gate::in_log_ = false;

const Gate::Use* Gate::UseOfThisThread() const {
  const Use* use = innermost_;
  while (use != nullptr && &use->gate_ != this) use = use->outer_;
  return use;
}

Gate::Use::Use(Gate& gate, const char* what, Kind kind)
    : gate_(gate), what_(what), kind_(kind), outer_(innermost_) {
  const auto closed = [&] {
    return Error(ErrorCode::kInvalidArgument, std::string(what) + " is closed");
  };
  if (const Use* outer = gate.UseOfThisThread()) {
    if (outer->kind_ == Kind::kClose && kind == Kind::kCall) throw closed();
    if (outer->kind_ == Kind::kVisit && kind != Kind::kLook) {
      throw Error(ErrorCode::kBusy,
                  std::string(outer->what_) +
                      ": its function can't call the store, which would wait for itself");
    }
  } else if (kind != Kind::kExport && gate.InHomeProcess()) {
    std::unique_lock lock(gate.mutex_);
    if (gate.closing_ && OnLogThread()) {
      throw Error(ErrorCode::kBusy,
                  std::string(what) + " is being closed, for which a log can't wait");
    }
    if (kind != Kind::kLook) gate.changed_.wait(lock, [&] { return !gate.closing_; });
    if (gate.closed_ && (kind == Kind::kCall || kind == Kind::kVisit)) throw closed();
    may_look_ = !gate.closing_;
    counted_ = may_look_;
    if (counted_) ++gate.uses_;
  }
  innermost_ = this;
}

Gate::Use::Use(Gate& gate) : gate_(gate), what_("close"), kind_(Kind::kClose), outer_(innermost_) {
  innermost_ = this;
}

Gate::Use::~Use() {
  innermost_ = outer_;
  if (!counted_ || !gate_.InHomeProcess()) return;
  const std::lock_guard lock(gate_.mutex_);
  if (--gate_.uses_ == 0) gate_.changed_.notify_all();
}

void Gate::Close(const std::function<void()>& action, const std::function<void()>& ahead) {
  if (const Use* use = UseOfThisThread()) {
    if (use->kind_ == Kind::kClose) return;
    throw Error(ErrorCode::kBusy, std::string("close: called from within a call of ") + use->what_ +
                                      ", it would wait for itself");
  }
  if (OnLogThread()) {
    throw Error(ErrorCode::kBusy, "close: called by a log, on the thread that takes snapshots");
  }
  if (!InHomeProcess()) {
    closed_ = true;
    return action();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !closing_; });
  if (closed_) return;
  closing_ = true;
  lock.unlock();
  ahead();
  lock.lock();
  changed_.wait(lock, [&] { return uses_ == 0; });
  lock.unlock();
  const auto done = [&](bool closed) {
    lock.lock();
    closing_ = false;
    closed_ = closed;
    changed_.notify_all();
  };
  try {
    const Use closing(*this);
    action();
  } catch (const Error& error) {
    done(error.code() != ErrorCode::kBusy);
    throw;
  } catch (...) {
    done(true);
    throw;
  }
  done(true);
}

bool Gate::InVisit() const {
  const Use* use = UseOfThisThread();
  return use != nullptr && use->kind_ == Kind::kVisit;
}

bool Gate::closing() const {
  if (!InHomeProcess()) return false;
  const std::lock_guard lock(mutex_);
  return closing_;
}

bool Gate::closed() const {
  if (!InHomeProcess()) return closed_;
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace gpm::python
