#ifndef GPM_TESTS_FAULT_INJECTION_H_
#define GPM_TESTS_FAULT_INJECTION_H_

#include <cstdint>

namespace gpm::test {

/// Makes one allocation of this process fail: the k-th call of operator new, over all threads, that
/// comes during the object's life. The binary's own operator new is replaced for that (link
/// fault_injection.cc). One at a time.
class AllocationFault {
 public:
  /// @param k from 1; 0: none fails, they are counted
  explicit AllocationFault(std::uint64_t k);
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;

  /// Whether there were so many allocations that one failed.
  bool hit() const;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_FAULT_INJECTION_H_
