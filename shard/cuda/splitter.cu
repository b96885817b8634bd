#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <utility>

#include "engine/cuda/executor.h"
#include "engine/cuda/kernels/sort.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/memory.h"
#include "pm/gpu_host.h"
#include "shard/cuda/split_kernels.cuh"
#include "shard/manifest.h"
#include "shard/splitter.h"

namespace gpm {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kSampleBytes = std::uint64_t{64} << 10;

/// Of a kernel that reads or writes another GPU's memory: they fill the link, and leave room on the
/// multiprocessors to what runs beside them for as long as that takes.
constexpr unsigned kLinkBlocks = 256;

std::uint64_t BlocksOf(std::uint64_t threads, unsigned most = kGridStrideBlocks) {
  return std::clamp<std::uint64_t>(BlocksFor(threads, kThreads), 1, most);
}

/// Buffers that are given out one after the other, the same ones for each batch.
class Buffers {
 public:
  void Reset() { next_ = 0; }
  std::span<std::byte> Take(std::size_t bytes) {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    DeviceArray<std::byte>& buffer = buffers_[next_++];
    // What a shard or a rank gets differs from batch to batch: not each new most is allocated.
    if (bytes > buffer.size()) buffer.Reserve(bytes + bytes / 8);
    return {buffer.data(), bytes};
  }

 private:
  std::vector<DeviceArray<std::byte>> buffers_;
  std::size_t next_ = 0;
};

/// Sorts operations by shard, stably; or, with no storage, says how much it takes.
void SortByShard(void* storage, std::size_t* storage_bytes, const std::uint16_t* shard_of,
                 std::uint16_t* sorted, const std::uint32_t* index, std::uint32_t* order,
                 std::uint32_t n, unsigned bits, cudaStream_t stream) {
  CallCub("DeviceRadixSort", [&] {
    return cub::DeviceRadixSort::SortPairs(storage, *storage_bytes, shard_of, sorted, index, order,
                                           static_cast<int>(n), 0, static_cast<int>(bits), stream);
  });
}

class GpuSplitter final : public Splitter {
 public:
  GpuSplitter(int device, std::uint32_t lanes) : device_(device), lanes_(lanes) {
    const CurrentDevice current = Activate();
    LoadKernelsBeside(reinterpret_cast<const void*>(FindStarts));
    streams_.emplace();
    starts_.emplace();
    sample_.emplace();
  }

  int device() const override { return device_; }
  gpm::Stream stream() const override { return streams_->stream; }

  void Begin() override {
    const CurrentDevice current = Activate();
    buffers_.Reset();
    // (The default stream is behind all that others have for it.)
    CheckCuda(cudaEventRecord(streams_->begun, nullptr), "cudaEventRecord");
    CheckCuda(cudaStreamWaitEvent(stream(), streams_->begun, 0), "cudaStreamWaitEvent");
  }
  std::span<std::byte> Take(std::size_t bytes) override {
    const CurrentDevice current = Activate();
    return buffers_.Take(bytes);
  }

  void Divide(std::span<const std::byte> keys, std::uint32_t key_size, const Partition& partition,
              bool once) override {
    const CurrentDevice current = Activate();
    n_ = static_cast<std::uint32_t>(keys.size() / key_size);
    shards_ = partition.shards;
    once_ = once;
    if (n_ == 0) return;
    shard_of_.Reserve(n_);
    sorted_.Reserve(n_);
    index_.Reserve(n_);
    order_.Reserve(n_);
    TwinTable table{};
    if (once) {
      twins_.Reserve(n_);
      table.mask = static_cast<std::uint32_t>(std::bit_ceil(2 * std::uint64_t{n_}) - 1);
      table_.Reserve(std::uint64_t{table.mask} + 1);
      table.slots = table_.data();
      CheckCuda(cudaMemsetAsync(table_.data(), 0xFF, 4 * (std::uint64_t{table.mask} + 1), stream()),
                "cudaMemsetAsync");
    }
    const std::byte* const rows = Here(keys);
    const auto number = [&](const char* name, auto key_rows, auto kernel) {
      Launch(name, kernel, BlocksOf(n_), kThreads, stream(), key_rows, partition, table, n_,
             shard_of_.data(), index_.data(), once ? twins_.data() : nullptr);
    };
    if (key_size % 8 == 0 && reinterpret_cast<std::uintptr_t>(rows) % 8 == 0) {
      number("NumberShards", KeyRows<true>{rows, key_size}, NumberShards<true>);
    } else {
      number("NumberShards", KeyRows<false>{rows, key_size}, NumberShards<false>);
    }
    const auto bits = static_cast<unsigned>(std::bit_width(once ? shards_ : shards_ - 1));
    const auto sort = [&](void* storage, std::size_t* bytes) {
      SortByShard(storage, bytes, shard_of_.data(), sorted_.data(), index_.data(), order_.data(),
                  n_, std::max(bits, 1u), stream());
    };
    std::size_t library_bytes = 0;
    sort(nullptr, &library_bytes);
    library_.Reserve(library_bytes);
    sort(library_.data(), &library_bytes);
    Launch("FindStarts", FindStarts, BlocksOf(std::uint64_t{n_} + 1), kThreads, stream(),
           sorted_.data(), n_, shards_, starts_->get()->data());
    CheckCuda(cudaEventRecord(streams_->divided, stream()), "cudaEventRecord");
  }

