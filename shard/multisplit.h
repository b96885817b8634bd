#ifndef GPM_SHARD_MULTISPLIT_H_
#define GPM_SHARD_MULTISPLIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pm/thread_pool.h"
#include "shard/partition.h"
#include "shard/wanted_rows.h"

namespace gpm {

/// The operations of a batch by shard (multisplit: Jünger, Hundt and Schmidt, WarpDrive, 2018,
/// section V), and their rows there and back, in host memory, by several threads.
///
/// Memory: 7 bytes for each operation, and 8 to 16 more where each key is divided once; kept from
/// batch to batch.
///
/// Thread safety: one thread at a time.
///
/// Invariants:
///  1. Operations of a shard have their places in batch order: a batch stays sequential per key.
///  2. Rows are moved in batch order, so that the caller's array is read or written from front to
///     end, and so is each shard's: memory is faster at that than at rows here and there.
class Multisplit {
 public:
  /// @param threads outlive it
  explicit Multisplit(ThreadPool& threads) : threads_(threads) {}

  /// @param keys n rows of `key_size` bytes, n < 2^31; as long as this returns
  /// @param once of operations on one key one has a place, and the others share it
  /// @throws std::bad_alloc
  void Divide(std::span<const std::byte> keys, std::uint32_t key_size, const Partition& partition,
              bool once);
  /// Of the last Divide: shard s has the places [starts[s], starts[s + 1]).
  const std::vector<std::uint64_t>& starts() const { return starts_; }

  /// An array in the order of the places, in parts that follow each other. The rows of a shard are
  /// all in one part.
  using Parts = std::span<const std::span<std::byte>>;
  /// Rows of all operations that have a place of their own, to that place.
  void Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to,
              const WantedRows& wanted = {});
  /// The way back, to all operations.
  void Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to,
               const WantedRows& wanted = {});

 private:
  /// Finds the shards of some operations, and their places among these, or whose place they share.
  /// @param counts of places in each shard; added to
  template <class First>
  void Number(const First& first_of, const Partition& partition, bool once, std::size_t begin,
              std::size_t end, std::uint64_t* counts);
  /// Where the rows of each shard begin.
  std::vector<std::byte*> RowsOf(Parts parts, std::size_t row_bytes) const;
  /// Calls move(begin, end, row_bytes, copy) for all operations, some at a time.
  /// @param streams whether `copy` may be a StreamedCopy
  template <class Move>
  void ForRows(std::size_t row_bytes, bool streams, const Move& move);

  ThreadPool& threads_;
  std::size_t n_ = 0;  ///< operations of the last Divide
  std::vector<std::uint64_t> starts_;
  // Of each operation; longer than n_ after a larger batch.
  std::vector<std::uint16_t> shard_of_;
  std::vector<std::uint32_t> places_;  ///< among those of its shard, and whether it is another's
  std::vector<std::uint32_t> firsts_;  ///< hash table of the operations that have a key's place
};

}  // namespace gpm

#endif  // GPM_SHARD_MULTISPLIT_H_
