#ifndef GPM_ENGINE_CUDA_IO_READ_PLANS_CUH_
#define GPM_ENGINE_CUDA_IO_READ_PLANS_CUH_

#include <bit>

#include "engine/cuda/io/host_reads.h"
#include "engine/cuda/io/report.cuh"
#include "engine/cuda/io/sm_queues.cuh"

namespace gpm {

/// A value that a batch reads from persistent memory together with others. Search kernels plan the
/// reads (Reads::Plan), and ReadValues or CarryOutSearched makes them. They are dealt out by
/// address (SmQueues). In pools that are too large for that, those of a large batch are put in the
/// order of addresses, by *bins* of 128 KiB or more (PlaceBins, PlaceReads).
struct ReadPlan {
  // What `place` is:
  static constexpr std::uint32_t kKinds = 3u << 30;
  static constexpr std::uint32_t kRead = 0;         ///< of a read in order, its number in the bin
  static constexpr std::uint32_t kCopy = 1u << 30;  ///< the operation that reads the same cell
  /// The slot whose value the cache has, of all buckets'. (Those from 2^30 on have no number here:
  /// in tables that large, what they hold is read.)
  static constexpr std::uint32_t kCached = 2u << 30;
  static constexpr std::uint32_t kThere = kKinds;  ///< read: the reader's row has it

  std::uint32_t cell = 0;  ///< number of the value's cell; 0, which no value has: nothing to read
  std::uint32_t place = 0;

  __device__ bool Is(std::uint32_t kind) const { return cell != 0 && (place & kKinds) == kind; }
  __device__ std::uint32_t number() const { return place & ~kKinds; }
};

/// Puts reads in the order of addresses: counts those of each bin, then places them there. Of a
/// pool that SmQueues reach it is off.
struct AddressOrder {
  static constexpr std::uint32_t kBins = 1u << 15;

  std::uint32_t* bins = nullptr;  ///< reads in each, or, placed, before it; null: off
  std::uint32_t bin_shift = 0;    ///< cell >> bin_shift is its bin

  GPM_HD bool enabled() const { return bins != nullptr; }
  /// bin_shift for cells of which there are so many.
  static std::uint32_t ShiftFor(std::uint64_t cells) {
    const auto bits = static_cast<std::uint32_t>(std::bit_width(cells));
    constexpr std::uint32_t kBinBits = std::bit_width(kBins) - 1;
    return bits > kBinBits ? bits - kBinBits : 0;
  }
};

/// Lets one operation read a value that several want: a hash table of cells. Where each operation
/// reads for itself it is off.
struct ReadSharing {
  std::uint64_t* claims = nullptr;  ///< cell << 32 | the operation that reads it; null: off
  std::uint32_t claim_bits = 0;     ///< log2 of the table's size: more than operations

  GPM_HD bool enabled() const { return claims != nullptr; }
  /// @return the operation that reads the cell: this one, unless another was first
  __device__ std::uint32_t Claim(std::uint32_t cell, std::uint32_t operation) const {
    const std::uint64_t mine = std::uint64_t{cell} << 32 | operation;
    std::uint32_t at = (cell * 0x9E3779B1u) >> (32 - claim_bits);
    for (;; at = (at + 1) & ((1u << claim_bits) - 1)) {
      std::uint64_t claim = AtomicLoad(claims + at);
      if (claim == 0) {
        claim = atomicCAS(reinterpret_cast<unsigned long long*>(claims + at), 0ull, mine);
        if (claim == 0) return operation;
      }
      if (claim >> 32 == cell) return static_cast<std::uint32_t>(claim);
    }
  }
};

/// Rows to be copied when everything is read. Where it is off, who wants a row that another
/// operation reads copies it itself.
struct RowCopies {
  std::uint64_t* rows = nullptr;  ///< the operation that reads << 32 | one that wants the same
  std::uint32_t* count = nullptr;

  GPM_HD bool enabled() const { return rows != nullptr; }
};

/// The reads of a slice of a batch: a trivially copyable view.
struct Reads {
  // Places in `flags`, of which each slice or chunk of a batch has its own:
  static constexpr std::uint32_t kCopies = 0;  ///< of finds: rows to be copied; both slices use one
  static constexpr std::uint32_t kCached = 1;  ///< of finds: not 0 if some plan is kCached
  static constexpr std::uint32_t kAll = 2;     ///< reads in order
  static constexpr std::uint32_t kTickets = 3;  ///< shares of the cache's copies handed out
  static constexpr std::uint32_t kFlags = 4;

  /// Reads to be made, each cell << 32 | operation; off if values are read at once. Reads that are
  /// put in order are in `queues.items`, one behind the other.
  SmQueues<std::uint64_t> queues;
  ReadPlan* plans = nullptr;       ///< of each operation; null: nothing but reads is planned
  std::uint32_t* flags = nullptr;  ///< null without plans
  RowCopies copies;
  AddressOrder order;
  HostReads by_host;  ///< of those in order
  ReadSharing sharing;
  bool copies_cached = false;  ///< who searches copies what the cache has, and plans only the rest
  std::uint32_t cell_bytes = 0;
  std::uint32_t first = 0;  ///< operation (of SearchKeyRuns: sorted position) of the slice
  std::uint32_t last = 0;   ///< behind it

  GPM_HD bool enabled() const { return queues.enabled(); }
  GPM_HD bool has_plans() const { return plans != nullptr; }
  /// Whether a batch that writes is answered while it is carried out.
  GPM_HD bool answers_early() const { return copies.enabled(); }
  __device__ ReadPlan PlanFirst(std::uint32_t cell, std::uint32_t operation) const {
    if (order.enabled()) {
      return ReadPlan{cell, ReadPlan::kRead | atomicAdd(&order.bins[cell >> order.bin_shift], 1u)};
    }
    queues.Add(std::uint64_t{cell} * cell_bytes, std::uint64_t{cell} << 32 | operation);
    return ReadPlan{cell, ReadPlan::kRead};
  }
  /// The same where other operations may want the same value.
  __device__ ReadPlan Plan(std::uint32_t cell, std::uint32_t operation) const {
    const std::uint32_t reader = sharing.enabled() ? sharing.Claim(cell, operation) : operation;
    return reader == operation ? PlanFirst(cell, operation)
                               : ReadPlan{cell, ReadPlan::kCopy | reader};
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_READ_PLANS_CUH_
