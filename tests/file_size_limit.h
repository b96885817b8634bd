#ifndef GPM_TESTS_FILE_SIZE_LIMIT_H_
#define GPM_TESTS_FILE_SIZE_LIMIT_H_

#include <sys/resource.h>

namespace gpm::test {

/// The soft limit of the size of files that this process writes, for a while.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit before_ {};
};

}  // namespace gpm::test

#endif  // GPM_TESTS_FILE_SIZE_LIMIT_H_
