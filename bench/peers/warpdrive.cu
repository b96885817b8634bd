// WarpDrive (Jünger, Hundt, Schmidt: "WarpDrive: Massively Parallel Hashing on Multi-GPU Nodes",
// IPDPS 2018, section IV-A): open addressing in GPU memory, a group of |g| threads an operation.
//
// Left out: the distribution over several GPUs (multisplit, transposition; section IV-B), and what
// overlaps copies from the host with insertion.
//
// Added: the paper's insert takes the first free slot that it meets, which would leave a key twice
// that lies behind a tombstone. Here it goes on to the first window with an empty slot, as a find
// does, and then takes the first free one. Tables without tombstones see no difference.

#include <string>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "gpmstore/error.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

/// Chaotic probes of 32 slots each, after which a table is said to be full (p_max).
constexpr unsigned kMaxProbes = 512;

/// |g| of those that are measured by default: 2 to 8 are the best ones (section V).
constexpr unsigned kDefaultGroup = 4;

/// Murmur's finalizer of 32 bits, which the paper uses.
__device__ std::uint32_t Fmix32(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// 32 + 32 bits packed into a word (AOS): a compare-and-swap writes key and value at once.
struct PackedSlots {
  using Key = std::uint32_t;
  static constexpr std::uint64_t kEmpty = 0xFFFFFFFF'FFFFFFFFull;
  static constexpr std::uint64_t kTombstone = 0xFFFFFFFE'FFFFFFFFull;
  static constexpr bool IsReserved(Key key) { return key >= 0xFFFFFFFEu; }

  std::uint64_t* words;
  std::uint64_t slots;

  __device__ static Key KeyOfWord(std::uint64_t word) { return static_cast<Key>(word >> 32); }
  __device__ static std::uint64_t HashOf(Key key, unsigned probe) {
    const std::uint32_t h = Fmix32(key + probe * 0x9E3779B9u);
    return std::uint64_t{h} << 32 | Fmix32(h ^ key);
  }
  __device__ static std::uint64_t WordOf(Key key, const KernelBatch& batch, std::uint64_t i) {
    const std::uint32_t value =
        batch.values == nullptr ? 0 : reinterpret_cast<const std::uint32_t*>(batch.values)[i];
    return std::uint64_t{key} << 32 | value;
  }
  /// Finishes what the leader's compare-and-swap of an insert has begun.
  template <class Tile>
  __device__ void WriteNew(const Tile&, const KernelBatch&, std::uint64_t, std::uint64_t) const {}
  template <class Tile>
  __device__ void Overwrite(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                            std::uint64_t slot) const {
    if (tile.thread_rank() == 0) StoreWord(&words[slot], WordOf(batch.KeyOf<Key>(i), batch, i));
  }
  template <class Tile>
  __device__ void Read(const Tile& tile, const KernelBatch& batch, std::uint64_t i, std::uint64_t,
                       std::uint64_t word) const {
    if (tile.thread_rank() == 0) {
      reinterpret_cast<std::uint32_t*>(batch.found)[i] = static_cast<std::uint32_t>(word);
    }
  }
};

/// Keys of 64 bits, and values in an array of their own (SOA), each at its key's slot.
struct SeparateSlots {
  using Key = std::uint64_t;
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static constexpr std::uint64_t kTombstone = ~std::uint64_t{1};
  static constexpr bool IsReserved(Key key) { return key >= kTombstone; }

  std::uint64_t* words;
  std::uint64_t slots;
  std::byte* values;

  __device__ static Key KeyOfWord(std::uint64_t word) { return word; }
  __device__ static std::uint64_t HashOf(Key key, unsigned probe) {
    return Scramble(key + probe * 0x9E3779B97F4A7C15ull);
  }
  __device__ static std::uint64_t WordOf(Key key, const KernelBatch&, std::uint64_t) { return key; }
  template <class Tile>
  __device__ void WriteNew(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t slot) const {
    CopyValue(tile, values + slot * batch.value_bytes, batch.ValueOf(i), batch.value_bytes);
  }
  template <class Tile>
  __device__ void Overwrite(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                            std::uint64_t slot) const {
    WriteNew(tile, batch, i, slot);
  }
  template <class Tile>
  __device__ void Read(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       std::uint64_t slot, std::uint64_t) const {
    CopyValue(tile, batch.FoundOf(i), values + slot * batch.value_bytes, batch.value_bytes);
  }
};

/// What kernels see of a table. @tparam Slots says what a slot is
template <class Slots>
struct WarpDriveTable : Slots {
  using Key = typename Slots::Key;
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

  /// Where a walk ended, the same for all lanes.
  struct Place {
    std::uint64_t match = kNowhere;  ///< the key's slot
    std::uint64_t word = 0;          ///< what was read there
    std::uint64_t free = kNowhere;   ///< the first slot without a key, before the walk's end
    std::uint64_t free_word = 0;     ///< what was read there: empty, or a tombstone
  };

  __device__ static bool IsFree(std::uint64_t word) {
    return word == Slots::kEmpty || word == Slots::kTombstone;
  }

  /// Walks windows of |g| slots, as long as they are full (paper, figure 3).
  template <class Tile>
  __device__ Place Walk(const Tile& tile, Key key) const {
    Place place;
    for (unsigned probe = 0; probe < kMaxProbes; ++probe) {
      const std::uint64_t start = Reduce(Slots::HashOf(key, probe), this->slots);
      for (unsigned q = 0; q < kWarpThreads / tile.size(); ++q) {
        std::uint64_t slot = start + q * tile.size() + tile.thread_rank();
        if (slot >= this->slots) slot -= this->slots;
        const std::uint64_t word = LoadWord(&this->words[slot]);
        const unsigned match = tile.ballot(!IsFree(word) && Slots::KeyOfWord(word) == key);
        if (match != 0) {
          place.match = tile.shfl(slot, FirstOf(match));
          place.word = tile.shfl(word, FirstOf(match));
          return place;
        }
        const unsigned free = tile.ballot(IsFree(word));
        if (free != 0 && place.free == kNowhere) {
          place.free = tile.shfl(slot, FirstOf(free));
          place.free_word = tile.shfl(word, FirstOf(free));
        }
        if (tile.any(word == Slots::kEmpty)) return place;
      }
    }
    return place;
  }

  template <class Tile>
  __device__ Result Upsert(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Key key = batch.KeyOf<Key>(i);
    // Each attempt but the last meets a slot that another operation has just taken.
    for (std::uint64_t attempt = 0; attempt <= batch.n; ++attempt) {
      const Place place = Walk(tile, key);
      if (place.match != kNowhere) {
        this->Overwrite(tile, batch, i, place.match);
        return Result::kOk;
      }
      if (place.free == kNowhere) return Result::kNoSpace;
      bool won = false;
      if (tile.thread_rank() == 0) {
        won = Cas(&this->words[place.free], place.free_word, Slots::WordOf(key, batch, i));
      }
      if (tile.any(won)) {
        this->WriteNew(tile, batch, i, place.free);
        return Result::kOk;
      }
    }
    return Result::kNoSpace;
  }

  template <class Tile>
  __device__ Result Find(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Place place = Walk(tile, batch.KeyOf<Key>(i));
    if (place.match == kNowhere) return Result::kNotFound;
    if (batch.found != nullptr) this->Read(tile, batch, i, place.match, place.word);
    return Result::kOk;
  }

  template <class Tile>
  __device__ Result Erase(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Place place = Walk(tile, batch.KeyOf<Key>(i));
    if (place.match == kNowhere) return Result::kNotFound;
    bool won = false;
    if (tile.thread_rank() == 0) {
      won = Cas(&this->words[place.match], place.word, Slots::kTombstone);
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;  // another erase was first
  }

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    if (Slots::IsReserved(batch.KeyOf<Key>(i))) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, batch, i);
      case Op::kUpsert:
        return Upsert(tile, batch, i);
      case Op::kErase:
        return Erase(tile, batch, i);
      default:
        return Result::kInvalid;
    }
  }
};

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
}  // namespace gpm::bench::peers
