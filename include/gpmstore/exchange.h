#ifndef GPM_EXCHANGE_H_
#define GPM_EXCHANGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct CUstream_st;  // cudaStream_t, so that this header needs no CUDA

namespace gpm {

/// How long a rank waits for the others, by default: longer than any of them works on a batch.
inline constexpr std::chrono::milliseconds kExchangeTimeout{60'000};

/// What joins the ranks of a store that is spread over several processes, or threads: each rank
/// calls the same functions in the same order, and gets what the others have for it.
///
/// Errors: when a rank has left, or does not come for as long as the timeout, the call of every
/// other rank throws Error(kIo), which names one that is missing; so does every later call.
///
/// Thread safety: one thread at a time for each rank.
class Exchange {
 public:
  using Send = std::span<const std::span<const std::byte>>;
  using Receive = std::span<const std::span<std::byte>>;

  virtual ~Exchange() = default;

  virtual std::uint32_t rank() const = 0;   ///< of the caller, from 0
  virtual std::uint32_t ranks() const = 0;  ///< in all

  /// Whether any thread of this rank may use it, one at a time, or the one that made it alone.
  virtual bool AnyThread() const { return true; }

  /// All to all: every rank i gets what send[i] says, and what it sends here goes to receive[i].
  /// Returns when all that is for this rank is there, and what it sends may be changed.
  /// @param send, receive host memory, an array for each rank, the caller itself too; receive[i]
  ///        has as many bytes as rank i sends here: tell them first
  /// @throws Error kIo
  virtual void AllToAll(Send send, Receive receive) = 0;

  /// Whether AllToAllOnGpu takes arrays in the memory of a device.
  virtual bool TakesGpuMemory(int /*device*/) const { return false; }
  /// AllToAll of arrays in GPU memory, of several at once: send[k * ranks() + i] is what rank i
  /// gets of the k-th. Waits for what is on `stream`, which may write the arrays that are sent.
  /// @param send, receive memory of a device that TakesGpuMemory says; every rank has as many
  /// @param stream of that device
  /// @throws Error kIo; kGpu; kUnsupported (this exchange takes no such memory)
  virtual void AllToAllOnGpu(Send send, Receive receive, CUstream_st* stream);

  /// Whether Lend takes memory of a device; -1: of the host.
  virtual bool Lends(int /*device*/) const { return false; }
  using Use = std::function<void(Receive lent)>;
  /// Lets the others use this rank's memory in place, where ranks reach each other's: calls `use`
  /// with what they lend this one, to read and to write. Returns when all ranks have used it.
  /// @param mine arrays of a kind that Lends says: mine[k * ranks() + i] is for rank i, which gets
  ///        it as lent[k * ranks() + rank()]; every rank has as many
  /// @param stream of GPU memory: what is on it happens first; else null
  /// @param use ends when what it has begun has ended, also when it throws
  /// @throws Error kIo, kGpu, kUnsupported; what `use` throws, and kIo to all others then: what it
  ///         was to write may be missing
  virtual void Lend(Receive mine, CUstream_st* stream, const Use& use);

  /// One more exchange of the same ranks, for another thread of each: calls of the two may overlap.
  /// All ranks call it; a rank that leaves one of them (Leave) has left all, also when other
  /// threads are in calls of those.
  /// @return null, on all ranks, where there is none
  /// @throws Error kIo; std::bad_alloc
  virtual std::unique_ptr<Exchange> Twin() { return nullptr; }

  /// This rank has failed amid what all ranks do: its later calls throw, and the others' as when a
  /// rank has left.
  virtual void Leave(const std::string& why) = 0;

  /// The same number of bytes for each: rank i's is all[i * mine.size(), ...).
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all);
};

/// Ranks that are threads of this process: each thread uses one of what this returns, and destroys
/// it when it leaves.
std::vector<std::unique_ptr<Exchange>> MakeThreadExchanges(
    std::uint32_t ranks, std::chrono::milliseconds timeout = kExchangeTimeout);

}  // namespace gpm

#endif  // GPM_EXCHANGE_H_
