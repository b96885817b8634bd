#include "snapshot/chain_items.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/gpu_host.h"

namespace gpm {

unsigned ThreadsForChain() {
  constexpr unsigned kMostThreads = 8;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
}

ChainItems::Buffer::~Buffer() {
  if (registered_) UnregisterHostMemory(memory_.data());
}

void ChainItems::Buffer::Register() noexcept {
  if (asked_) return;
  asked_ = true;
  try {
    RegisterHostMemory(memory_.data(), memory_.bytes());
    registered_ = true;
  } catch (const std::exception&) {  // it is copied, as any memory
  }
}

ChainItems::ChainItems(const SnapshotChain& chain, unsigned threads, std::uint64_t piece_bytes)
    : chain_(chain), key_size_(chain.newest().key_size), value_size_(chain.newest().value_size) {
  const std::uint64_t piece_items = piece_bytes / (key_size_ + value_size_);
  for (std::size_t i = 0; i < chain.files(); ++i) {
    const SnapshotLayout& layout = chain.file(i).layout();
    for (std::uint64_t b = layout.range_blocks(); b < layout.blocks(); ++b) {
      const std::uint64_t count = layout.At(b).count;
      if (pieces_.empty() || pieces_.back().room + count > piece_items) pieces_.emplace_back();
      pieces_.back().room += count;
      ++pieces_.back().blocks_left;
      most_room_ = std::max(most_room_, pieces_.back().room);
      blocks_.push_back({i, b, count, pieces_.size() - 1});
    }
  }
  values_at_ = RoundUp(most_room_ * key_size_, kPageBytes);
  const std::uint64_t buffers = std::min<std::uint64_t>(kBuffers, pieces_.size());
  while (buffers_.size() < buffers) {
    buffers_.push_back(std::make_unique<Buffer>(values_at_ + most_room_ * value_size_));
  }
  threads_.reserve(threads);
  const std::size_t helpers = std::min<std::size_t>(threads, blocks_.size());
  try {
    while (threads_.size() < helpers) threads_.emplace_back([this] { Work(); });
  } catch (const std::exception&) {  // no thread, or no memory for one: as many as there are
  }
}

ChainItems::~ChainItems() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ChainItems::MayRead() const {
  return next_block_ < blocks_.size() && blocks_[next_block_].piece < given_back_ + kBuffers;
}

void ChainItems::Work() {
  MutexLock lock(mutex_);
  ReadWhile(&lock, [&]() GPM_REQUIRES(mutex_) { return !stop_ && next_block_ < blocks_.size(); });
}

template <class More>
void ChainItems::ReadWhile(MutexLock* lock, const More& more) {
  std::unique_ptr<BlockBuffer> own;
  while (failure_ == nullptr && more()) {
    if (!MayRead()) {
      changed_.wait(lock->native());
      continue;
    }
    const Block& block = blocks_[next_block_++];
    lock->Unlock();
    const Outcome outcome = TryRead(block, &own);
    lock->Lock();
    Note(block, outcome);
  }
}

ChainItems::Outcome ChainItems::TryRead(const Block& block,
                                        std::unique_ptr<BlockBuffer>* own) noexcept {
  try {
    Read(block, own);
    return {};
  } catch (const Error& error) {
    return {std::current_exception(), error.code() == ErrorCode::kDamaged};
  } catch (...) {
    return {std::current_exception()};
  }
}

void ChainItems::Note(const Block& block, const Outcome& outcome) {
  if (outcome.failure && !failure_) failure_ = outcome.failure;
  if (outcome.is_damaged) damaged_file_ = std::min(damaged_file_.value_or(block.file), block.file);
  --pieces_[block.piece].blocks_left;
  if (outcome.failure || pieces_[block.piece].blocks_left == 0) changed_.notify_all();
}

std::uint64_t ChainItems::Take(std::uint64_t piece, std::uint64_t items) {
  const MutexLock lock(mutex_);
  const std::uint64_t first = pieces_[piece].items;
  pieces_[piece].items += items;
  return first;
}

ChainItems::Piece ChainItems::PieceAt(std::uint64_t piece, std::uint64_t item) const {
  std::byte* const data = buffers_[piece % kBuffers]->data();
  return {0, data + item * key_size_, data + values_at_ + item * value_size_};
}

void ChainItems::Read(const Block& block, std::unique_ptr<BlockBuffer>* own) {
  const SnapshotFile& file = chain_.file(block.file);
  if (block.file + 1 == chain_.files()) {  // all of them count
    const Piece to = PieceAt(block.piece, Take(block.piece, block.count));
    return file.ReadItems(block.index, to.keys, to.values);
  }
  if (*own == nullptr) {
    const SnapshotLayout any(chain_.newest());  // (its blocks of items are as large as any)
    *own = std::make_unique<BlockBuffer>(any.block_bytes());
  }
  const std::byte* const keys = file.Read(block.index, (*own)->data());
  const std::byte* const values = keys + block.count * key_size_;
  std::vector<std::uint64_t> counts;
  counts.reserve(block.count);
  for (std::uint64_t i = 0; i < block.count; ++i) {
    if (chain_.Counts(block.file, keys + i * key_size_)) counts.push_back(i);
  }
  Piece to = PieceAt(block.piece, Take(block.piece, counts.size()));
  for (const std::uint64_t i : counts) {
    std::memcpy(to.keys, keys + i * key_size_, key_size_);
    std::memcpy(to.values, values + i * value_size_, value_size_);
    to.keys += key_size_;
    to.values += value_size_;
  }
}

std::optional<ChainItems::Piece> ChainItems::Next() {
  MutexLock lock(mutex_);
  if (handed_out_ == pieces_.size()) return {};
  const PieceState& piece = pieces_[handed_out_];
  ReadWhile(&lock, [&]() GPM_REQUIRES(mutex_) { return piece.blocks_left > 0; });
  if (failure_) std::rethrow_exception(failure_);
  const std::uint64_t number = handed_out_++;
  const std::uint64_t items = piece.items;
  lock.Unlock();
  if (registers_) buffers_[number % kBuffers]->Register();
  Piece handed_out = PieceAt(number, 0);
  handed_out.items = items;
  return handed_out;
}

void ChainItems::GiveBack() {
  const MutexLock lock(mutex_);
  ++given_back_;
  changed_.notify_all();
}

std::optional<std::size_t> ChainItems::damaged_file() const {
  const MutexLock lock(mutex_);
  return damaged_file_;
}

}  // namespace gpm
