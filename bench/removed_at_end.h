#ifndef GPM_BENCH_REMOVED_AT_END_H_
#define GPM_BENCH_REMOVED_AT_END_H_

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
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

/// A pool file that goes however this ends, once it was made. REQUIRES: there is none yet.
class RemovedAtEnd {
 public:
  /// @throws Error(kExists), also where the name is that of a link to nowhere
  explicit RemovedAtEnd(const std::string& path) : path_(path), name_(path) {
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::symlink_status(path_, ignored))) {
      throw Error(ErrorCode::kExists, path_ + ": exists already; --pool names a new file");
    }
  }
  /// What fails to be made may have met another's file, which is left alone.
  ~RemovedAtEnd() {
    std::error_code ignored;
    if (made_) std::filesystem::remove(path_, ignored);
  }
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;
  const std::string& path() const { return path_; }
  void Made() {  ///< the file is there
    made_ = true;
    name_.Made();
  }

 private:
  const std::string path_;
  RemovedOnSignal name_;
  bool made_ = false;
};

/// A new folder that goes, with the files in it, however this ends.
class FolderRemovedAtEnd {
 public:
  /// @throws Error kExists, kIo
  explicit FolderRemovedAtEnd(const std::string& path) : path_(path), name_(path) {
    if (mkdir(path.c_str(), 0777) != 0) {
      if (errno != EEXIST) throw Error(ErrorCode::kIo, path + ": " + std::strerror(errno));
      throw Error(ErrorCode::kExists, path + ": exists already; --folder names a new one");
    }
    name_.MadeFolder();
  }
  ~FolderRemovedAtEnd() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FolderRemovedAtEnd(const FolderRemovedAtEnd&) = delete;
  FolderRemovedAtEnd& operator=(const FolderRemovedAtEnd&) = delete;

 private:
  const std::string path_;
  RemovedOnSignal name_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_REMOVED_AT_END_H_
