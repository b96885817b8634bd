#include "engine/cuda/io/host_writer.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "engine/cuda/io/around_caches.h"
#include "pm/driver_turns.h"

namespace gpm {
namespace {

/// Operations of a part, unless there would be too many parts.
constexpr std::uint32_t kOfPart = 1u << 16;
constexpr std::uint64_t kLine = 64;
/// Rows that are on their way to a core while it copies one.
constexpr std::uint32_t kAhead = 16;
/// Rows that a thread asks for.
constexpr std::uint32_t kRowsOfPiece = 512;
/// What the GPU takes by itself, in seconds: for a row, or a byte of longer ones; and what the
/// threads take to wake up meanwhile. (2^20 rows of 128 bytes take it 7.2 ms; eight threads write
/// them in 3.5 to 4.5 beside it.)
constexpr double kOfGpuForRow = 7e-9;
constexpr double kOfGpuForByte = 1 / 18e9;
constexpr double kToWake = 1e-4;
/// Until it is known, the host takes so much of that; and it is not remembered to have taken more
/// than the second of these.
constexpr double kFirstPace = 0.5;
constexpr double kWorstPace = 2;
/// Where it takes more, one batch in so many tries again.
constexpr std::uint32_t kUntilNextTry = 64;

}  // namespace

HostWriter::Made::Made() {
  const DriverTurns::Registering turn;
  list.Reserve(kMostOperations * sizeof(std::uint32_t));
}

HostWriter::HostWriter(int device, std::uint32_t value_size)
    : value_size_(value_size), pace_(kFirstPace) {
  BeginMaking(device, [this] { made_.emplace(); });
}

HostWriter::~HostWriter() { EndMaking(); }

HostWriter::Turn HostWriter::TakeTurn() {
  if (const std::uint32_t wait = wait_; wait != 0) {
    wait_ = wait - 1;
    return Turn();
  }
  return Turn(this);
}

std::uint32_t HostWriter::Parts() const {
  return std::min((operations_ + kOfPart - 1) / kOfPart, kMostParts);
}

std::uint32_t HostWriter::BeginOf(std::uint32_t part) const {
  return static_cast<std::uint32_t>(std::uint64_t{operations_} * part / Parts());
}

cudaStream_t HostWriter::Follow(cudaStream_t behind) {
  CheckCuda(cudaEventRecord(made_->followed, behind), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream(), made_->followed, 0), "cudaStreamWaitEvent");
  return stream();
}

void HostWriter::Begin(const std::byte* rows, std::uint32_t operations, const Reclaim& grants,
                       std::byte* cells_base, std::uint64_t cell_bytes) {
  rows_ = rows;
  operations_ = operations;
  cells_base_ = cells_base;
  cell_bytes_ = cell_bytes;
  const std::uint64_t first = grants.grant.first & grants.cell_mask;
  const std::uint64_t before_end =
      std::min<std::uint64_t>(operations_, grants.cell_mask + 1 - first);
  const auto copy = [&](std::uint64_t to, std::uint64_t from, std::uint64_t cells) {
    if (cells == 0) return;
    CheckCuda(
        cudaMemcpyAsync(made_->list.data() + to * sizeof(std::uint32_t), grants.cell_ring + from,
                        cells * sizeof(std::uint32_t), cudaMemcpyDeviceToHost, stream()),
        "cudaMemcpyAsync to the host");
  };
  copy(0, first, before_end);
  copy(before_end, 0, operations_ - before_end);
  BeginParts(Parts());
}

void HostWriter::Do() noexcept {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t bytes = value_size_;
  const auto* const cells = reinterpret_cast<const std::uint32_t*>(made_->list.data());
  const auto pieces_of = [this](std::uint32_t part) {
    return std::uint64_t{(BeginOf(part + 1) - BeginOf(part) + kRowsOfPiece - 1) / kRowsOfPiece};
  };
  const auto write = [&](std::uint32_t part, std::uint64_t piece) {
    std::uint32_t i = BeginOf(part) + static_cast<std::uint32_t>(piece) * kRowsOfPiece;
    const std::uint32_t end = std::min(i + kRowsOfPiece, BeginOf(part + 1));
    for (const std::byte* row = rows_ + i * bytes; i < end; ++i, row += bytes) {
      for (std::uint64_t k = 0; k < bytes; k += kLine) {
        __builtin_prefetch(row + kAhead * bytes + k);
      }
      CopyAroundCaches(cells_base_ + cells[i] * cell_bytes_, row, bytes);
    }
    FenceAroundCaches();
  };
  Run(std::cref(pieces_of), std::cref(write));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double of_gpu =
      kToWake + operations_ * std::max(kOfGpuForRow, static_cast<double>(bytes) * kOfGpuForByte);
  pace_ = 0.75 * pace_ + 0.25 * std::min(seconds.count() / of_gpu, kWorstPace);
  if (pace_ > 1) wait_ = kUntilNextTry;
}

}  // namespace gpm
