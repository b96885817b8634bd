#ifndef GPM_CRASH_SIM_SCRATCH_POOL_H_
#define GPM_CRASH_SIM_SCRATCH_POOL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "crash_sim/crash_states.h"
#include "crash_sim/trace.h"
#include "support/signals.h"

namespace gpm::crash {

/// A pool file that is quickly set to any contents, behind the back of the store that uses it: on
/// tmpfs where there is one, written through a mapping of its own.
///
/// Thread safety: none; one for each worker. Set and Remove only while no store has the file open.
class ScratchPool {
 public:
  /// @param max_bytes the file never gets larger
  /// @throws Error(kIo)
  explicit ScratchPool(std::uint64_t max_bytes);
  ~ScratchPool();  ///< removes the file
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t max_bytes() const { return max_bytes_; }

  /// The file now holds `image` with these words changed, and has its size. Made when it is not
  /// there. @throws Error(kIo)
  void Set(const Image& image, std::span<const WordValue> changes = {});
  /// What the file holds; empty when there is none. @throws Error(kIo)
  Image Read();
  /// There is no file under the path now.
  void Remove();

 private:
  bool Attach(bool create);
  void Detach();
  std::uint64_t FileBytes() const;

  std::string directory_;
  std::string path_;
  std::optional<RemovedOnSignal> directory_name_;
  std::optional<RemovedOnSignal> name_;
  std::uint64_t max_bytes_;
  int fd_ = -1;
  std::uint64_t* words_ = nullptr;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SCRATCH_POOL_H_
