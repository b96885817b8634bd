#include "engine/cuda/io/host_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>

#include "pm/driver_turns.h"
#include "pm/gpu_host.h"

namespace gpm {
namespace {

/// Reads that the GPU makes in a second, beside the host's.
constexpr double kGpuRate = 40e6;
/// Those that the host makes, until it is known; and at least, so that it is measured again when it
/// was slow for a while.
constexpr double kFirstRate = 100e6;
constexpr double kLeastRate = kGpuRate / 4;
/// Rows that a thread asks for.
constexpr std::uint32_t kRowsOfPiece = 512;
/// Rows that are on their way to a core while it copies one.
constexpr std::uint32_t kAhead = 16;
/// Rows of a batch from which its rate says something.
constexpr std::uint32_t kTelling = 512;
constexpr std::uint64_t kLine = 64;
/// Registered with the GPU at a time, bytes.
constexpr std::uint64_t kRegistered = std::uint64_t{4} << 20;

}  // namespace

HostReader::Staged::Staged() : memory(kStagedBytes), rows(memory.data()) {
  madvise(rows, kStagedBytes, MADV_DONTFORK);  // the GPU keeps to the pages that there are
}
HostReader::Staged::~Staged() {
  for (std::uint64_t at = 0; at < registered; at += kRegistered) UnregisterHostMemory(rows + at);
}

/// (By pieces, as those who launch wait meanwhile.)
void HostReader::Staged::Register() {
  std::memset(rows, 0, kStagedBytes);  // so that its pages are there
  for (; registered < kStagedBytes; registered += kRegistered) {
    RegisterHostMemory(rows + registered, kRegistered);
  }
}

HostReader::Made::Made(std::uint32_t row_bytes) {
  staged.Register();
  const DriverTurns::Registering turn;
  list.Reserve(kLine + kStagedBytes / row_bytes * sizeof(std::uint32_t));
}

HostReader::HostReader(int device, std::uint32_t value_size)
    : value_size_(value_size), row_bytes_((value_size + 15) / 16 * 16), rate_(kFirstRate) {
  static_assert(HostReads::kParts <= kMostParts);
  BeginMaking(device, [this] { made_.emplace(row_bytes_); });
}

HostReader::~HostReader() { EndMaking(); }

void HostReader::AwaitAll() noexcept {
  HostCrew::AwaitAll();
  cudaStreamSynchronize(made_->taking);
}

std::uint32_t* HostReader::Count() const {
  return reinterpret_cast<std::uint32_t*>(made_->list.data());
}
std::uint32_t* HostReader::Cells() const {
  return reinterpret_cast<std::uint32_t*>(made_->list.data() + kLine);
}

HostReads HostReader::View() const {
  const double rate = rate_;
  return {.cells = Cells(),
          .count = Count(),
          .staged = made_->staged.rows,
          .row_bytes = row_bytes_,
          .room = static_cast<std::uint32_t>(kStagedBytes / row_bytes_),
          .share = static_cast<std::uint32_t>(65536 * rate / (rate + kGpuRate))};
}

void HostReader::Begin(cudaStream_t stream, const std::byte* cells_base, std::uint64_t cell_bytes) {
  cells_base_ = cells_base;
  cell_bytes_ = cell_bytes;
  CheckCuda(cudaEventRecord(made_->listed, stream), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(HostCrew::stream(), made_->listed, 0), "cudaStreamWaitEvent");
  BeginParts(HostReads::kParts);
}

cudaStream_t HostReader::Await(std::uint32_t part) {
  CheckCuda(cudaStreamWaitEvent(made_->taking, Done(part), 0), "cudaStreamWaitEvent");
  return made_->taking;
}

void HostReader::Join(cudaStream_t stream) {
  CheckCuda(cudaEventRecord(made_->taken, made_->taking), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream, made_->taken, 0), "cudaStreamWaitEvent");
}

void HostReader::Do() noexcept {
  const std::uint32_t all = *Count();
  const std::uint64_t bytes = value_size_;
  const auto start = std::chrono::steady_clock::now();
  const auto pieces_of = [all](std::uint32_t part) {
    const std::uint32_t rows = HostReads::BeginOf(part + 1, all) - HostReads::BeginOf(part, all);
    return std::uint64_t{(rows + kRowsOfPiece - 1) / kRowsOfPiece};
  };
  const auto read = [&](std::uint32_t part, std::uint64_t piece) {
    const auto* const cells = Cells();
    const auto at = [&](std::uint32_t i) { return cells_base_ + cells[i] * cell_bytes_; };
    const auto fetch = [&](std::uint32_t i) {
      for (std::uint64_t k = 0; k < bytes; k += kLine) __builtin_prefetch(at(i) + k);
      __builtin_prefetch(at(i) + bytes - 1);
    };
    std::uint32_t i =
        HostReads::BeginOf(part, all) + static_cast<std::uint32_t>(piece) * kRowsOfPiece;
    const std::uint32_t end = std::min(i + kRowsOfPiece, HostReads::BeginOf(part + 1, all));
    for (std::uint32_t next = i; next < std::min(i + kAhead, end); ++next) fetch(next);
    std::byte* to = made_->staged.rows + std::uint64_t{i} * row_bytes_;
    for (; i < end; ++i, to += row_bytes_) {
      if (end - i > kAhead) fetch(i + kAhead);
      std::memcpy(to, at(i), bytes);
    }
  };
  Run(std::cref(pieces_of), std::cref(read));
  if (all < kTelling) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  rate_ = std::max(kLeastRate, 0.75 * rate_ + 0.25 * all / seconds.count());
}

}  // namespace gpm
