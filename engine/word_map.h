#ifndef GPM_ENGINE_WORD_MAP_H_
#define GPM_ENGINE_WORD_MAP_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace gpm {

/// A word for each of some ids, which are evenly distributed words and not 0. Open addressing, in
/// host memory: 21 to 43 bytes for each.
///
/// Thread safety: none; several threads may call Find at once.
class WordMap {
 public:
  std::uint64_t size() const { return size_; }

  const std::uint64_t* Find(std::uint64_t id) const {
    if (size_ == 0) return nullptr;
    const Entry& entry = entries_[PlaceOf(id)];
    return entry.id == id ? &entry.word : nullptr;
  }
  std::uint64_t* Find(std::uint64_t id) {
    return const_cast<std::uint64_t*>(std::as_const(*this).Find(id));
  }
  /// The word of an id; one that was not there gets 0. @throws std::bad_alloc
  std::uint64_t& At(std::uint64_t id) {
    if (entries_.empty() || 4 * (size_ + 1) > 3 * entries_.size()) Grow();
    Entry& entry = entries_[PlaceOf(id)];
    if (entry.id == 0) {
      entry.id = id;
      ++size_;
    }
    return entry.word;
  }
  void Erase(std::uint64_t id) {
    if (size_ == 0) return;
    std::uint64_t hole = PlaceOf(id);
    if (entries_[hole].id != id) return;
    // Those behind it that a search would not find across the hole move into it.
    for (std::uint64_t i = Next(hole); entries_[i].id != 0; i = Next(i)) {
      const std::uint64_t from_home = (i - Home(entries_[i].id)) & mask();
      if (from_home < ((i - hole) & mask())) continue;
      entries_[hole] = entries_[i];
      hole = i;
    }
    entries_[hole] = {};
    --size_;
  }
  /// Calls visit(id, word) for all.
  template <class Visit>
  void ForEach(const Visit& visit) {
    for (Entry& entry : entries_) {
      if (entry.id != 0) visit(entry.id, entry.word);
    }
  }
  void Prefetch(std::uint64_t id) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[Home(id)]);
  }

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint64_t word = 0;
  };
  static constexpr std::uint64_t kFewest = 16;

  std::uint64_t mask() const { return entries_.size() - 1; }
  std::uint64_t Home(std::uint64_t id) const { return id >> 16 & mask(); }
  std::uint64_t Next(std::uint64_t place) const { return (place + 1) & mask(); }
  /// Where it is, or would be. REQUIRES: some place is empty.
  std::uint64_t PlaceOf(std::uint64_t id) const {
    std::uint64_t place = Home(id);
    while (entries_[place].id != 0 && entries_[place].id != id) place = Next(place);
    return place;
  }
  void Grow() {
    std::vector<Entry> before(entries_.empty() ? kFewest : 2 * entries_.size());
    before.swap(entries_);
    for (const Entry& entry : before) {
      if (entry.id != 0) entries_[PlaceOf(entry.id)] = entry;
    }
  }

  std::vector<Entry> entries_;
  std::uint64_t size_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_WORD_MAP_H_
