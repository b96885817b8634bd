#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "bench/limits_cells.h"
#include "bench/report.h"
#include "engine/cuda_memory.h"
#include "pm/error.h"
#include "pm/gpu_host.h"

namespace gpm::bench {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kWarpThreads = 32;
constexpr unsigned kChunkBytes = 16;  ///< that a lane reads or writes at once
constexpr unsigned kCellLanes = 8;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kSectorBytes = 32;

void CheckLaunch(const char* kernel) { CheckCuda(cudaGetLastError(), kernel); }

unsigned BlocksFor(std::uint64_t threads) {
  return static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
}

class Event {
 public:
  Event() { CheckCuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record() { CheckCuda(cudaEventRecord(event_), "cudaEventRecord"); }
  void Wait() { CheckCuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  double SecondsSince(const Event& begin) const {
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

__device__ std::uint64_t Thread() { return blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; }
__device__ std::uint64_t Threads() { return std::uint64_t{gridDim.x} * blockDim.x; }

__device__ std::uint64_t Fold(uint4 chunk) {
  return (chunk.x | (std::uint64_t{chunk.y} << 32)) ^ (chunk.z | (std::uint64_t{chunk.w} << 32));
}

/// Words 2i and 2i + 1 of a memory, as they are stored.
__device__ uint4 ChunkOf(std::uint64_t chunk, std::uint64_t version) {
  const std::uint64_t low = CellWord(2 * chunk, version);
  const std::uint64_t high = CellWord(2 * chunk + 1, version);
  return make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32),
                    static_cast<unsigned>(high), static_cast<unsigned>(high >> 32));
}

/// By all threads of a block, at its end.
__device__ void XorInto(std::uint64_t* sum, std::uint64_t value) {
  for (unsigned offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    value ^= __shfl_xor_sync(~0u, value, offset);
  }
  if (threadIdx.x % kWarpThreads == 0) {
    atomicXor(reinterpret_cast<unsigned long long*>(sum), value);
  }
}
__device__ void AddTo(std::uint64_t* sum, std::uint64_t value) {
  for (unsigned offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  if (threadIdx.x % kWarpThreads == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), value);
  }
}

/// Keeps the GPU busy until the host has queued what is timed: then no launch is in the time.
__global__ void HoldBack() {
  for (int i = 0; i < 50; ++i) __nanosleep(1000);
}

__global__ void ChooseCells(CellChoice choice, std::uint32_t* cells) {
  for (std::uint64_t i = Thread(); i < choice.count; i += Threads()) cells[i] = choice[i];
}

/// The accesses: consecutive ones by consecutive groups of lanes, so that those under way together
/// are neighbours in the order given. Loads go past the caches, as those of a store do (CudaMedia).
/// @tparam kLanes that read a cell together
template <unsigned kLanes>
__global__ void ReadCells(const std::byte* base, std::uint32_t cell_bytes, std::uint32_t read_bytes,
                          const std::uint32_t* cells, std::uint64_t count, std::uint64_t* sum) {
  std::uint64_t read = 0;
  for (std::uint64_t i = Thread() / kLanes; i < count; i += Threads() / kLanes) {
    const std::byte* const cell = base + std::uint64_t{cells[i]} * cell_bytes;
    for (std::uint32_t offset = Thread() % kLanes * kChunkBytes; offset < read_bytes;
         offset += kLanes * kChunkBytes) {
      read ^= Fold(__ldcv(reinterpret_cast<const uint4*>(cell + offset)));
    }
  }
  __syncwarp();
  XorInto(sum, read);
}

__global__ void WriteCells(std::byte* base, std::uint32_t cell_bytes, const std::uint32_t* cells,
                           std::uint64_t count) {
  for (std::uint64_t i = Thread() / kCellLanes; i < count; i += Threads() / kCellLanes) {
    const std::uint64_t cell = std::uint64_t{cells[i]} * cell_bytes;
    for (std::uint32_t offset = Thread() % kCellLanes * kChunkBytes; offset < cell_bytes;
         offset += kCellLanes * kChunkBytes) {
      *reinterpret_cast<uint4*>(base + cell + offset) = ChunkOf((cell + offset) / kChunkBytes, 1);
    }
  }
}

__global__ void CasCells(std::byte* base, std::uint32_t cell_bytes, const std::uint32_t* cells,
                         std::uint64_t count, std::uint64_t* sum) {
  std::uint64_t succeeded = 0;
  for (std::uint64_t i = Thread(); i < count; i += Threads()) {
    const std::uint64_t cell = std::uint64_t{cells[i]} * cell_bytes;
    const unsigned long long expected = CellWord(cell / 8, 0);
    succeeded += atomicCAS(reinterpret_cast<unsigned long long*>(base + cell), expected,
                           CellWord(cell / 8, 1)) == expected;
  }
  __syncwarp();
  AddTo(sum, succeeded);
}

__global__ void FillMemory(uint4* memory, std::uint64_t chunks) {
  for (std::uint64_t i = Thread(); i < chunks; i += Threads()) memory[i] = ChunkOf(i, 0);
}

/// Where cells are chosen in the kernel: reading their numbers would be part of what is timed.
/// @tparam kLanes that read a cell of kLanes chunks together
template <unsigned kLanes>
__global__ void ReadMemory(const uint4* memory, CellChoice choice, std::uint64_t* sum) {
  constexpr unsigned kAhead = 4;  // loads of a lane under way together
  const std::uint64_t stride = Threads() / kLanes;
  std::uint64_t read = 0;
  for (std::uint64_t i = Thread() / kLanes; i < choice.count; i += kAhead * stride) {
    uint4 chunks[kAhead];
#pragma unroll
    for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
      const std::uint64_t at = i + ahead * stride;
      chunks[ahead] = make_uint4(0, 0, 0, 0);
      if (at >= choice.count) continue;
      chunks[ahead] = __ldcg(memory + std::uint64_t{choice[at]} * kLanes + Thread() % kLanes);
    }
#pragma unroll
    for (const uint4& chunk : chunks) read ^= Fold(chunk);
  }
  __syncwarp();
  XorInto(sum, read);
}

__global__ void CasMemory(std::uint64_t* memory, CellChoice choice, std::uint64_t* sum) {
  std::uint64_t succeeded = 0;
  for (std::uint64_t i = Thread(); i < choice.count; i += Threads()) {
    const std::uint64_t index = std::uint64_t{choice[i]} * (kSectorBytes / 8);
    const auto expected = static_cast<unsigned>(CellWord(index, 0));
    succeeded += atomicCAS(reinterpret_cast<unsigned*>(memory + index), expected,
                           static_cast<unsigned>(CellWord(index, 1))) == expected;
  }
  __syncwarp();
  AddTo(sum, succeeded);
}

/// Kernels on the current GPU, one at a time.
class CudaAccessor : public Accessor {
 public:
  CudaAccessor(CellRange& range, ThreadPool& threads) : range_(range), threads_(threads) {
    range.mapping().RegisterGpu();
    int device = 0;
    int multiprocessors = 0;
    int threads_each = 0;
    CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
    CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
              "cudaDeviceGetAttribute");
    CheckCuda(cudaDeviceGetAttribute(&threads_each, cudaDevAttrMaxThreadsPerMultiProcessor, device),
              "cudaDeviceGetAttribute");
    full_blocks_ = static_cast<unsigned>(multiprocessors * threads_each) / kBlockThreads;
    sum_.Reserve(1);
  }