  const std::vector<std::uint64_t>& Starts() override {
    host_starts_.assign(shards_ + 1, 0);
    if (n_ == 0) return host_starts_;
    CheckCuda(cudaEventSynchronize(streams_->divided), "cudaEventSynchronize");
    std::copy_n(starts_->get()->begin(), shards_ + 1, host_starts_.begin());
    return host_starts_;
  }

  std::vector<std::byte> Sample(std::span<const std::byte> rows, std::size_t row_bytes,
                                std::size_t most) override {
    const CurrentDevice current = Activate();
    const std::uint64_t n = rows.size() / row_bytes;
    const std::uint64_t some = std::min<std::uint64_t>({n, most, kSampleBytes / row_bytes});
    if (some == 0) return {};
    std::byte* const sample = sample_->get()->data();
    Launch("SampleRows", SampleRows, BlocksOf(some * row_bytes), kThreads, stream(), Here(rows),
           row_bytes, n / some, some * row_bytes, sample);
    CheckCuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    return {sample, sample + some * row_bytes};
  }

  void Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to,
              const WantedRows& wanted) override {
    if (from.empty()) return;
    const CurrentDevice current = Activate();
    const std::byte* const rows = Here(from);
    const WantedRows those = Here(wanted);
    const std::uint32_t* order = order_.data();
    for (const std::span<std::byte> part : to) {
      const unsigned blocks = Connect(part) ? kLinkBlocks : kGridStrideBlocks;
      Move<Moving::kGather>(rows, row_bytes, order, part.size() / row_bytes, part.data(), those,
                            blocks);
      order += part.size() / row_bytes;
    }
    CheckCuda(cudaEventRecord(streams_->gathered, stream()), "cudaEventRecord");
  }

