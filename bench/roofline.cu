#include <algorithm>
#include <bit>
#include <chrono>
#include <cub/device/device_radix_sort.cuh>

#include "bench/report.h"
#include "bench/roofline_cells.h"
#include "engine/cuda/graphs.h"
#include "engine/cuda/memory.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"

namespace gpm::bench {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kMaxBlockThreads = 1024;
constexpr unsigned kWarpThreads = 32;
constexpr unsigned kChunkBytes = 16;  ///< that a lane reads or writes at once
constexpr unsigned kCellLanes = 8;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kSectorBytes = 32;
constexpr std::uint64_t kRegionBytes = std::uint64_t{2} << 20;  // side by side in a part

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
  if (threadIdx.x % kWarpThreads == 0 && value != 0) {
    atomicXor(reinterpret_cast<unsigned long long*>(sum), value);
  }
}
__device__ void AddTo(std::uint64_t* sum, std::uint64_t value) {
  for (unsigned offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  if (threadIdx.x % kWarpThreads == 0 && value != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), value);
  }
}

/// Keeps the GPU busy until the host has queued what is timed: then no launch is in the time.
__global__ void HoldBack() {
  for (int i = 0; i < 50; ++i) __nanosleep(1000);
}

__global__ void Tell(std::uint64_t* told, std::uint64_t number) {
  if (Thread() == 0) *const_cast<volatile std::uint64_t*>(told) = number;
}

__global__ void ChooseCells(CellChoice choice, std::uint32_t* cells) {
  for (std::uint64_t i = Thread(); i < choice.count; i += Threads()) cells[i] = choice[i];
}

/// The number, in `parts`, of the multiprocessor that is dealt each cell.
__global__ void DealCells(const std::uint32_t* cells, std::uint64_t count, std::uint32_t cell_bytes,
                          std::uint32_t multiprocessors, std::uint16_t* parts) {
  for (std::uint64_t i = Thread(); i < count; i += Threads()) {
    const std::uint64_t region = std::uint64_t{cells[i]} * cell_bytes / kRegionBytes;
    parts[i] = static_cast<std::uint16_t>(region % multiprocessors);
  }
}

/// Cells to access, in order.
struct Cells {
  std::byte* base;
  std::uint32_t cell_bytes;
  const std::uint32_t* chosen;
  std::uint64_t count;
};

/// How cells are dealt out: those of a part lie side by side.
struct Parts {
  std::uint32_t count;    ///< multiprocessors
  std::uint32_t* begins;  ///< of each part, among the cells; then the number of cells
  std::uint32_t* claims;  ///< of each part, whether a block has it; then how many blocks have begun
};

