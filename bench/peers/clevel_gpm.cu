// Clevel-GPM (GPHash, FAST 2025, section 4.1, which made it of Clevel: Chen et al., "Lock-free
// Concurrent Level Hashing for Persistent Memory", ATC 2020): a lock-free multi-level table on PM
// through UVA, where each thread carries out an operation on its own.
//
// Slots are words: 16 bits of the key's hash and the number of a cell that has key and value, which
// is written before the slot is. A key has two buckets of eight slots in each of two levels, of
// which the lower has half as many. So longer keys are read where their 16 bits are equal, and
// nothing but the cells differs. Buckets and operations are in clevel_table.h.
//
// Left out: resizing and what its context word protects, recovery, and the search for duplicates
// that it leaves. Tables have the size that the fill asks for. Which cells are free is known in GPU
// memory, as in the other peers on PM.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/clevel_table.h"
#include "bench/peers/device.cuh"
#include "bench/pm_file.h"

namespace gpm::bench::peers::clevel {
namespace {

template <unsigned kWords>
class ClevelAdapter : public KvAdapter {
 public:
  explicit ClevelAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        top_buckets_(TopBuckets(spec)),
        slots_((top_buckets_ + top_buckets_ / 2) * kSlots),
        cell_bytes_(ClevelTable<kWords>::kKeyBytes + value_bytes_),
        pm_(slots_ * sizeof(std::uint64_t) +
            CellRing::CountOf(slots_, spec.max_batch) * cell_bytes_),
        cells_(pm_.data() + slots_ * sizeof(std::uint64_t), cell_bytes_, slots_, spec.max_batch,
               stream_) {
    table_ = {reinterpret_cast<std::uint64_t*>(pm_.data()), top_buckets_, cells_.cells()};
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    ApplyAndWait<1>(table_, KernelBatch(batch, value_bytes_), stream_);
  }

  std::uint64_t SlotCount() const override { return slots_; }

  CountedMemory Persistent() override { return {.all = pm_.bytes()}; }

 private:
  static std::uint64_t TopBuckets(const PeerSpec& spec) {
    const double slots = static_cast<double>(spec.items) / spec.fill;
    const auto buckets = static_cast<std::uint64_t>(slots / kSlots / 1.5) + 1;
    return (buckets + 1) / 2 * 2;  // two share one of the lower level
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t top_buckets_;
  const std::uint64_t slots_;
  const std::uint64_t cell_bytes_;
  CudaStream stream_;
  PmFile pm_;
  CellRing cells_;
  ClevelTable<kWords> table_{};
};

const RegisteredPeer registered({.name = "clevel-gpm",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .longer_keys = {kLongerKeys.begin(), kLongerKeys.end()},
                                         .value_unit = 16,
                                         .inserts = Inserts::kNewInBatch,
                                         .durable = true},
                                 .make = MakePeerByKey<ClevelAdapter>});

}  // namespace
}  // namespace gpm::bench::peers::clevel
