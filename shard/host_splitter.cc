#include <algorithm>
#include <cstring>

#include "pm/gpu_host.h"
#include "shard/multisplit.h"
#include "shard/row_parts.h"
#include "shard/splitter.h"

namespace gpm {
namespace {

class HostSplitter final : public Splitter {
 public:
  explicit HostSplitter(ThreadPool& threads) : threads_(threads), split_(threads) {}

  int device() const override { return -1; }
  Stream stream() const override { return nullptr; }

  void Begin() override { next_ = 0; }
  std::span<std::byte> Take(std::size_t bytes) override {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[next_++];
    if (bytes > buffer.lines * sizeof(Line)) {
      buffer = {};
      // What a shard or a rank gets differs from batch to batch: not each new most is allocated.
      const std::size_t lines = (bytes + bytes / 8) / sizeof(Line) + 1;
      buffer.memory.reset(new Line[lines]);
      buffer.lines = lines;
    }
    return {reinterpret_cast<std::byte*>(buffer.memory.get()), bytes};
  }

  void Divide(std::span<const std::byte> keys, std::uint32_t key_size, const Partition& partition,
              bool once) override {
    split_.Divide(keys, key_size, partition, once);
  }
  const std::vector<std::uint64_t>& Starts() override { return split_.starts(); }
  std::vector<std::byte> Sample(std::span<const std::byte> rows, std::size_t row_bytes,
                                std::size_t most) override {
    const std::size_t n = rows.size() / row_bytes;
    std::vector<std::byte> some(std::min(n, most) * row_bytes);
    for (std::size_t at = 0, i = 0; at < some.size(); at += row_bytes, ++i) {
      std::memcpy(&some[at], rows.data() + i * (n / std::min(n, most)) * row_bytes, row_bytes);
    }
    return some;
  }

  void Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to,
              const WantedRows& wanted) override {
    if (!from.empty()) split_.Gather(from, row_bytes, to, wanted);
  }
  void Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to,
               const WantedRows& wanted) override {
    if (!to.empty()) split_.Scatter(from, row_bytes, to, wanted);
  }
  void MapKinds(std::span<const Op> ops, Op op, const KindMap& as,
                std::span<std::byte> to) override {
    const auto map = [=, kinds = ops.empty() ? nullptr : ops.data(), to = to.data()](
                         std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        const auto kind = static_cast<std::uint8_t>(kinds == nullptr ? op : kinds[i]);
        to[i] = static_cast<std::byte>(kind < kOpKinds ? as[kind] : kind);
      }
    };
    RowParts::Of(to.size(), 2, threads_)
        .Run(threads_, [&](std::size_t, std::size_t begin, std::size_t end) { map(begin, end); });
  }
  void Clear(std::span<std::byte> bytes) override {
    RowParts::Of(bytes.size(), 1, threads_)
        .Run(threads_, [&](std::size_t, std::size_t begin, std::size_t end) {
          std::fill(bytes.data() + begin, bytes.data() + end, std::byte{});
        });
  }
  void Carry(std::uint32_t, int, const Batch& part, const Work& work) override {
    work(part, nullptr);
  }
  void Finish() override {}

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Buffer {
    std::unique_ptr<Line[]> memory;
    std::size_t lines = 0;
  };

  ThreadPool& threads_;
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
  Multisplit split_;
};

}  // namespace

std::unique_ptr<Splitter> MakeHostSplitter(ThreadPool& threads) {
  return std::make_unique<HostSplitter>(threads);
}

int DeviceOf(const Batch& batch) {
  const void* const arrays[] = {batch.keys.data(), batch.ops.data(), batch.values.data(),
                                batch.found.data(), batch.results.data()};
  for (const void* array : arrays) {
    const int device = array == nullptr ? -1 : GpuOf(array);
    if (device >= 0) return device;
  }
  return -1;
}

}  // namespace gpm
