#include "tests/fault_injection.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace gpm::test {
namespace {

std::atomic<std::uint64_t> allocations_left{0};  ///< until one fails; 0: none does
std::atomic<bool> allocation_failed{false};

bool FailsNow() {
  std::uint64_t left = allocations_left.load(std::memory_order_relaxed);
  while (left != 0) {
    if (!allocations_left.compare_exchange_weak(left, left - 1)) continue;
    if (left > 1) return false;
    allocation_failed = true;
    return true;
  }
  return false;
}

void* Allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (FailsNow()) return nullptr;
  if (bytes == 0) bytes = 1;
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(std::size_t bytes, std::size_t alignment = 0) {
  void* const memory = Allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationFault::AllocationFault(std::uint64_t k) {
  allocation_failed = false;
  allocations_left = k;
}
AllocationFault::~AllocationFault() { allocations_left = 0; }
bool AllocationFault::hit() const { return allocation_failed; }

}  // namespace gpm::test

using gpm::test::Allocate;
using gpm::test::AllocateOrThrow;

void* operator new(std::size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](std::size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes, 0);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
