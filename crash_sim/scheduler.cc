#include "crash_sim/scheduler.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace gpm::crash {
namespace {

constexpr std::size_t kGuardBytes = 4096;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = 1 << 20;
#else
constexpr std::size_t kStackBytes = 256 << 10;
#endif

/// Pauses in a row, per live fiber, that are taken for a deadlock. More than one, because a fiber
/// may change what another one waits for without a step in between.
constexpr std::uint64_t kDeadlockPauses = 64;
/// A fiber that waits is asked again at one in so many steps of the others.
constexpr std::uint64_t kStepsPerPoll = 8;
/// A fiber that has waited so often falls below all others: two that look for what they wait for in
/// many steps each, and have high priorities, would keep a third from bringing it about.
constexpr std::uint64_t kPausesUntilLast = 256;
/// Priorities below are for those.
constexpr std::uint64_t kPriorities = std::uint64_t{1} << 32;

std::uint64_t Mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

/// The C++ runtime's exception state of a thread (Itanium C++ ABI, section 2.2.2): what is being
/// handled, and how many exceptions are in flight.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

/// A stack with a guard page below it.
class Stack {
 public:
  Stack() {
    base_ = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "fiber stack");
    mprotect(base_, kGuardBytes, PROT_NONE);
  }
  ~Stack() {
#if defined(__SANITIZE_ADDRESS__)
    // Entry's frame is never left, and what is mapped here next must not pass for its variables.
    ASAN_UNPOISON_MEMORY_REGION(bottom(), kStackBytes);
#endif
    munmap(base_, kGuardBytes + kStackBytes);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* bottom() const { return static_cast<std::byte*>(base_) + kGuardBytes; }

 private:
  void* base_;
};

thread_local Scheduler* entering = nullptr;  ///< whose fiber is about to be entered

}  // namespace

struct Scheduler::Fiber {
  std::unique_ptr<Stack> stack;  ///< null: the stack of Run's caller
  ucontext_t context;
  ExceptionState exceptions;
  std::function<void()> body;
  Fiber* parent = nullptr;  ///< whose RunParts made this one
  std::uint32_t number = 0;
  std::size_t parts_left = 0;  ///< it waits in RunParts for so many
  bool paused = false;         ///< it waits for another one to advance
  std::uint64_t priority = 0;
  std::uint64_t pauses = 0;
  std::exception_ptr part_error;
  // What the sanitizers keep of a fiber.
  const void* stack_bottom = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  void* tsan_fiber = nullptr;

  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    if (stack != nullptr) __tsan_destroy_fiber(tsan_fiber);
#endif
  }
};

Scheduler::Scheduler() : main_(std::make_unique<Fiber>()) {}
Scheduler::~Scheduler() = default;

std::uint32_t Scheduler::current() const { return running_ == nullptr ? 0 : running_->number; }

void Scheduler::Run(std::vector<std::function<void()>> bodies) {
  random_.seed(options_.seed);
  // From a switch at nearly every step down to one in 32.
  stay_of_64_ = 64 - (std::uint64_t{64} >> (random_() % 6));
  change_steps_.clear();
  lowest_ = kPriorities;
  for (std::uint32_t i = 1; i < options_.depth; ++i) {
    change_steps_.push_back(random_() % std::max<std::uint64_t>(options_.expected_steps, 1));
  }
  std::sort(change_steps_.rbegin(), change_steps_.rend());
  next_number_ = 1;
  steps_ = switches_ = choices_ = idle_pauses_ = 0;
  error_ = nullptr;
  given_up_.clear();
  if (bodies.empty()) return;

  for (auto& body : bodies) Spawn(std::move(body), nullptr);
#if defined(__SANITIZE_THREAD__)
  main_->tsan_fiber = __tsan_get_current_fiber();
#endif
  running_ = main_.get();
  SwitchTo(Choose(false));
  running_ = nullptr;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  if (!given_up_.empty()) throw ScheduleError(given_up_);
}

void Scheduler::Yield() {
  if (running_ == nullptr) return;
  if (!given_up_.empty()) {
    // A destructor that still touches the medium while its fiber is unwound goes on alone.
    if (std::uncaught_exceptions() == 0) throw Stopped{};
    return;
  }
  if (++steps_ > options_.max_steps) {
    GiveUp("no end after " + std::to_string(options_.max_steps) + " steps");
  }
  while (!change_steps_.empty() && change_steps_.back() < steps_) {
    change_steps_.pop_back();
    // Below all that were drawn, and earlier changes.
    running_->priority = kPriorities + change_steps_.size();
  }
  if (random_() % kStepsPerPoll == 0) Advanced();
  idle_pauses_ = 0;
  SwitchTo(Choose(true));
  ThrowIfGivenUp();
  choices_ = Mixed(choices_, running_->number);
}

