#ifndef GPM_PM_MUTEX_H_
#define GPM_PM_MUTEX_H_

#include <mutex>

// What guards what, as clang checks it with -Wthread-safety; for other compilers, comments.
#ifdef __clang__
#define GPM_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define GPM_THREAD_SAFETY(attribute)
#endif
#define GPM_CAPABILITY(name) GPM_THREAD_SAFETY(capability(name))
#define GPM_SCOPED_CAPABILITY GPM_THREAD_SAFETY(scoped_lockable)
#define GPM_GUARDED_BY(what) GPM_THREAD_SAFETY(guarded_by(what))
#define GPM_REQUIRES(...) GPM_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define GPM_ACQUIRE(...) GPM_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define GPM_RELEASE(...) GPM_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define GPM_NOT_CHECKED GPM_THREAD_SAFETY(no_thread_safety_analysis)

namespace gpm {

/// std::mutex as a capability that fields can be guarded by.
class GPM_CAPABILITY("mutex") Mutex {
 public:
  void lock() GPM_ACQUIRE() { mutex_.lock(); }
  void unlock() GPM_RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a mutex during its life, but for stretches between Unlock and Lock.
class GPM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GPM_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() GPM_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() GPM_ACQUIRE() { lock_.lock(); }
  void Unlock() GPM_RELEASE() { lock_.unlock(); }
  std::unique_lock<std::mutex>& native() { return lock_; }  ///< for a condition variable

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace gpm

#endif  // GPM_PM_MUTEX_H_
