#ifndef GPM_SHARD_SPLITTER_H_
#define GPM_SHARD_SPLITTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/store.h"
#include "pm/thread_pool.h"
#include "shard/partition.h"
#include "shard/wanted_rows.h"

namespace gpm {

/// Divides the arrays of a batch by shard, and brings answers back to their places; in host memory,
/// or in that of a GPU (Divide is a multisplit: Jünger, Hundt and Schmidt, WarpDrive, 2018, section
/// V). It has the memory for what it divides, and keeps it from batch to batch.
///
/// A batch: Begin, Divide, Gather, Carry for each shard, Scatter, Finish. On a GPU, what is asked
/// for is enqueued on `stream()`, and only Starts, Sample and Finish wait.
///
/// Arrays that it is given may lie anywhere: a GPU's splitter brings those that are not in its
/// memory there, and answers back.
///
/// Thread safety: one thread at a time, but for Carry. After an error it is only destroyed, which
/// waits for what was enqueued.
class Splitter {
 public:
  virtual ~Splitter() = default;

  virtual int device() const = 0;     ///< whose memory it works in; -1: the host's
  virtual Stream stream() const = 0;  ///< null of the host

  /// A batch begins. On a GPU, behind what is on the default stream, as Store::Apply's.
  virtual void Begin() = 0;
  /// Memory until the next Begin, on its side; not initialized. @throws std::bad_alloc, kGpu
  virtual std::span<std::byte> Take(std::size_t bytes) = 0;

  /// Orders operations by shard, and as they are in the batch within each.
  /// @param keys n rows of `key_size` bytes, n < 2^31
  /// @param once of operations on one key only one is divided, and the others have its answer
  virtual void Divide(std::span<const std::byte> keys, std::uint32_t key_size,
                      const Partition& partition, bool once) = 0;
  /// Of the last Divide: shard s has the operations [starts[s], starts[s + 1]) in its order; the
  /// last element is how many there are.
  virtual const std::vector<std::uint64_t>& Starts() = 0;
  /// Some rows of an array, evenly spread, in host memory.
  virtual std::vector<std::byte> Sample(std::span<const std::byte> rows, std::size_t row_bytes,
                                        std::size_t most) = 0;

  /// An array in parts, which follow each other; the rows of a shard are all in one.
  using Parts = std::span<const std::span<std::byte>>;
  /// Rows in the order of the last Divide, as many as `to` has.
  /// @param from in the order of the batch @param to of Take, or of another splitter's
  /// @param wanted its arrays lie as those of a batch do, here and below
  virtual void Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to,
                      const WantedRows& wanted = {}) = 0;
  void Gather(std::span<const std::byte> from, std::size_t row_bytes, std::span<std::byte> to,
              const WantedRows& wanted = {}) {
    Gather(from, row_bytes, Parts(&to, 1), wanted);
  }
  /// The way back; operations that were not divided get their row, too.
  /// @param from of Take, or of another splitter's, in the order of Divide
  /// @param to in the order of the batch; or none
  virtual void Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to,
                       const WantedRows& wanted = {}) = 0;
  void Scatter(std::span<std::byte> from, std::size_t row_bytes, std::span<std::byte> to,
               const WantedRows& wanted = {}) {
    Scatter(Parts(&from, 1), row_bytes, to, wanted);
  }
  /// What operations of each kind are sent as.
  using KindMap = std::array<std::uint8_t, kOpKinds>;
  /// The kinds of all operations, those of a kind in `as` replaced; any other byte stays.
  /// @param ops in the order of the batch; or empty, and all are `op` @param to of Take
  virtual void MapKinds(std::span<const Op> ops, Op op, const KindMap& as,
                        std::span<std::byte> to) = 0;
  virtual void Clear(std::span<std::byte> bytes) = 0;  ///< sets memory of Take to 0

  /// What a shard does with its part of a batch, on a stream of its device, or null.
  using Work = std::function<void(const Batch& part, Stream stream)>;
  /// Calls `work` with what it is given, or, where the shard's device is another one, with copies
  /// there, and brings found values and results back. Different threads may call it for different
  /// shards. @throws what `work` throws, kGpu
  /// @param lane a number of the shard, less than what the splitter was made with
  /// @param device that carries out the part; -1: the host
  /// @param part arrays of Take, which Gather filled
  virtual void Carry(std::uint32_t lane, int device, const Batch& part, const Work& work) = 0;

  /// Waits until everything is where it was asked for.
  virtual void Finish() = 0;
};

/// @param threads outlive it
std::unique_ptr<Splitter> MakeHostSplitter(ThreadPool& threads);
/// @param lanes shards that it carries parts of batches to
/// @throws Error kGpu, kUnsupported (a build without CUDA)
std::unique_ptr<Splitter> MakeGpuSplitter(int device, std::uint32_t lanes);

/// The device on which a batch is divided: the first that has one of its arrays; -1: all are in
/// memory that the host reads.
int DeviceOf(const Batch& batch);

}  // namespace gpm

#endif  // GPM_SHARD_SPLITTER_H_