  /// A full GPU; where neighbours are accessed together, also less, for fewer pages under way.
  std::vector<std::uint32_t> InFlight(AccessOrder order, std::uint64_t accesses) const override {
    std::vector<std::uint32_t> blocks;
    if (order != AccessOrder::kRandom) blocks = {32, 64, 128};
    blocks.push_back(full_blocks_);
    const unsigned enough = BlocksFor(accesses * kCellLanes);
    for (std::uint32_t& number : blocks) number = std::min(number, enough);
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    return blocks;
  }

  Timed Run(AccessKind kind, const CellChoice& choice, std::uint32_t blocks) override {
    const std::uint32_t* const cells = Choose(choice);
    std::byte* const base = range_.base();
    const std::uint32_t cell_bytes = range_.cell_bytes();
    return Time([&] {
      switch (kind) {
        case AccessKind::kTouch:
          ReadCells<1><<<blocks, kBlockThreads>>>(base, cell_bytes, kTouchBytes, cells,
                                                  choice.count, sum_.data());
          break;
        case AccessKind::kRead:
          ReadCells<kCellLanes><<<blocks, kBlockThreads>>>(base, cell_bytes, cell_bytes, cells,
                                                           choice.count, sum_.data());
          break;
        case AccessKind::kWrite:
          WriteCells<<<blocks, kBlockThreads>>>(base, cell_bytes, cells, choice.count);
          break;
        case AccessKind::kCas:
          CasCells<<<blocks, kBlockThreads>>>(base, cell_bytes, cells, choice.count, sum_.data());
          break;
      }
      CheckLaunch("a kernel that accesses cells");
    });
  }

  std::optional<MemoryLimits> MeasureMemory(unsigned repeats) override;

 private:
  static_assert(kTouchBytes == kChunkBytes);

  /// The cells chosen, in GPU memory, in the order of access.
  const std::uint32_t* Choose(const CellChoice& choice);
  /// @param launch launches one kernel on the default stream
  template <class Launch>
  Timed Time(const Launch& launch);