/// Finds where parts begin; none is claimed. For count + 1 threads or more.
/// @param of_cells the part of each cell, in order
__global__ void FindParts(const std::uint16_t* of_cells, std::uint64_t cells, Parts parts) {
  const std::uint64_t part = Thread();
  if (part > parts.count) return;
  std::uint64_t begin = 0;
  for (std::uint64_t end = cells; begin < end;) {
    const std::uint64_t middle = (begin + end) / 2;
    if (of_cells[middle] < part) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  parts.begins[part] = static_cast<std::uint32_t>(begin);
  parts.claims[part] = 0;
}

/// The kinds of access: what kLanes lanes together do to a cell, `offset` bytes from the base, and
/// how all their results make the sum of a run. Loads go past the caches, as those of a store do
/// (CudaMedia).
template <unsigned kLanesOfCell>
struct ReadCell {
  static constexpr unsigned kLanes = kLanesOfCell;
  std::uint32_t bytes;

  __device__ void operator()(std::byte* base, std::uint64_t offset, unsigned lane,
                             std::uint64_t& result) const {
    for (std::uint32_t at = lane * kChunkBytes; at < bytes; at += kLanes * kChunkBytes) {
      result ^= Fold(__ldcv(reinterpret_cast<const uint4*>(base + offset + at)));
    }
  }
  __device__ void Add(std::uint64_t* sum, std::uint64_t result) const { XorInto(sum, result); }
};

template <unsigned kLanesOfCell>
struct WriteCell {
  static constexpr unsigned kLanes = kLanesOfCell;
  std::uint32_t bytes;

  __device__ void operator()(std::byte* base, std::uint64_t offset, unsigned lane,
                             std::uint64_t&) const {
    for (std::uint32_t at = lane * kChunkBytes; at < bytes; at += kLanes * kChunkBytes) {
      *reinterpret_cast<uint4*>(base + offset + at) = ChunkOf((offset + at) / kChunkBytes, 1);
    }
  }
  __device__ void Add(std::uint64_t*, std::uint64_t) const {}
};

template <unsigned kLanesOfCell>
struct ReadOrWriteCell {
  static constexpr unsigned kLanes = kLanesOfCell;
  std::uint32_t bytes;

  __device__ void operator()(std::byte* base, std::uint64_t offset, unsigned lane,
                             std::uint64_t& result) const {
    if (Changes(AccessKind::kReadOrWrite, offset / bytes)) {
      WriteCell<kLanes>{bytes}(base, offset, lane, result);
    } else {
      ReadCell<kLanes>{bytes}(base, offset, lane, result);
    }
  }
  __device__ void Add(std::uint64_t* sum, std::uint64_t result) const { XorInto(sum, result); }
};

struct WriteWord {
  static constexpr unsigned kLanes = 1;

  __device__ void operator()(std::byte* base, std::uint64_t offset, unsigned,
                             std::uint64_t&) const {
    *reinterpret_cast<std::uint64_t*>(base + offset) = CellWord(offset / 8, 1);
  }
  __device__ void Add(std::uint64_t*, std::uint64_t) const {}
};

struct CasCell {
  static constexpr unsigned kLanes = 1;

  __device__ void operator()(std::byte* base, std::uint64_t offset, unsigned,
                             std::uint64_t& result) const {
    const unsigned long long expected = CellWord(offset / 8, 0);
    result += atomicCAS(reinterpret_cast<unsigned long long*>(base + offset), expected,
                        CellWord(offset / 8, 1)) == expected;
  }
  __device__ void Add(std::uint64_t* sum, std::uint64_t result) const { AddTo(sum, result); }
};

/// Some of the chosen cells: [begin, end).
struct ChosenCells {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Consecutive cells by consecutive groups of lanes, so that those under way together are
/// neighbours in the order given.
/// @param thread of `threads` that share this
template <class Access>
__device__ void AccessSome(const Access& access, const Cells& cells, ChosenCells some,
                           std::uint64_t thread, std::uint64_t threads, std::uint64_t& result) {
  constexpr unsigned kLanes = Access::kLanes;
  for (std::uint64_t i = some.begin + thread / kLanes; i < some.end; i += threads / kLanes) {
    access(cells.base, std::uint64_t{cells.chosen[i]} * cells.cell_bytes,
           static_cast<unsigned>(thread % kLanes), result);
  }
}

template <class Access>
__global__ void AccessCells(Access access, Cells cells, std::uint64_t* sum) {
  std::uint64_t result = 0;
  AccessSome(access, cells, {0, cells.count}, Thread(), Threads(), result);
  __syncwarp();
  access.Add(sum, result);
}

/// One block for each part, which accesses the part of the multiprocessor that it runs on. Where
/// two run on one, the second has nothing to do, and another part has no block: the block that
/// begins last then makes those accesses, so that each is made once wherever blocks run.
template <class Access>
__global__ void __launch_bounds__(kMaxBlockThreads)
    AccessDealt(Access access, Cells cells, Parts parts, std::uint64_t* sum) {
  __shared__ bool is_mine;
  __shared__ bool is_last;
  std::uint64_t result = 0;
  const auto claim = [&](std::uint32_t part) {
    if (threadIdx.x == 0) is_mine = atomicExch(&parts.claims[part], 1u) == 0;
    __syncthreads();
  };
  const auto access_part = [&](std::uint32_t part) {
    if (is_mine) {
      AccessSome(access, cells, {parts.begins[part], parts.begins[part + 1]}, threadIdx.x,
                 blockDim.x, result);
    }
    __syncthreads();
  };
  std::uint32_t own = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(own));
  own %= parts.count;
  claim(own);
  // A block that has begun has claimed its part: the last one sees what nobody will.
  std::uint32_t begun = 0;
  if (threadIdx.x == 0) begun = atomicAdd(&parts.claims[parts.count], 1u) + 1;
  access_part(own);
  if (threadIdx.x == 0) is_last = begun == gridDim.x;
  __syncthreads();
  if (is_last) {
    bool is_left = false;
    for (std::uint32_t part = threadIdx.x; part < parts.count; part += blockDim.x) {
      is_left |= __ldcg(&parts.claims[part]) == 0;
    }
    if (__syncthreads_or(is_left)) {
      for (std::uint32_t part = 0; part < parts.count; ++part) {
        claim(part);
        access_part(part);
      }
    }
  }
  access.Add(sum, result);
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
    multiprocessors_ = static_cast<unsigned>(multiprocessors);
    full_blocks_ = static_cast<unsigned>(multiprocessors * threads_each) / kBlockThreads;
    begins_.Reserve(multiprocessors_ + 1);
    claims_.Reserve(multiprocessors_ + 1);
    sum_.Reserve(1);
  }

  /// A full GPU; where neighbours are accessed together, also less, for fewer pages under way.
  /// Dealt out, one block for each multiprocessor, which counts as many as it has the threads of.
  std::vector<std::uint32_t> InFlight(AccessOrder order, std::uint64_t accesses) const override {
    if (order == AccessOrder::kDealt) {
      return {multiprocessors_, 2 * multiprocessors_,
              kMaxBlockThreads / kBlockThreads * multiprocessors_};
    }
    std::vector<std::uint32_t> blocks;
    if (order != AccessOrder::kRandom) blocks = {32, 64, 128};
    blocks.push_back(full_blocks_);
    const unsigned enough = BlocksFor(accesses * kCellLanes);
    for (std::uint32_t& number : blocks) number = std::min(number, enough);
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    return blocks;
  }

  Timed Run(AccessKind kind, const CellChoice& choice, std::uint32_t blocks) override {
    const std::uint32_t cell_bytes = range_.cell_bytes();
    const Cells cells{range_.base(), cell_bytes, Choose(choice), choice.count};
    return Time([&] {
      switch (kind) {
        case AccessKind::kTouch:
          return LaunchAccess(ReadCell<1>{kTouchBytes}, cells, choice.order, blocks);
        case AccessKind::kRead:
          return LaunchAccess(ReadCell<kCellLanes>{cell_bytes}, cells, choice.order, blocks);
        case AccessKind::kWrite:
          return LaunchAccess(WriteCell<kCellLanes>{cell_bytes}, cells, choice.order, blocks);
        case AccessKind::kReadOrWrite:
          return LaunchAccess(ReadOrWriteCell<kCellLanes>{cell_bytes}, cells, choice.order, blocks);
        case AccessKind::kSmallWrite:
          return LaunchAccess(WriteWord{}, cells, choice.order, blocks);
        case AccessKind::kCas:
          return LaunchAccess(CasCell{}, cells, choice.order, blocks);
      }
    });
  }

  std::optional<MemoryRates> MeasureMemory(unsigned repeats) override;
  double MeasureEmptyBatch() override;

 private:
  static_assert(kTouchBytes == kChunkBytes);

  Parts parts() const { return {multiprocessors_, begins_.data(), claims_.data()}; }

  /// The cells chosen, in GPU memory, in the order of access; those dealt out are then in parts().
  const std::uint32_t* Choose(const CellChoice& choice);
  /// @param call of a function of CUB, with its memory, or nullptr, and the bytes of that
  template <class Call>
  void Sort(const Call& call);
  template <class Access>
  void LaunchAccess(const Access& access, const Cells& cells, AccessOrder order,
                    std::uint32_t blocks);
  /// @param launch launches one kernel on the default stream
  template <class Launch>
  Timed Time(const Launch& launch);

  CellRange& range_;
  ThreadPool& threads_;
  unsigned multiprocessors_ = 0;
  unsigned full_blocks_ = 0;
  DeviceArray<std::uint32_t> cells_;
  DeviceArray<std::uint32_t> sorted_;
  DeviceArray<std::uint16_t> part_of_cells_;
  DeviceArray<std::uint16_t> sorted_parts_;
  DeviceArray<std::uint32_t> begins_;
  DeviceArray<std::uint32_t> claims_;
  DeviceArray<std::byte> library_;
  DeviceArray<std::uint64_t> sum_;
  Event begin_;
  Event end_;
};