void Scheduler::Pause() {
  if (running_ == nullptr) throw ScheduleError("a wait for another thread, where there is none");
  if (++idle_pauses_ > kDeadlockPauses * (live_.size() + 1)) {
    if (!given_up_.empty()) {
      std::fprintf(stderr, "fibers can't be ended: one waits while it is unwound (%s)\n",
                   given_up_.c_str());
      std::abort();
    }
    GiveUp("deadlock: all fibers wait, after " + std::to_string(steps_) + " steps");
  }
  ThrowIfGivenUp();
  running_->paused = true;
  if (++running_->pauses % kPausesUntilLast == 0) running_->priority = --lowest_;
  SwitchTo(Choose(false));
  ThrowIfGivenUp();
}

void Scheduler::RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) {
  if (parts == 1) return part(0);
  if (parts == 0) return;
  if (running_ == nullptr) {
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < parts; ++i) bodies.push_back([&part, i] { part(i); });
    return Run(std::move(bodies));
  }
  Fiber* const self = running_;
  for (std::size_t i = 0; i < parts; ++i) Spawn([&part, i] { part(i); }, self);
  self->parts_left = parts;
  SwitchTo(Choose(false));
  const std::exception_ptr error = std::exchange(self->part_error, nullptr);
  if (!given_up_.empty() && error_ == nullptr) error_ = error;
  ThrowIfGivenUp();
  if (error != nullptr) std::rethrow_exception(error);
}

void Scheduler::Spawn(std::function<void()> body, Fiber* parent) {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber* fiber = fibers_.back().get();
    fiber->stack = std::make_unique<Stack>();
    fiber->stack_bottom = fiber->stack->bottom();
    fiber->stack_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
    fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
    idle_.push_back(fiber);
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack->bottom();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Scheduler::Entry, 0);
  fiber->exceptions = {};
  fiber->body = std::move(body);
  fiber->parent = parent;
  fiber->number = next_number_++;
  fiber->parts_left = 0;
  fiber->paused = false;
  fiber->priority = kPriorities + options_.depth + (random_() >> 8);
  fiber->pauses = 0;
  fiber->part_error = nullptr;
  fiber->fake_stack = nullptr;
  live_.push_back(fiber);
}

void Scheduler::Entry() {
  Scheduler& self = *entering;
  self.Arrived();
  Fiber* const fiber = self.running_;
  try {
    if (self.given_up_.empty()) fiber->body();
  } catch (const Stopped&) {
  } catch (...) {
    std::exception_ptr& error = fiber->parent == nullptr ? self.error_ : fiber->parent->part_error;
    if (error == nullptr) error = std::current_exception();
  }
  fiber->body = nullptr;
  std::erase(self.live_, fiber);
  if (fiber->parent != nullptr) --fiber->parent->parts_left;
  self.idle_.push_back(fiber);
  self.idle_pauses_ = 0;
  self.Advanced();
  self.SwitchTo(self.live_.empty() ? self.main_.get() : self.Choose(false));
}

void Scheduler::Advanced() {
  for (Fiber* fiber : live_) fiber->paused = false;
}

Scheduler::Fiber* Scheduler::Choose(bool may_stay) {
  ready_.clear();
  for (Fiber* fiber : live_) {
    if (fiber->parts_left == 0 && !fiber->paused) ready_.push_back(fiber);
  }
  if (ready_.empty()) {
    Advanced();
    for (Fiber* fiber : live_) {
      if (fiber->parts_left == 0) ready_.push_back(fiber);
    }
  }
  if (options_.strategy == Strategy::kPct) {
    return *std::max_element(ready_.begin(), ready_.end(), [](const Fiber* a, const Fiber* b) {
      return a->priority < b->priority;
    });
  }
  if (may_stay && random_() % 64 < stay_of_64_) return running_;
  return ready_[random_() % ready_.size()];
}

void Scheduler::SwitchTo(Fiber* next) {
  Fiber* const from = running_;
  if (next == from) return;
  ++switches_;
  // __cxa_eh_globals is opaque to the language, but laid out by the ABI.
  void* const exceptions = abi::__cxa_get_globals();
  std::memcpy(&from->exceptions, exceptions, sizeof from->exceptions);
  std::memcpy(exceptions, &next->exceptions, sizeof next->exceptions);
  running_ = next;
  arriving_from_ = from;
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  const bool ended = from != main_.get() && from->body == nullptr;
  __sanitizer_start_switch_fiber(ended ? nullptr : &from->fake_stack, next->stack_bottom,
                                 next->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(next->tsan_fiber, 0);
#endif
  swapcontext(&from->context, &next->context);
  Arrived();
}

void Scheduler::Arrived() {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(running_->fake_stack, &bottom, &bytes);
  if (arriving_from_ == main_.get()) {
    main_->stack_bottom = bottom;
    main_->stack_bytes = bytes;
  }
#endif
}

void Scheduler::GiveUp(std::string reason) {
  given_up_ = std::move(reason);
  idle_pauses_ = 0;
  Advanced();
  ThrowIfGivenUp();
}

void Scheduler::ThrowIfGivenUp() const {
  if (!given_up_.empty() && std::uncaught_exceptions() == 0) throw Stopped{};
}

}  // namespace gpm::crash
