#ifndef GPM_ENGINE_HOME_PROCESS_H_
#define GPM_ENGINE_HOME_PROCESS_H_

#include <cstdint>

namespace gpm {

/// The process that opened a store, to which the pool, its lock, threads and devices belong.
class HomeProcess {
 public:
  HomeProcess();
  /// Whether this is it, and not a child that it forked.
  bool IsThis() const;
  /// @throws Error(kUnsupported) in a child
  void Check() const;

 private:
  int process_;
  std::uint32_t forks_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_HOME_PROCESS_H_
