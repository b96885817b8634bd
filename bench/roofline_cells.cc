#include "bench/roofline_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "bench/removed_at_end.h"
#include "gpmstore/error.h"
#include "pm/format.h"

namespace gpm::bench {
namespace {

/// @throws Error(kInvalidArgument)
std::uint64_t CheckedCells(std::uint64_t range_bytes, std::uint32_t cell_bytes) {
  const std::uint64_t cells = range_bytes / cell_bytes;
  if (cells >= 1 && range_bytes >= kPageBytes && cells <= std::uint64_t{1} << 31) return cells;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a range of {} bytes has {} cells of {} bytes: it needs a page of bytes, "
                          "and 1 to 2^31 cells",
                          range_bytes, cells, cell_bytes));
}

}  // namespace

std::uint64_t XorOver(ThreadPool& threads, std::uint64_t n,
                      const std::function<std::uint64_t(std::uint64_t, std::uint64_t)>& work) {
  const std::uint64_t parts = std::min<std::uint64_t>(n, std::uint64_t{threads.threads()} * 8);
  std::atomic<std::uint64_t> sum{0};
  threads.Run(parts, [&](std::size_t part) {
    sum.fetch_xor(work(n * part / parts, n * (part + 1) / parts), std::memory_order_relaxed);
  });
  return sum.load();
}

CellRange::CellRange(const std::string& path, std::uint64_t range_bytes, std::uint32_t value_size,
                     ThreadPool& threads)
    : threads_(threads),
      cell_bytes_(static_cast<std::uint32_t>(CellBytes(value_size))),
      permutation_(CellPermutation::Of(CheckedCells(range_bytes, cell_bytes_))),
      mapping_(path, {.max_bytes = RoundUp(range_bytes, std::uint64_t{2} << 20), .create = true}) {
  RequireNoDevice(path);
  // The mapping stays; the file is gone already, whatever ends this process.
  if (path != Mapping::kPinnedPath) std::filesystem::remove(path);
  mapping_.RemoveOnClose(false);
  mapping_.Grow(range_bytes);
  const std::uint64_t words_in_all = permutation_.cells * words();
  XorOver(threads_, words_in_all, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) Words(0)[i] = CellWord(i, 0);
    return std::uint64_t{0};
  });
}

CellChoice CellRange::Choose(AccessOrder order, std::uint64_t count) {
  const CellChoice choice{order, count, next_, permutation_};
  next_ = (next_ + count) % permutation_.cells;
  return choice;
}

std::uint64_t CellRange::WordsOf(AccessKind kind) const {
  switch (kind) {
    case AccessKind::kTouch:
      return kTouchBytes / 8;
    case AccessKind::kSmallWrite:
    case AccessKind::kCas:
      return 1;
    case AccessKind::kRead:
    case AccessKind::kWrite:
    case AccessKind::kReadOrWrite:
      break;
  }
  return words();
}

void CellRange::Settle(AccessKind kind, const CellChoice& choice, std::uint64_t sum) {
  const std::uint64_t concerned = WordsOf(kind);
  std::atomic<std::uint64_t> wrong{0};
  const std::uint64_t expected =
      XorOver(threads_, choice.count, [&](std::uint64_t begin, std::uint64_t end) {
        std::uint64_t read = 0;
        for (std::uint64_t i = begin; i < end; ++i) {
          const std::uint64_t cell = choice[i];
          std::uint64_t* const held = Words(cell);
          for (std::uint64_t w = 0; w < concerned; ++w) {
            const std::uint64_t index = cell * words() + w;
            if (!Changes(kind, cell)) {
              read ^= CellWord(index, 0);
              continue;
            }
            if (held[w] != CellWord(index, 1)) wrong.fetch_add(1, std::memory_order_relaxed);
            held[w] = CellWord(index, 0);
          }
        }
        return read;
      });
  if (wrong.load() > 0) {
    throw Error(ErrorCode::kDamaged, fmt::format("{} of {} words are not as they were written",
                                                 wrong.load(), choice.count * concerned));
  }
  if (kind == AccessKind::kCas) {
    if (sum == choice.count) return;
    throw Error(ErrorCode::kDamaged, fmt::format("{} of {} CAS succeeded", sum, choice.count));
  }
  if (sum != expected) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{} accesses: other words were read than are there", choice.count));
  }
}

}  // namespace gpm::bench
