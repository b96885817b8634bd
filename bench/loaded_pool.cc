#include "bench/loaded_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "ycsb/device_buffers.h"
#include "ycsb/runner.h"

namespace gpm::bench {
namespace {

[[noreturn]] void Fail(const std::string& what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error)));
}

}  // namespace

/// An open file.
class LoadedPool::File {
 public:
  /// @throws Error(kIo)
  File(const std::string& path, int flags) : path_(path), fd_(open64(path.c_str(), flags, 0600)) {
    if (fd_ < 0) Fail(path, errno);
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

 private:
  std::string path_;
  int fd_;
};

void LoadedPool::CopyBytes(const File& from, const File& to) {
  constexpr std::uint64_t kBlock = 4 << 20;
  std::atomic<int> failure{0};
  threads_.Run((bytes_ + kBlock - 1) / kBlock, [&](std::size_t block) {
    std::vector<std::byte> buffer(std::min(kBlock, bytes_ - block * kBlock));
    for (std::uint64_t at = 0; at < buffer.size() && failure == 0;) {
      const auto offset = static_cast<off_t>(block * kBlock + at);
      const ssize_t n = pread(from.fd(), buffer.data(), buffer.size() - at, offset);
      if (n <= 0) failure = n < 0 ? errno : EIO;  // EIO: shorter than it was
      for (ssize_t done = 0; done < n;) {
        const ssize_t written = pwrite(to.fd(), buffer.data() + done,
                                       static_cast<std::size_t>(n - done), offset + done);
        if (written < 0) {
          failure = errno;
          return;
        }
        done += written;
      }
      at += static_cast<std::uint64_t>(std::max<ssize_t>(n, 0));
    }
  });
  if (failure != 0) Fail(fmt::format("copying {} to {}", from.path(), to.path()), failure);
}

void ValidatePoolSpec(const PoolSpec& spec) {
  RequireNoDevice(spec.path);
  if (spec.path == "pinned:") {
    throw Error(ErrorCode::kInvalidArgument,
                "--pool pinned: can't be opened again, as this benchmark does; name a file");
  }
  if (spec.records == 0 || spec.records >= ~0u) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} records: there are 1 to 2^32 - 2 of them", spec.records));
  }
}

CreateOptions CreateOptionsOf(const PoolSpec& spec) {
  CreateOptions create;
  create.key_size = spec.key_size;
  create.value_size = spec.value_size;
  create.geometry = spec.geometry;
  create.initial_capacity = spec.records;
  create.hash_seed = spec.seed;
  return create;
}

LoadedPool::LoadedPool(const PoolSpec& spec, ThreadPool& threads)
    : spec_(spec), file_(spec.path), threads_(threads) {
  ValidatePoolSpec(spec);
  Load();
}

LoadedPool::~LoadedPool() = default;

void LoadedPool::Load() {
  ShowProgress("loading the records");
  OpenOptions open;
  open.executor = spec_.executor;
  open.threads = spec_.threads;
  open.cache.directory = false;
  Store store = Store::Create(spec_.path, CreateOptionsOf(spec_), open);
  file_.Made();
  spec_.executor = store.Stats().executor;
  ycsb::WorkloadSpec workload = ycsb::PresetWorkload("load");
  workload.records = spec_.records;
  ycsb::RunnerOptions runner;
  runner.batch_rows = std::size_t{1} << 20;
  runner.generator_threads = spec_.threads;
  if (spec_.executor == ExecutorKind::kCuda) {
    memory_ = ycsb::Memory::kDevice;
    runner.buffers = [](const ycsb::BatchBuffers::Shape& shape) {
      return std::make_unique<ycsb::DeviceBatchBuffers>(shape);
    };
  }
  const ycsb::PhaseReport report = ycsb::Runner(store, workload, runner).Load();
  if (report.wrong > 0) throw Error(ErrorCode::kDamaged, "loading: " + report.first_wrong);
  stats_ = store.Stats();
  store.Close();
  contents_.assign(spec_.records, 0);

  const RemovedOnSignal copy_name(spec_.path + ".loaded");
  copy_ = std::make_unique<File>(spec_.path + ".loaded", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC);
  unlink(copy_->path().c_str());
  bytes_ = std::filesystem::file_size(spec_.path);
  CopyBytes(File(spec_.path, O_RDONLY | O_CLOEXEC), *copy_);
}

void LoadedPool::Restore() {
  if (!aged_) return;
  ShowProgress("putting the loaded pool back");
  const File pool(spec_.path, O_WRONLY | O_CLOEXEC);
  if (ftruncate(pool.fd(), static_cast<off_t>(bytes_)) != 0) Fail(spec_.path, errno);
  CopyBytes(*copy_, pool);
  contents_.assign(spec_.records, 0);
  aged_ = false;
}

Store LoadedPool::Open(const CacheOptions& cache, const AccessOptions& access) {
  Restore();
  OpenOptions open;
  open.executor = spec_.executor;
  open.threads = spec_.threads;
  open.cache = cache;
  open.access = access;
  return Store::Open(spec_.path, open);
}

}  // namespace gpm::bench
