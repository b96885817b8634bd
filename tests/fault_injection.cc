#include "tests/fault_injection.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gpm::test {
namespace {

std::atomic<bool> armed{false};
std::atomic<FaultKind> fault_kind{FaultKind::kAllocation};
std::atomic<std::uint64_t> calls_left{0};  ///< until one fails; 0: none does
std::atomic<int> fault_error{EIO};
std::atomic<const char*> only_call{nullptr};
std::atomic<const char*> failed_call{nullptr};
std::function<void()> fault_action;
std::atomic<bool> no_links{false};
std::atomic<bool> no_direct_writes{false};

/// Whether code of a GPU driver's library asks: it has ways of its own to fail.
bool IsOfDriver(const void* caller) noexcept {
  Dl_info info{};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::strstr(info.dli_fname, "libcuda") != nullptr ||
         std::strstr(info.dli_fname, "libnvidia") != nullptr;
}

void* Allocate(std::size_t bytes, std::size_t alignment, const void* caller) noexcept {
  if (armed && fault_kind.load() == FaultKind::kAllocation && !IsOfDriver(caller) &&
      FailsNow(FaultKind::kAllocation, "operator new")) {
    return nullptr;
  }
  if (bytes == 0) bytes = 1;
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(std::size_t bytes, std::size_t alignment, const void* caller) {
  void* const memory = Allocate(bytes, alignment, caller);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

const char* FaultKindName(FaultKind kind) {
  constexpr const char* kNames[] = {"allocation", "system call", "short call", "file end",
                                    "CUDA call"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool FailsNow(FaultKind kind, const char* call) noexcept {
  if (!armed || kind != fault_kind) return false;
  if (const char* only = only_call; only != nullptr && std::strcmp(only, call) != 0) return false;
  std::uint64_t left = calls_left;
  while (left != 0) {
    if (!calls_left.compare_exchange_weak(left, left - 1)) continue;
    if (left > 1) return false;
    if (fault_error == Fault::kDies) _exit(Fault::kDies);
    failed_call = call;
    if (fault_error != Fault::kActs) return true;
    fault_action();
    return false;
  }
  return false;
}

int FaultError() noexcept { return fault_error; }

Fault::Fault(FaultKind kind, std::uint64_t k, int error, const char* only) : kind_(kind) {
  fault_kind = kind;
  fault_error = error;
  only_call = only;
  failed_call = nullptr;
  calls_left = k;
}
Fault::Fault(FaultKind kind, std::uint64_t k, std::function<void()> action, const char* only)
    : Fault(kind, k, kActs, only) {
  fault_action = std::move(action);
}
Fault::~Fault() { calls_left = 0; }
const char* Fault::call() const { return failed_call; }

NoLinks::NoLinks() { no_links = true; }
NoLinks::~NoLinks() { no_links = false; }
bool LinksAreMissing() noexcept { return no_links; }

NoDirectWrites::NoDirectWrites() { no_direct_writes = true; }
NoDirectWrites::~NoDirectWrites() { End(); }
void NoDirectWrites::End() noexcept { no_direct_writes = false; }
bool DirectWritesAreRefused() noexcept { return no_direct_writes; }

Fault::Armed::Armed() { armed = true; }
Fault::Armed::~Armed() { armed = false; }

}  // namespace gpm::test

using gpm::test::Allocate;
using gpm::test::AllocateOrThrow;

void* operator new(std::size_t bytes) {
  return AllocateOrThrow(bytes, 0, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return AllocateOrThrow(bytes, 0, __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, 0, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, 0, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
