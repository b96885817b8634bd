// SlabHash-GPM (GPHash, FAST 2025, section 4.1, which made it of SlabHash: Ashkiani, Farach-Colton,
// Owens, "A Dynamic Hash Table for the GPU", IPDPS 2018): chains of slabs on PM through UVA, a warp
// an operation, with a redo log for crash consistency.
//
// A slab is what a warp reads at once: 15 keys, 15 references of values and the next slab, of 8
// bytes each. Inserts look at all slabs of the chain. Erased slots are not used again. Slabs and
// operations are in slabhash_table.h.
//
// Of keys of 32 and 128 bytes a slab has 15, too, in place, so that it has 640 or 2176 bytes
// instead of 256. All of them are read and compared whole, as there are no fingerprints
// (section 4.6). The first word of a key claims its slot, and so is neither 0 nor ~0; the others
// and then the reference come behind it. An insert that meets a slot that begins like its key waits
// until that has its reference: it is the same key, perhaps. The paper does not say how
// SlabHash-GPM has longer keys.
//
// Left out: resizing, and so recovery and the compaction of erased slots; SlabHash's allocator of
// slabs, for which a counter in GPU memory stands. A warp has as few operations as fill the GPU. A
// record of the log has a checksum, so that it needs no fence of its own between it and its mark.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "bench/peers/slabhash_table.h"
#include "bench/pm_file.h"

namespace gpm::bench::peers::slabhash {
namespace {

template <unsigned kWords>
class SlabHashAdapter : public KvAdapter {
 public:
  explicit SlabHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        buckets_(static_cast<std::uint64_t>(static_cast<double>(spec.items) / spec.fill) / kSlots +
                 1),
        // As many items as it is made for come in even where chains are uneven.
        slabs_(buckets_ + buckets_ / 2 + 64),
        log_bytes_((spec.max_batch * sizeof(LogRecord<kWords>) + sizeof(Slab<kWords>) - 1) /
                   sizeof(Slab<kWords>) * sizeof(Slab<kWords>)),
        pm_(slabs_ * sizeof(Slab<kWords>) + log_bytes_ +
            CellRing::CountOf(slabs_ * kSlots, spec.max_batch) * value_bytes_),
        cells_(pm_.data() + slabs_ * sizeof(Slab<kWords>) + log_bytes_, value_bytes_,
               slabs_ * kSlots, spec.max_batch, stream_) {
    slab_count_.Reserve(1);
    const std::uint64_t used = buckets_;
    CheckCuda(
        cudaMemcpyAsync(slab_count_.data(), &used, sizeof(used), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy");
    table_ = {reinterpret_cast<Slab<kWords>*>(pm_.data()),
              reinterpret_cast<LogRecord<kWords>*>(pm_.data() + slabs_ * sizeof(Slab<kWords>)),
              buckets_,
              slabs_,
              slab_count_.data(),
              cells_.cells()};
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    ApplyByWarpsAndWait(table_, KernelBatch(batch, value_bytes_),
                        OperationsPerWarp(batch.results.size()), stream_);
  }

  /// Of the slabs that chains have.
  std::uint64_t SlotCount() const override {
    std::uint64_t used = 0;
    CheckCuda(
        cudaMemcpyAsync(&used, slab_count_.data(), sizeof(used), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy");
    return std::min<std::uint64_t>(used, slabs_) * kSlots;
  }

  CountedMemory Persistent() override {
    return {.all = pm_.bytes(),
            .log = pm_.bytes().subspan(slabs_ * sizeof(Slab<kWords>), log_bytes_)};
  }

 private:
  const std::uint32_t value_bytes_;
  const std::uint64_t buckets_;
  const std::uint64_t slabs_;
  const std::uint64_t log_bytes_;
  CudaStream stream_;
  PmFile pm_;
  CellRing cells_;
  DeviceArray<std::uint64_t> slab_count_;
  SlabHashTable<kWords> table_{};
};

const RegisteredPeer registered({.name = "slabhash-gpm",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .longer_keys = {kLongerKeys.begin(), kLongerKeys.end()},
                                         .value_unit = 16,
                                         .durable = true},
                                 .make = MakePeerByKey<SlabHashAdapter>});

}  // namespace
}  // namespace gpm::bench::peers::slabhash
