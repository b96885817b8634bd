#include "crash_sim/scratch_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gpmstore/error.h"

namespace gpm::crash {
namespace {

[[noreturn]] void ThrowIo(const std::string& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

}  // namespace

ScratchPool::ScratchPool(std::uint64_t max_bytes) : max_bytes_(max_bytes) {
  const char* const temporary = std::getenv("TMPDIR");
  const std::string places[] = {"/dev/shm", temporary != nullptr ? temporary : "/tmp"};
  for (const std::string& place : places) {
    directory_ = place + "/gpmstore_crash_XXXXXX";
    if (mkdtemp(directory_.data()) != nullptr) {
      path_ = directory_ + "/pool";
      return;
    }
  }
  ThrowIo(directory_, "can't be made");
}

ScratchPool::~ScratchPool() {
  Detach();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void ScratchPool::Set(const Image& image, std::span<const WordValue> changes) {
  if (words_ == nullptr) Attach(true);
  const std::uint64_t bytes = 8 * image.size();
  if (bytes > max_bytes_) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: {} bytes of at most {}", path_, bytes, max_bytes_));
  }
  if (FileBytes() != bytes && ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    ThrowIo(path_, "can't be resized");
  }
  std::copy(image.begin(), image.end(), words_);
  for (const WordValue& word : changes) words_[word.offset / 8] = word.value;
}

Image ScratchPool::Read() {
  if (words_ == nullptr && !Attach(false)) return {};
  return Image(words_, words_ + FileBytes() / 8);
}

void ScratchPool::Remove() {
  Detach();
  ::unlink(path_.c_str());
}

/// @return false when there is no file
bool ScratchPool::Attach(bool create) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
  if (fd_ < 0 && errno == ENOENT) return false;
  if (fd_ < 0) ThrowIo(path_, "can't be opened");
  void* const words = mmap(nullptr, max_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (words == MAP_FAILED) ThrowIo(path_, "can't be mapped");
  words_ = static_cast<std::uint64_t*>(words);
  return true;
}

void ScratchPool::Detach() {
  if (words_ != nullptr) munmap(words_, max_bytes_);
  if (fd_ >= 0) ::close(fd_);
  words_ = nullptr;
  fd_ = -1;
}

std::uint64_t ScratchPool::FileBytes() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) ThrowIo(path_, "can't be asked for its size");
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace gpm::crash
