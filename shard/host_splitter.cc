#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/item_uses.h"
#include "engine/word_map.h"
#include "pm/gpu_host.h"
#include "shard/multisplit.h"
#include "shard/splitter.h"

namespace gpm {
namespace {

class HostSplitter final : public Splitter {
 public:
  explicit HostSplitter(ThreadPool& threads) : threads_(threads) {}

  int device() const override { return -1; }
  Stream stream() const override { return nullptr; }

  void Begin() override { next_ = 0; }
  std::span<std::byte> Take(std::size_t bytes) override {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[next_++];
    if (bytes > buffer.bytes) {
      buffer = {};
      buffer.memory.reset(new std::byte[bytes]);
      buffer.bytes = bytes;
    }
    return {buffer.memory.get(), bytes};
  }

  void Divide(std::span<const std::byte> keys, std::uint32_t key_size, const Partition& partition,
              bool once) override {
    split_ = Multisplit(keys, key_size, partition, threads_);
    twins_.clear();
    if (once) KeepOne(keys, key_size);
  }
  const std::vector<std::uint64_t>& Starts() override { return split_.starts; }
  std::vector<std::byte> Sample(std::span<const std::byte> rows, std::size_t row_bytes,
                                std::size_t most) override {
    const std::size_t n = rows.size() / row_bytes;
    std::vector<std::byte> some(std::min(n, most) * row_bytes);
    for (std::size_t at = 0, i = 0; at < some.size(); at += row_bytes, ++i) {
      std::memcpy(&some[at], rows.data() + i * (n / std::min(n, most)) * row_bytes, row_bytes);
    }
    return some;
  }

  void Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to) override {
    std::span<const std::uint32_t> order = split_.order;
    for (const std::span<std::byte> part : to) {
      GatherRows(from, row_bytes, order.first(part.size() / row_bytes), part, threads_);
      order = order.subspan(part.size() / row_bytes);
    }
  }
  void Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to) override {
    if (to.empty()) return;
    std::span<const std::uint32_t> order = split_.order;
    for (const std::span<std::byte> part : from) {
      ScatterRows(part, row_bytes, order.first(part.size() / row_bytes), to, threads_);
      order = order.subspan(part.size() / row_bytes);
    }
    for (const auto& [twin, kept] : twins_) {
      std::memcpy(&to[twin * row_bytes], &to[kept * row_bytes], row_bytes);
    }
  }
  void MapKinds(std::span<const Op> ops, Op op, const KindMap& as,
                std::span<std::byte> to) override {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto kind = static_cast<std::uint8_t>(ops.empty() ? op : ops[i]);
      to[i] = static_cast<std::byte>(kind < kOpKinds ? as[kind] : kind);
    }
  }
  void Clear(std::span<std::byte> bytes) override {
    std::fill(bytes.begin(), bytes.end(), std::byte{});
  }
  void Carry(std::uint32_t, int, const Batch& part, const Work& work) override {
    work(part, nullptr);
  }
  void Finish() override {}

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  /// Takes operations on keys of earlier ones out of the order.
  void KeepOne(std::span<const std::byte> keys, std::uint32_t key_size) {
    WordMap firsts;  // of a key's id: the index of its first operation, plus one
    const auto key = [&](std::uint32_t i) { return keys.data() + std::uint64_t{i} * key_size; };
    std::size_t kept = 0;
    std::size_t j = 0;
    for (std::size_t shard = 1; shard < split_.starts.size(); ++shard) {
      for (; j < split_.starts[shard]; ++j) {
        const std::uint32_t index = split_.order[j];
        std::uint64_t& of_key = firsts.At(IdOfKey(key(index), key_size));
        if (of_key == 0) of_key = std::uint64_t{index} + 1;
        const auto first = static_cast<std::uint32_t>(of_key - 1);
        if (first != index && std::memcmp(key(first), key(index), key_size) == 0) {
          twins_.emplace_back(index, first);
        } else {
          split_.order[kept++] = index;
        }
      }
      split_.starts[shard] = kept;
    }
    split_.order.resize(kept);
  }

  ThreadPool& threads_;
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
  Split split_;
  /// Operations that are not divided, and those that are and have the same answer.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> twins_;
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