template <class Call>
void CudaAccessor::Sort(const Call& call) {
  std::size_t bytes = 0;
  CheckCuda(call(nullptr, bytes), "DeviceRadixSort");
  library_.Reserve(std::max<std::size_t>(bytes, 1));
  CheckCuda(call(library_.data(), bytes), "DeviceRadixSort");
}

const std::uint32_t* CudaAccessor::Choose(const CellChoice& choice) {
  const std::uint64_t count = choice.count;
  const unsigned blocks = std::min(full_blocks_, BlocksFor(count));
  cells_.Reserve(count);
  ChooseCells<<<blocks, kBlockThreads>>>(choice, cells_.data());
  CheckLaunch("ChooseCells");
  if (choice.order == AccessOrder::kRandom || choice.order == AccessOrder::kSequential) {
    return cells_.data();
  }
  sorted_.Reserve(count);
  if (choice.order == AccessOrder::kOrdered) {
    Sort([&](void* memory, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortKeys(memory, bytes, cells_.data(), sorted_.data(), count);
    });
    return sorted_.data();
  }
  part_of_cells_.Reserve(count);
  sorted_parts_.Reserve(count);
  DealCells<<<blocks, kBlockThreads>>>(cells_.data(), count, range_.cell_bytes(), multiprocessors_,
                                       part_of_cells_.data());
  CheckLaunch("DealCells");
  Sort([&](void* memory, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, part_of_cells_.data(),
                                           sorted_parts_.data(), cells_.data(), sorted_.data(),
                                           count, 0, std::bit_width(multiprocessors_));
  });
  FindParts<<<BlocksFor(multiprocessors_ + 1), kBlockThreads>>>(sorted_parts_.data(), count,
                                                                parts());
  CheckLaunch("FindParts");
  return sorted_.data();
}