  CellRange& range_;
  ThreadPool& threads_;
  unsigned full_blocks_ = 0;
  DeviceArray<std::uint32_t> cells_;
  DeviceArray<std::uint32_t> sorted_;
  DeviceArray<std::byte> library_;
  DeviceArray<std::uint64_t> sum_;
  Event begin_;
  Event end_;
};

const std::uint32_t* CudaAccessor::Choose(const CellChoice& choice) {
  cells_.Reserve(choice.count);
  ChooseCells<<<std::min(full_blocks_, BlocksFor(choice.count)), kBlockThreads>>>(choice,
                                                                                  cells_.data());
  CheckLaunch("ChooseCells");
  if (choice.order != AccessOrder::kOrdered) return cells_.data();
  sorted_.Reserve(choice.count);
  std::size_t bytes = 0;
  CheckCuda(
      cub::DeviceRadixSort::SortKeys(nullptr, bytes, cells_.data(), sorted_.data(), choice.count),
      "DeviceRadixSort");
  library_.Reserve(std::max<std::size_t>(bytes, 1));
  CheckCuda(cub::DeviceRadixSort::SortKeys(library_.data(), bytes, cells_.data(), sorted_.data(),
                                           choice.count),
            "DeviceRadixSort");
  return sorted_.data();
}

template <class Launch>
Accessor::Timed CudaAccessor::Time(const Launch& launch) {
  CheckCuda(cudaMemsetAsync(sum_.data(), 0, sizeof(std::uint64_t)), "cudaMemsetAsync");
  HoldBack<<<1, 1>>>();
  CheckLaunch("HoldBack");
  begin_.Record();
  launch();
  end_.Record();
  end_.Wait();
  Timed timed;
  timed.seconds = end_.SecondsSince(begin_);
  CheckCuda(cudaMemcpy(&timed.sum, sum_.data(), sizeof(timed.sum), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  return timed;
}

std::optional<MemoryLimits> CudaAccessor::MeasureMemory(unsigned repeats) {
  DeviceArray<uint4> memory;
  memory.Reserve(kMemoryBytes / kChunkBytes);
  const std::uint64_t all_words =
      XorOver(threads_, kMemoryBytes / 8, [](std::uint64_t begin, std::uint64_t end) {
        std::uint64_t sum = 0;
        for (std::uint64_t i = begin; i < end; ++i) sum ^= CellWord(i, 0);
        return sum;
      });
  // Every cell is accessed once.
  const auto measure = [&](std::uint64_t cell_bytes, bool cas, const auto& launch) {
    const std::uint64_t cells = kMemoryBytes / cell_bytes;
    CellChoice choice{AccessOrder::kRandom, cells, 0, CellPermutation::Of(cells)};
    std::vector<double> seconds;
    for (unsigned repeat = 0; repeat <= repeats; ++repeat) {
      if (repeat == 0 || cas) {
        FillMemory<<<full_blocks_, kBlockThreads>>>(memory.data(), kMemoryBytes / kChunkBytes);
        CheckLaunch("FillMemory");
      }
      const Timed timed = Time([&] {
        launch(choice);
        CheckLaunch("a kernel that accesses GPU memory");
      });
      if (timed.sum != (cas ? cells : all_words)) {
        throw Error(ErrorCode::kDamaged,
                    cas ? "not all CAS on GPU memory succeeded"
                        : "other words were read from GPU memory than are there");
      }
      if (repeat > 0) seconds.push_back(timed.seconds);   // the first warms up
      choice.first = (choice.first + cells / 3) % cells;  // what the L2 still has comes last
    }
    return Rate{static_cast<double>(cells) / Median(seconds), full_blocks_};
  };
  MemoryLimits limits;
  limits.range_bytes = kMemoryBytes;
  limits.read_32 = measure(kSectorBytes, false, [&](const CellChoice& choice) {
    ReadMemory<2><<<full_blocks_, kBlockThreads>>>(memory.data(), choice, sum_.data());
  });
  limits.read_128 = measure(128, false, [&](const CellChoice& choice) {
    ReadMemory<8><<<full_blocks_, kBlockThreads>>>(memory.data(), choice, sum_.data());
  });
  limits.cas_4 = measure(kSectorBytes, true, [&](const CellChoice& choice) {
    CasMemory<<<full_blocks_, kBlockThreads>>>(reinterpret_cast<std::uint64_t*>(memory.data()),
                                               choice, sum_.data());
  });
  return limits;
}

}  // namespace

std::unique_ptr<Accessor> MakeCudaAccessor(CellRange& range, ThreadPool& threads) {
  if (GpuCount() == 0) {
    throw Error(ErrorCode::kUnsupported,
                "executor cuda: no CUDA device or driver on this machine; use executor cpu");
  }
  return std::make_unique<CudaAccessor>(range, threads);
}

}  // namespace gpm::bench
