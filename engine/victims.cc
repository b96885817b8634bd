#include "engine/victims.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <tuple>

#include "engine/item_ranks.h"

namespace gpm {
namespace {

/// Items that a thread looks at at a time.
constexpr std::uint64_t kPart = std::uint64_t{1} << 16;

std::uint64_t PartsOf(std::uint64_t count) { return (count + kPart - 1) / kPart; }

/// Calls visit(part, i) for all i below `count`, on several threads.
template <class Visit>
void ForParts(std::uint64_t count, ThreadPool& threads, const Visit& visit) {
  threads.Run(PartsOf(count), [&](std::size_t part) {
    visit(part, part * kPart, std::min(count, (part + 1) * kPart));
  });
}

std::uint64_t Most(const std::vector<std::uint64_t>& ranks, ThreadPool& threads) {
  std::vector<std::uint64_t> most(PartsOf(ranks.size()));
  ForParts(ranks.size(), threads, [&](std::size_t part, std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) most[part] = std::max(most[part], ranks[i]);
  });
  return most.empty() ? 0 : *std::max_element(most.begin(), most.end());
}

/// The least number that `count` of the ranks do not exceed. REQUIRES: there are so many, and one.
std::uint64_t LeastFor(std::uint64_t count, const std::vector<std::uint64_t>& ranks,
                       ThreadPool& threads) {
  constexpr int kBits = 11;
  std::uint64_t low = 0;
  int shift = std::bit_width(Most(ranks, threads));  // it is one of 2^shift numbers from `low` on
  std::uint64_t below = 0;
  while (shift > 0) {
    const std::uint64_t last = shift == 64 ? ~std::uint64_t{0} : low + ((1ull << shift) - 1);
    shift = std::max(shift - kBits, 0);
    std::vector<std::atomic<std::uint64_t>> counts(std::size_t{1} << kBits);
    ForParts(ranks.size(), threads, [&](std::size_t, std::uint64_t first, std::uint64_t end) {
      std::array<std::uint64_t, std::size_t{1} << kBits> of_part{};
      for (std::uint64_t i = first; i < end; ++i) {
        if (ranks[i] >= low && ranks[i] <= last) ++of_part[(ranks[i] - low) >> shift];
      }
      for (std::size_t b = 0; b < of_part.size(); ++b) {
        if (of_part[b] > 0) counts[b] += of_part[b];
      }
    });
    std::uint64_t b = 0;
    while (below + counts[b] < count) below += counts[b++];
    low += b << shift;
  }
  return low;
}

}  // namespace

bool Victims::GoesFirst(const Victim& a, const Victim& b) const {
  if (std::tie(a.rank, a.id) != std::tie(b.rank, b.id)) {
    return std::tie(a.rank, a.id) < std::tie(b.rank, b.id);
  }
  return std::memcmp(KeyOf(a), KeyOf(b), key_size_) < 0;
}

void Victims::Clear() {
  heads_.clear();
  victims_ = {};
  keys_ = {};
}

void Victims::Push(const Run& run) {
  if (run.next == run.end) return;
  heads_.push_back(run);
  std::push_heap(heads_.begin(), heads_.end(),
                 [&](const Run& a, const Run& b) { return ComesLater(a, b); });
}

Victims::Victim Victims::Pop() {
  std::pop_heap(heads_.begin(), heads_.end(),
                [&](const Run& a, const Run& b) { return ComesLater(a, b); });
  Run run = heads_.back();
  heads_.pop_back();
  const Victim victim = victims_[run.next++];
  Push(run);  // for which there is room
  return victim;
}

void Victims::Choose(const Items& items, std::uint64_t count) {
  Clear();
  const std::uint64_t all = items.ranks.size();
  count = std::min(count, all);
  if (count == 0) return;
  const std::uint64_t most = LeastFor(count, items.ranks, threads_);
  // Where those of each part begin, and then they.
  std::vector<std::uint64_t> firsts(PartsOf(all) + 1);
  ForParts(all, threads_, [&](std::size_t part, std::uint64_t first, std::uint64_t end) {
    firsts[part + 1] = static_cast<std::uint64_t>(
        std::count_if(items.ranks.begin() + static_cast<std::ptrdiff_t>(first),
                      items.ranks.begin() + static_cast<std::ptrdiff_t>(end),
                      [&](std::uint64_t rank) { return rank <= most; }));
  });
  for (std::size_t part = 1; part < firsts.size(); ++part) firsts[part] += firsts[part - 1];
  victims_.resize(firsts.back());
  keys_.resize(firsts.back() * key_size_);
  heads_.reserve(PartsOf(all) + 1);  // (one more: those that Take leaves)
  ForParts(all, threads_, [&](std::size_t part, std::uint64_t first, std::uint64_t end) {
    std::uint64_t row = firsts[part];
    for (std::uint64_t i = first; i < end; ++i) {
      if (items.ranks[i] > most) continue;
      const std::byte* const key = items.keys + i * items.stride;
      std::memcpy(keys_.data() + row * key_size_, key, key_size_);
      victims_[row] = {items.ranks[i], IdOfKey(key, key_size_), row};
      ++row;
    }
    std::sort(victims_.begin() + static_cast<std::ptrdiff_t>(firsts[part]),
              victims_.begin() + static_cast<std::ptrdiff_t>(row),
              [&](const Victim& a, const Victim& b) { return GoesFirst(a, b); });
  });
  for (std::size_t part = 0; part + 1 < firsts.size(); ++part) {
    Push({firsts[part], firsts[part + 1]});
  }
}

std::vector<std::byte> Victims::Take(std::uint64_t count, const WordMap& kept,
                                     const RanksOf& ranks_of) {
  std::vector<std::byte> taken;
  std::vector<Victim> left;
  try {
    taken.reserve(std::min<std::uint64_t>(count, victims_.size()) * key_size_);
    for (std::uint64_t lacking = count; lacking > 0 && !empty();
         lacking = count - taken.size() / key_size_) {
      std::vector<Victim> next;
      std::vector<std::uint64_t> ids;
      while (next.size() < lacking && !empty()) {
        next.push_back(Pop());
        ids.push_back(next.back().id);
      }
      const std::vector<std::uint64_t> ranks =
          ranks_of != nullptr ? ranks_of(ids) : std::vector<std::uint64_t>();
      for (std::uint64_t i = 0; i < next.size(); ++i) {
        if (ranks_of != nullptr && ranks[i] != next[i].rank) continue;
        if (kept.Find(ids[i]) != nullptr) {
          left.push_back(next[i]);
          continue;
        }
        taken.insert(taken.end(), KeyOf(next[i]), KeyOf(next[i]) + key_size_);
      }
    }
    const std::uint64_t first = victims_.size();
    victims_.insert(victims_.end(), left.begin(), left.end());
    Push({first, victims_.size()});
  } catch (...) {
    Clear();
    throw;
  }
  return taken;
}

}  // namespace gpm
