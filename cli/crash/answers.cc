#include "cli/crash/answers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gpmstore/error.h"
#include "support/signals.h"

namespace gpm::cli {
namespace {

int MakeFile(const std::string& path) {
  const RemovedOnSignal name(path);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 || unlink(path.c_str()) != 0 || ftruncate(file, kMaxCrashBatch) != 0) {
    const int error = errno;
    if (file >= 0) close(file);
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(error)));
  }
  return file;
}

}  // namespace

std::string CrashAnswersFile(const std::string& pool) { return pool + ".answers"; }

CrashAnswers::CrashAnswers(const std::string& path) : CrashAnswers(MakeFile(path)) {}

CrashAnswers::CrashAnswers(int file) : file_(file) {
  void* const address =
      mmap(nullptr, kMaxCrashBatch, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    close(file);
    throw Error(ErrorCode::kIo,
                fmt::format("the answers of scopes can't be mapped: {}", std::strerror(error)));
  }
  results_ = {static_cast<Result*>(address), kMaxCrashBatch};
}

CrashAnswers::~CrashAnswers() {
  munmap(results_.data(), results_.size_bytes());
  close(file_);
}

}  // namespace gpm::cli