template <class Access>
void CudaAccessor::LaunchAccess(const Access& access, const Cells& cells, AccessOrder order,
                                std::uint32_t blocks) {
  if (order == AccessOrder::kDealt) {
    const unsigned block_threads = blocks / multiprocessors_ * kBlockThreads;
    AccessDealt<<<multiprocessors_, block_threads>>>(access, cells, parts(), sum_.data());
  } else {
    AccessCells<<<blocks, kBlockThreads>>>(access, cells, sum_.data());
  }
  CheckLaunch("a kernel that accesses cells");
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

std::optional<MemoryRates> CudaAccessor::MeasureMemory(unsigned repeats) {
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
  MemoryRates rates;
  rates.range_bytes = kMemoryBytes;
  rates.read_32 = measure(kSectorBytes, false, [&](const CellChoice& choice) {
    ReadMemory<2><<<full_blocks_, kBlockThreads>>>(memory.data(), choice, sum_.data());
  });
  rates.read_128 = measure(128, false, [&](const CellChoice& choice) {
    ReadMemory<8><<<full_blocks_, kBlockThreads>>>(memory.data(), choice, sum_.data());
  });
  rates.cas_4 = measure(kSectorBytes, true, [&](const CellChoice& choice) {
    CasMemory<<<full_blocks_, kBlockThreads>>>(reinterpret_cast<std::uint64_t*>(memory.data()),
                                               choice, sum_.data());
  });
  return rates;
}

double CudaAccessor::MeasureEmptyBatch() {
  constexpr std::uint64_t kWarmUp = 100;
  constexpr std::uint64_t kBatches = 1000;
  constexpr std::uint64_t kLooksBeforeQuery = 1 << 16;
  PinnedBox<std::uint64_t> told;
  KernelGraph graph;
  std::vector<double> seconds;
  for (std::uint64_t number = 1; number <= kWarmUp + kBatches; ++number) {
    const auto start = std::chrono::steady_clock::now();
    graph.Launch({Tell, multiprocessors_, kBlockThreads, told.get(), number}, cudaStreamPerThread);
    for (std::uint64_t looks = 1; __atomic_load_n(told.get(), __ATOMIC_ACQUIRE) != number;
         ++looks) {
      if (looks % kLooksBeforeQuery != 0) continue;
      const cudaError_t status = cudaStreamQuery(cudaStreamPerThread);
      if (status != cudaErrorNotReady) CheckCuda(status, "an empty batch");
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (number > kWarmUp) seconds.push_back(taken.count());
  }
  return Median(seconds);
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
