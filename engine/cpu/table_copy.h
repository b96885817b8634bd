#ifndef GPM_ENGINE_CPU_TABLE_COPY_H_
#define GPM_ENGINE_CPU_TABLE_COPY_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/maintenance.h"
#include "table/change_log.h"
#include "table/change_map.h"

namespace gpm {

/// The marks of a ChangeMap, in host memory.
struct CpuMarks {
  std::unique_ptr<std::uint8_t[]> bytes;
  std::uint32_t range_bits = 0;

  CpuMarks() = default;
  explicit CpuMarks(std::uint32_t bits)
      : bytes(bits == 0 ? nullptr : new std::uint8_t[std::uint64_t{1} << bits]()),
        range_bits(bits) {}
  ChangeMap View() const { return {bytes.get(), range_bits}; }
};

/// A ChangeLog and its memory, of which only what is written to is taken from the system.
class CpuChangeLog {
 public:
  /// @throws std::bad_alloc
  CpuChangeLog(std::uint64_t room, std::uint32_t key_words)
      : keys_(new std::uint64_t[room * key_words]),
        recent_(static_cast<std::uint32_t*>(
            std::calloc(ChangeLog::RecentFor(room), sizeof(std::uint32_t)))) {
    if (recent_ == nullptr) throw std::bad_alloc();
    view_ = {keys_.get(), &logged_, recent_.get(), room, ChangeLog::RecentFor(room) - 1, key_words};
  }
  CpuChangeLog(const CpuChangeLog&) = delete;
  CpuChangeLog& operator=(const CpuChangeLog&) = delete;
  const ChangeLog& view() const { return view_; }

 private:
  struct Free {
    void operator()(std::uint32_t* memory) const { std::free(memory); }
  };
  const std::unique_ptr<std::uint64_t[]> keys_;
  const std::unique_ptr<std::uint32_t[], Free> recent_;
  std::uint64_t logged_ = 0;
  ChangeLog view_;
};

/// The executor's threads fill it, a few items at a time.
class CpuTableCopy : public TableCopy {
 public:
  explicit CpuTableCopy(const CopyShape& wanted)
      : shape(wanted),
        next_marks(wanted.range_bits),
        log(wanted.log_room == 0 ? nullptr : new CpuChangeLog(wanted.log_room, wanted.key_words)),
        keys_(new std::uint64_t[wanted.room * wanted.key_words]),
        references_(new std::uint64_t[wanted.room]) {
    keys = keys_.get();
    references = references_.get();
    if (shape.changes_only || shape.logged_only) return;  // few of its pages will be needed
    constexpr std::uint64_t kPageWords = 512;
    for (std::uint64_t i = 0; i < shape.room * shape.key_words; i += kPageWords) keys_[i] = 0;
    for (std::uint64_t i = 0; i < shape.room; i += kPageWords) references_[i] = 0;
  }

  void Fetch() override;
  std::vector<std::uint32_t> NamedCells(std::uint64_t cell_bytes) const override;

  /// Items that one thread has found.
  class Part {
   public:
    explicit Part(CpuTableCopy* copy) : copy_(copy) {}
    ~Part() {
      Flush();
      AtomicAdd(&copy_->total, total_);
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    std::uint64_t* key() { return keys_ + count_ * copy_->shape.key_words; }
    std::uint64_t* reference() { return references_ + count_; }
    /// An item is in key() and reference(). @param mark says whether it is wanted; null: it is
    void Add(const std::uint8_t* mark) {
      ++total_;
      if (mark != nullptr) __builtin_prefetch(mark);
      marks_[count_] = mark;
      if (++count_ == kAtOnce) Flush();
    }

   private:
    void Flush() {
      const std::uint64_t words = copy_->shape.key_words;
      std::uint64_t wanted = 0;
      for (std::uint64_t i = 0; i < count_; ++i) {
        if (marks_[i] != nullptr && *marks_[i] == 0) continue;
        if (wanted < i) {
          std::memcpy(keys_ + wanted * words, keys_ + i * words, words * 8);
          references_[wanted] = references_[i];
        }
        ++wanted;
      }
      count_ = 0;
      if (wanted == 0) return;
      const std::uint64_t first = AtomicAdd(&copy_->items, wanted);
      if (first + wanted > copy_->shape.room) return;
      std::memcpy(copy_->keys_.get() + first * words, keys_, wanted * words * 8);
      std::memcpy(copy_->references_.get() + first, references_, wanted * 8);
    }

    static constexpr std::uint32_t kAtOnce = 32;  ///< as many cache misses as overlap
    CpuTableCopy* copy_;
    std::uint64_t count_ = 0;
    std::uint64_t total_ = 0;
    std::uint64_t keys_[kAtOnce * kMaxKeyWords];
    std::uint64_t references_[kAtOnce];
    const std::uint8_t* marks_[kAtOnce];
  };

  const CopyShape shape;
  CpuMarks next_marks;                ///< for the table; once the copy was taken, those of before
  std::unique_ptr<CpuChangeLog> log;  ///< likewise

 private:
  const std::unique_ptr<std::uint64_t[]> keys_;
  const std::unique_ptr<std::uint64_t[]> references_;
  std::vector<std::uint32_t> ranges_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_TABLE_COPY_H_
