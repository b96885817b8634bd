#ifndef GPM_BENCH_REMOVED_AT_END_H_
#define GPM_BENCH_REMOVED_AT_END_H_

#include <filesystem>
#include <string>

#include "gpmstore/error.h"
#include "pm/dax_device.h"
#include "support/signals.h"

namespace gpm::bench {

/// What a benchmark creates goes again, which a device must not.
/// @throws Error(kInvalidArgument)
inline void RequireNoDevice(const std::string& path) {
  if (!FindDaxDevice(path)) return;
  throw Error(ErrorCode::kInvalidArgument, path + ": is a device; name a new file");
}

/// A pool file that goes however this ends. REQUIRES: there is none yet.
class RemovedAtEnd {
 public:
  /// @throws Error(kExists)
  explicit RemovedAtEnd(const std::string& path) : path_(path), name_(path) {
    if (std::filesystem::exists(path_)) {
      throw Error(ErrorCode::kExists, path_ + ": exists already; --pool names a new file");
    }
  }
  ~RemovedAtEnd() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;
  const std::string& path() const { return path_; }
  void Made() { name_.Made(); }  ///< the file is there

 private:
  const std::string path_;
  RemovedOnSignal name_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_REMOVED_AT_END_H_
