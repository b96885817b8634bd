#include "pm/file_access.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gpmstore/error.h"

namespace gpm {

void CopyAccess(const std::string& from, const std::string& to) {
  const auto fail = [&](const char* what) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", from, what, std::strerror(errno)));
  };
  struct stat old {};
  struct stat now {};
  if (stat(from.c_str(), &old) != 0 || stat(to.c_str(), &now) != 0) fail("can't tell its owner");
  if ((old.st_uid != now.st_uid || old.st_gid != now.st_gid) &&
      chown(to.c_str(), old.st_uid, old.st_gid) != 0) {
    fail("a new file can't have its owner and group; let its owner do it");
  }
  if (chmod(to.c_str(), old.st_mode & 07777) != 0) fail("a new file can't have its permissions");
}

}  // namespace gpm
