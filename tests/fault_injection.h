#ifndef GPM_TESTS_FAULT_INJECTION_H_
#define GPM_TESTS_FAULT_INJECTION_H_

#include <cerrno>
#include <cstdint>
#include <functional>

namespace gpm::test {

/// What can be made to fail.
enum class FaultKind : std::uint8_t {
  kAllocation,  ///< operator new, which the binary replaces (fault_injection.cc)
  kSystemCall,  ///< what the library asks the system for (fault_system_calls.cc)
  kShortCall,   ///< pread and pwrite, which do a part of what they are to do: no failure
  kFileEnd,     ///< pread, which finds that the file has been cut
  kCudaCall,    ///< the same of the CUDA runtime (fault_cuda_calls.cc)
};
const char* FaultKindName(FaultKind kind);

/// Makes one call of a kind fail: the k-th, over all threads, of those that come while the object
/// is there and an Armed is. One at a time.
///
/// Calls that release something do so and then report the failure, as close does.
class Fault {
 public:
  /// As an error: the call ends the process with this status, as if it had been killed before it.
  static constexpr int kDies = 77;
  /// As an error: the call does as ever, and before it `action`, in its thread.
  static constexpr int kActs = 78;

  /// @param k from 1; 0: none
  /// @param error what system calls report
  /// @param only the one call that counts, by its name; null: all of the kind
  Fault(FaultKind kind, std::uint64_t k, int error = EIO, const char* only = nullptr);
  /// In place of a failure. @param action throws nothing
  Fault(FaultKind kind, std::uint64_t k, std::function<void()> action, const char* only = nullptr);
  ~Fault();
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  /// Lets calls count during its life: around what is tested, and not the test itself.
  class Armed {
   public:
    Armed();
    ~Armed();
    Armed(const Armed&) = delete;
    Armed& operator=(const Armed&) = delete;
  };

  /// Whether there were so many calls that one failed, and which.
  bool hit() const { return call() != nullptr; }
  const char* call() const;
  FaultKind kind() const { return kind_; }

 private:
  const FaultKind kind_;
};

/// The file system has no links during its life: link says so.
class NoLinks {
 public:
  NoLinks();
  ~NoLinks();
  NoLinks(const NoLinks&) = delete;
  NoLinks& operator=(const NoLinks&) = delete;
};
bool LinksAreMissing() noexcept;

/// The medium of a file wants larger pages than it is written by: until it is no more O_DIRECT,
/// pwrite says so. One file, and one object, at a time.
class NoDirectWrites {
 public:
  NoDirectWrites();
  ~NoDirectWrites();
  NoDirectWrites(const NoDirectWrites&) = delete;
  NoDirectWrites& operator=(const NoDirectWrites&) = delete;
  /// From now on the file is written through the page cache.
  static void End() noexcept;
};
bool DirectWritesAreRefused() noexcept;

/// For what replaces a call: whether this one is to fail.
bool FailsNow(FaultKind kind, const char* call) noexcept;
int FaultError() noexcept;

}  // namespace gpm::test

#endif  // GPM_TESTS_FAULT_INJECTION_H_
