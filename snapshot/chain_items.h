#ifndef GPM_SNAPSHOT_CHAIN_ITEMS_H_
#define GPM_SNAPSHOT_CHAIN_ITEMS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "pm/huge_memory.h"
#include "pm/mutex.h"
#include "snapshot/block_buffer.h"
#include "snapshot/reader.h"

namespace gpm {

/// For reading a chain.
unsigned ThreadsForChain();

/// The items of a chain, in pieces, which threads read and check ahead of who takes them. Of an
/// item in several files the newest file that lists its range decides: the others are left out.
///
/// Thread safety: one thread calls. The threads that read stop when this is destroyed.
///
/// Invariants:
///  1. Blocks are read in order. Those of piece p go to buffer p % kBuffers, once piece p -
///  kBuffers
///     was given back; so memory is for kBuffers pieces, whatever the chain has.
///  2. A piece is handed out when all its blocks were read, and were whole.
///  3. Where no thread could be started, who asks for a piece reads it.
class ChainItems {
 public:
  /// Bytes of a piece: enough for large batches.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;
  static constexpr std::uint64_t kBuffers = 4;

  /// Items as batches want them, in any order.
  struct Piece {
    std::uint64_t items = 0;
    std::byte* keys = nullptr;    ///< rows of `items` keys
    std::byte* values = nullptr;  ///< rows of `items` values
  };

  /// Begins to read. @param chain outlives this @throws std::bad_alloc
  ChainItems(const SnapshotChain& chain, unsigned threads, std::uint64_t piece_bytes = kPieceBytes);
  ~ChainItems();
  ChainItems(const ChainItems&) = delete;
  ChainItems& operator=(const ChainItems&) = delete;

  /// From now on the memory of pieces is registered with a GPU, as far as it lets itself.
  /// REQUIRES: it is current in the thread that asks for them.
  void RegisterGpu() { registers_ = true; }

  /// Waits for the next piece. Those before are the caller's until it gives them back.
  /// REQUIRES: fewer than kBuffers were not given back. @return none: there is no more
  /// @throws Error kDamaged, kIo, and so from then on; std::bad_alloc
  std::optional<Piece> Next();
  /// The first piece that was not given back is not used any more.
  void GiveBack();

  /// The first file of the chain in which something was found to be damaged, if that was so.
  std::optional<std::size_t> damaged_file() const;

 private:
  struct Block {
    std::size_t file;
    std::uint64_t index;
    std::uint64_t count;  ///< items
    std::uint64_t piece;
  };
  struct PieceState {
    std::uint64_t room = 0;  ///< items
    std::uint64_t items = 0;
    std::uint64_t blocks_left = 0;
  };
  /// Memory for a piece.
  class Buffer {
   public:
    explicit Buffer(std::uint64_t bytes) : memory_(bytes) {}
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::byte* data() const { return memory_.data(); }
    void Register() noexcept;

   private:
    const HugeMemory memory_;
    bool asked_ = false;
    bool registered_ = false;
  };

  /// What came of reading a block.
  struct Outcome {
    std::exception_ptr failure;
    bool is_damaged = false;
  };

  void Work();
  /// Reads blocks, or waits until it may, until nothing more is wanted or something has failed.
  template <class More>
  void ReadWhile(MutexLock* lock, const More& more) GPM_REQUIRES(mutex_);
  bool MayRead() const GPM_REQUIRES(mutex_);
  /// @param own memory for a block, made when it is wanted
  Outcome TryRead(const Block& block, std::unique_ptr<BlockBuffer>* own) noexcept;
  void Read(const Block& block, std::unique_ptr<BlockBuffer>* own);
  void Note(const Block& block, const Outcome& outcome) GPM_REQUIRES(mutex_);
  /// Places for items in a piece. @return the first
  std::uint64_t Take(std::uint64_t piece, std::uint64_t items);
  Piece PieceAt(std::uint64_t piece, std::uint64_t item) const;

  const SnapshotChain& chain_;
  const std::uint64_t key_size_;
  const std::uint64_t value_size_;
  std::vector<Block> blocks_;
  std::uint64_t most_room_ = 0;  ///< of a piece, items
  std::uint64_t values_at_ = 0;  ///< in a buffer, behind the keys
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool registers_ = false;

  mutable Mutex mutex_;
  std::condition_variable changed_;  ///< notified when anything that follows is
  std::vector<PieceState> pieces_ GPM_GUARDED_BY(mutex_);
  std::size_t next_block_ GPM_GUARDED_BY(mutex_) = 0;
  std::uint64_t handed_out_ GPM_GUARDED_BY(mutex_) = 0;  ///< pieces
  std::uint64_t given_back_ GPM_GUARDED_BY(mutex_) = 0;  ///< pieces
  std::exception_ptr failure_ GPM_GUARDED_BY(mutex_);
  std::optional<std::size_t> damaged_file_ GPM_GUARDED_BY(mutex_);
  bool stop_ GPM_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_CHAIN_ITEMS_H_