  void Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to,
               const WantedRows& wanted) override {
    if (to.empty()) return;
    const CurrentDevice current = Activate();
    for (std::unique_ptr<Lane>& lane : lanes_) {
      if (lane == nullptr || !std::exchange(lane->carried, false)) continue;
      CheckCuda(cudaStreamWaitEvent(stream(), lane->done, 0), "cudaStreamWaitEvent");
    }
    const bool is_here = GpuOf(to.data()) == device_;
    std::byte* const rows = is_here ? to.data() : buffers_.Take(to.size()).data();
    const WantedRows those = Here(wanted);
    const std::uint32_t* order = order_.data();
    for (const std::span<std::byte> part : from) {
      const unsigned blocks = Connect(part) ? kLinkBlocks : kGridStrideBlocks;
      Move<Moving::kScatter>(part.data(), row_bytes, order, part.size() / row_bytes, rows, those,
                             blocks);
      order += part.size() / row_bytes;
    }
    if (once_) Move<Moving::kTwins>(rows, row_bytes, twins_.data(), n_, rows, those);
    if (!is_here) CopyByGpu(to.data(), rows, to.size(), stream());
  }

  void MapKinds(std::span<const Op> ops, Op op, const KindMap& as,
                std::span<std::byte> to) override {
    if (to.empty()) return;
    const CurrentDevice current = Activate();
    const Op* const kinds =
        ops.empty() ? nullptr : reinterpret_cast<const Op*>(Here(std::as_bytes(ops)));
    Launch("MapKindsOf", MapKindsOf, BlocksOf(to.size()), kThreads, stream(), kinds, op, as,
           static_cast<std::uint32_t>(to.size()), to.data());
  }
  void Clear(std::span<std::byte> bytes) override {
    if (bytes.empty()) return;
    const CurrentDevice current = Activate();
    CheckCuda(cudaMemsetAsync(bytes.data(), 0, bytes.size(), stream()), "cudaMemsetAsync");
  }

  void Carry(std::uint32_t number, int device, const Batch& part, const Work& work) override {
    const CurrentDevice current(device, false);
    std::unique_ptr<Lane>& lane = lanes_[number];
    if (lane == nullptr) {
      lane = std::make_unique<Lane>();
      ConnectGpus(device_, device);
    }
    lane->buffers.Reset();
    lane->carried = true;
    CheckCuda(cudaStreamWaitEvent(lane->stream, streams_->gathered, 0), "cudaStreamWaitEvent");
    if (device == device_) {
      work(part, lane->stream);
    } else {
      const auto copy = [&](std::byte* to, int to_device, const std::byte* from, int from_device,
                            std::size_t bytes) {
        if (bytes == 0) return;
        CheckCuda(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, lane->stream),
                  "cudaMemcpyPeerAsync");
      };
      const auto there = [&](std::span<const std::byte> here) {
        const std::span<std::byte> rows = lane->buffers.Take(here.size());
        copy(rows.data(), device, here.data(), device_, here.size());
        return rows;
      };
      const auto room = [&](std::size_t bytes) { return lane->buffers.Take(bytes); };
      const std::span<std::byte> ops = there(std::as_bytes(part.ops));
      const std::span<std::byte> results = room(part.results.size());
      Batch copied = part;
      copied.keys = there(part.keys);
      copied.ops = {reinterpret_cast<const Op*>(ops.data()), ops.size()};
      copied.values = there(part.values);
      copied.found = room(part.found.size());
      copied.results = {reinterpret_cast<Result*>(results.data()), results.size()};
      work(copied, lane->stream);
      copy(reinterpret_cast<std::byte*>(part.results.data()), device_, results.data(), device,
           results.size());
      copy(part.found.data(), device_, copied.found.data(), device, copied.found.size());
    }
    CheckCuda(cudaEventRecord(lane->done, lane->stream), "cudaEventRecord");
  }

  void Finish() override { CheckCuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

 private:
  /// What a shard has on its device.
  struct Lane {
    Buffers buffers;  ///< copies, where the device is another one
    CudaStream stream;
    CudaEvent done;        ///< recorded when answers are in this splitter's memory
    bool carried = false;  ///< in this batch, and `done` was not waited for yet
  };
  struct Streams {
    CudaStream stream;
    CudaEvent begun, divided, gathered;  ///< recorded when that has happened
  };

  CurrentDevice Activate() const { return CurrentDevice(device_, false); }

  /// Makes another device's memory one that this one's kernels can use. @return whether it is
  bool Connect(std::span<const std::byte> array) {
    const int device = array.empty() ? device_ : GpuOf(array.data());
    if (device != device_ && connected_.insert(device).second) ConnectGpus(device_, device);
    return device != device_;
  }
  /// An array where this device's kernels read it: itself, or a copy.
  const std::byte* Here(std::span<const std::byte> array) {
    if (GpuOf(array.data()) == device_) return array.data();
    const std::span<std::byte> copy = buffers_.Take(array.size());
    CopyByGpu(copy.data(), array.data(), array.size(), stream());
    return copy.data();
  }

  WantedRows Here(const WantedRows& wanted) {
    const auto here = [&](const auto*& array) {
      if (array == nullptr) return;
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(
          Here(std::as_bytes(std::span(array, n_))));
    };
    WantedRows those = wanted;
    here(those.ops);
    here(those.results);
    return those;
  }

  template <Moving kMoving>
  void Move(const std::byte* from, std::size_t row_bytes, const std::uint32_t* order,
            std::uint64_t rows, std::byte* to, const WantedRows& wanted,
            unsigned blocks = kGridStrideBlocks) {
    const auto by = [&]<class Word>(Word) {
      const auto row_words = static_cast<std::uint32_t>(row_bytes / sizeof(Word));
      const auto lanes_log2 = std::min(5u, static_cast<unsigned>(std::bit_width(row_words - 1)));
      Launch("MoveRows", MoveRows<Word, kMoving>, BlocksOf(rows << lanes_log2, blocks), kThreads,
             stream(), reinterpret_cast<const Word*>(from), reinterpret_cast<Word*>(to), row_words,
             order, static_cast<std::uint32_t>(rows), lanes_log2, wanted);
    };
    const auto bits =
        reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) | row_bytes;
    if (rows == 0) return;
    if (bits % sizeof(uint4) == 0) return by(uint4{});
    if (bits % sizeof(std::uint64_t) == 0) return by(std::uint64_t{});
    if (bits % sizeof(std::uint32_t) == 0) return by(std::uint32_t{});
    by(std::uint8_t{});
  }

  const int device_;
  Buffers buffers_;
  std::uint32_t n_ = 0;  ///< of the last Divide, as are:
  std::uint32_t shards_ = 0;
  bool once_ = false;
  DeviceArray<std::uint16_t> shard_of_, sorted_;
  DeviceArray<std::uint32_t> index_, order_;
  DeviceArray<std::uint32_t> table_, twins_;
  DeviceArray<std::byte> library_;
  std::optional<PinnedBox<std::array<std::uint32_t, kMaxShards + 1>>> starts_;
  std::optional<PinnedBox<std::array<std::byte, kSampleBytes>>> sample_;
  std::vector<std::uint64_t> host_starts_;
  std::set<int> connected_;
  std::optional<Streams> streams_;  ///< made when the device is current
  /// Destroyed first, as what is on their streams writes to this one's memory.
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace

std::unique_ptr<Splitter> MakeGpuSplitter(int device, std::uint32_t lanes) {
  return std::make_unique<GpuSplitter>(device, lanes);
}

}  // namespace gpm
