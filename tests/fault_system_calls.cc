// System calls that can be made to fail. The linker sends the library's calls of `name` to
// __wrap_name, and __real_name to the system (-Wl,--wrap=name; tests/CMakeLists.txt lists them).

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>

#include "tests/fault_injection.h"

using gpm::test::FailsNow;
using gpm::test::FaultError;
using gpm::test::FaultKind;

namespace {

bool SystemCallFails(const char* call) {
  if (!FailsNow(FaultKind::kSystemCall, call)) return false;
  errno = FaultError();
  return true;
}

/// Some of the bytes of a call: pages where there are several, as O_DIRECT needs.
std::size_t PartOf(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return bytes > kPage ? (bytes / kPage + 1) / 2 * kPage : (bytes + 1) / 2;
}

}  // namespace

// NOLINTBEGIN: the names are the linker's
#define GPM_WRAP(type, name, parameters, arguments, failed) \
  type __real_##name parameters;                            \
  type __wrap_##name parameters {                           \
    if (SystemCallFails(#name)) return failed;              \
    return __real_##name arguments;                         \
  }
/// Of what releases something.
#define GPM_WRAP_RELEASE(type, name, parameters, arguments, failed) \
  type __real_##name parameters;                                    \
  type __wrap_##name parameters {                                   \
    const type result = __real_##name arguments;                    \
    return SystemCallFails(#name) ? failed : result;                \
  }

extern "C" {

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return SystemCallFails("open") ? -1 : __real_open(path, flags, mode);
}
GPM_WRAP(int, fstat, (int file, struct stat* status), (file, status), -1)
GPM_WRAP(int, fstatfs, (int file, struct statfs* status), (file, status), -1)
GPM_WRAP(int, flock, (int file, int operation), (file, operation), -1)
GPM_WRAP(void*, mmap,
         (void* address, std::size_t bytes, int protection, int flags, int file, off_t offset),
         (address, bytes, protection, flags, file, offset), MAP_FAILED)
GPM_WRAP_RELEASE(int, munmap, (void* address, std::size_t bytes), (address, bytes), -1)
GPM_WRAP(int, madvise, (void* address, std::size_t bytes, int advice), (address, bytes, advice), -1)
GPM_WRAP(int, ftruncate, (int file, off_t bytes), (file, bytes), -1)
GPM_WRAP(int, posix_fallocate, (int file, off_t offset, off_t bytes), (file, offset, bytes),
         FaultError())
GPM_WRAP(int, fsync, (int file), (file), -1)
GPM_WRAP_RELEASE(int, close, (int file), (file), -1)
GPM_WRAP(int, unlink, (const char* path), (path), -1)
GPM_WRAP(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
GPM_WRAP(int, rename, (const char* from, const char* to), (from, to), -1)
int __real_link(const char* from, const char* to);
int __wrap_link(const char* from, const char* to) {
  if (gpm::test::LinksAreMissing()) errno = EPERM;
  return gpm::test::LinksAreMissing() || SystemCallFails("link") ? -1 : __real_link(from, to);
}
int __real_fcntl(int file, int command, ...);
int __wrap_fcntl(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);  // or an int, as the C library takes it too
  va_end(rest);
  if (SystemCallFails("fcntl")) return -1;
  const bool is_direct = (reinterpret_cast<std::uintptr_t>(argument) & O_DIRECT) != 0;
  if (command == F_SETFL && !is_direct) gpm::test::NoDirectWrites::End();
  return __real_fcntl(file, command, argument);
}
ssize_t __real_pwrite(int file, const void* data, std::size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  if (gpm::test::DirectWritesAreRefused()) errno = EINVAL;
  if (gpm::test::DirectWritesAreRefused() || SystemCallFails("pwrite")) return -1;
  if (FailsNow(FaultKind::kShortCall, "pwrite")) bytes = PartOf(bytes);
  return __real_pwrite(file, data, bytes, offset);
}
ssize_t __real_pread(int file, void* data, std::size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void* data, std::size_t bytes, off_t offset) {
  if (SystemCallFails("pread")) return -1;
  if (FailsNow(FaultKind::kFileEnd, "pread")) return 0;
  if (FailsNow(FaultKind::kShortCall, "pread")) bytes = PartOf(bytes);
  return __real_pread(file, data, bytes, offset);
}
GPM_WRAP(int, remove, (const char* path), (path), -1)
GPM_WRAP(int, stat, (const char* path, struct stat* status), (path, status), -1)
GPM_WRAP(int, lstat, (const char* path, struct stat* status), (path, status), -1)
GPM_WRAP(DIR*, opendir, (const char* path), (path), nullptr)
GPM_WRAP(dirent*, readdir, (DIR * folder), (folder), nullptr)
GPM_WRAP(int, chmod, (const char* path, mode_t mode), (path, mode), -1)
GPM_WRAP(int, chown, (const char* path, uid_t owner, gid_t group), (path, owner, group), -1)

/// std::thread::_M_start_thread: a thread can't be started.
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* thread, std::unique_ptr<std::thread::_State>* state, void (*depend)());
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* thread, std::unique_ptr<std::thread::_State>* state, void (*depend)()) {
  if (SystemCallFails("pthread_create")) {
    throw std::system_error(EAGAIN, std::generic_category(), "thread");
  }
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
      thread, state, depend);
}

}  // extern "C"
// NOLINTEND
