#ifndef GPM_CRASH_SIM_PROCESSES_H_
#define GPM_CRASH_SIM_PROCESSES_H_

#include <sys/mman.h>

#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

namespace gpm::crash {

/// Work that is done by child processes: what fails there by a signal is seen and told, and they do
/// not share one address space, of which mapping and unmapping files allows one change at a time.

/// A T in memory that this process and those forked from it share. T must mean the same in all.
template <class T>
class SharedMemory {
 public:
  SharedMemory() {
    static_assert(std::is_trivially_destructible_v<T>);
    void* const memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T();
  }
  ~SharedMemory() { munmap(value_, sizeof(T)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

/// Runs work(0) ... work(processes - 1), each in a child process, and waits for them.
/// @param meanwhile called in this process now and then, with whether one has died: to end the
///        work of the others is its matter
/// @return for each what it died of, or nothing when it came to its end
/// @throws std::system_error when no process can be made
std::vector<std::string> RunProcesses(unsigned processes, const std::function<void(unsigned)>& work,
                                      const std::function<void(bool died)>& meanwhile);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_PROCESSES_H_
