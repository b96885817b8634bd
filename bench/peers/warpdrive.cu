// WarpDrive (Jünger, Hundt, Schmidt: "WarpDrive: Massively Parallel Hashing on Multi-GPU Nodes",
// IPDPS 2018, section IV-A): open addressing in GPU memory, a group of |g| threads an operation.
//
// Left out: the distribution over several GPUs (multisplit, transposition; section IV-B), and what
// overlaps copies from the host with insertion.
//
// Added: the paper's insert takes the first free slot that it meets, which would leave a key twice
// that lies behind a tombstone. Here it goes on to the first window with an empty slot, as a find
// does, and then takes the first free one. Tables without tombstones see no difference.
//
// An insert that loses its slot to another begins its walk again, where the paper looks at the
// window once more.
//
// Slots and operations are in warpdrive_table.h.

#include <string>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "bench/peers/warpdrive_table.h"

namespace gpm::bench::peers::warpdrive {
namespace {

/// |g| of those that are measured by default: 2 to 8 are the best ones (section V).
constexpr unsigned kDefaultGroup = 4;

/// Owns a table. @tparam kGroup |g|
template <class Slots, unsigned kGroup>
class WarpDriveAdapter : public KvAdapter {
 public:
  explicit WarpDriveAdapter(const PeerSpec& spec) : value_bytes_(spec.value_bytes) {
    table_.slots = std::max<std::uint64_t>(
        kWarpThreads, static_cast<std::uint64_t>(static_cast<double>(spec.items) / spec.fill) + 1);
    words_.Reserve(table_.slots);
    table_.words = words_.data();
    if constexpr (requires { table_.values; }) {
      values_.Reserve(table_.slots * value_bytes_);
      table_.values = values_.data();
    }
    // An empty slot has all bits set.
    CheckCuda(cudaMemsetAsync(words_.data(), 0xFF, table_.slots * sizeof(std::uint64_t), stream_),
              "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    ApplyAndWait<kGroup>(table_, KernelBatch(batch, value_bytes_), stream_);
  }

 private:
  std::uint32_t value_bytes_;
  CudaStream stream_;
  WarpDriveTable<Slots> table_{};
  DeviceArray<std::uint64_t> words_;
  DeviceArray<std::byte> values_;
};

/// warpdrive-G has keys of 8 bytes and values apart; warpdrive-pairs-G has pairs of 4 + 4 bytes.
template <unsigned kGroup>
struct RegisteredGroup {
  RegisteredPeer separate{{.name = "warpdrive-" + std::to_string(kGroup),
                           .can = {.memory = ycsb::Memory::kDevice,
                                   .kinds = {Op::kFind, Op::kUpsert, Op::kErase},
                                   .value_unit = 16,
                                   .mixed = false,
                                   .whole_values = false},
                           .by_default = kGroup == kDefaultGroup,
                           .make = MakePeer<WarpDriveAdapter<SeparateSlots, kGroup>>}};
  RegisteredPeer packed{{.name = "warpdrive-pairs-" + std::to_string(kGroup),
                         .can = {.memory = ycsb::Memory::kDevice,
                                 .kinds = {Op::kFind, Op::kUpsert, Op::kErase},
                                 .key_bytes = 4,
                                 .value_unit = 4,
                                 .max_value_bytes = 4,
                                 .mixed = false},
                         .by_default = kGroup == kDefaultGroup,
                         .make = MakePeer<WarpDriveAdapter<PackedSlots, kGroup>>}};
};
const RegisteredGroup<1> group1;
const RegisteredGroup<2> group2;
const RegisteredGroup<4> group4;
const RegisteredGroup<8> group8;
const RegisteredGroup<16> group16;
const RegisteredGroup<32> group32;

}  // namespace
}  // namespace gpm::bench::peers::warpdrive
