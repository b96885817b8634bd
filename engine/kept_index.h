#ifndef GPM_ENGINE_KEPT_INDEX_H_
#define GPM_ENGINE_KEPT_INDEX_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>

#include "engine/held_items.h"
#include "engine/maintenance.h"
#include "engine/pair_wishes.h"
#include "engine/search_index.h"
#include "gpmstore/search.h"
#include "gpmstore/stats.h"
#include "pm/format.h"

namespace gpm {

/// The index that searches of a store keep from one to the next: when it is made, how it follows
/// the batches that change items, what is in it, and when it goes. It is in host memory
/// (AttributeIndex), or in that of an executor that makes indexes.
///
/// - It is made by the second of two searches that had to look at all items, if it could have
///   followed what changed between them; of the attributes that searches asked for, those asked for
///   last first, as far as the budget goes. One that lacks attributes is made anew by the second
///   search that wants them.
/// - Attributes may be fixed to be indexed: a search of those alone makes it at once, they have
///   room before the others, and go after them.
/// - Which attributes have a partner (AttributePairs) follows the queries, too, but for pairs that
///   are fixed (PairWishes): the search after the one that makes a pair due sorts that attribute
///   anew, before it asks. An index that is made has the pairs of the one before.
/// - It follows: a search that finds it out of date brings it to the state of its own instant. For
///   that the executor logs the keys of changed items (ChangeLog), from the index's instant on.
/// - It is dropped, and made anew as the first time, when more changed than the log has room for
///   (a sixteenth of the items, and some thousand), and when an error left it half done; at once,
///   when it is worn (SearchIndex::IsWorn). Growth changes no item.
/// - When it outgrows the budget, the attribute goes that was asked for the longest ago, but for
///   those of the search at hand. Where that does not help, all of it goes, before the next change
///   is followed: until then it takes more than the budget by what the log had room for.
///
/// Invariants:
///  1. The table's change log, if there is one, began at the instant of `index_`, or, where that is
///     null, of the last search that looked at all items (`scanned_`).
///  2. `index_` is changed by who has the turn (Snapshots::Turn) and holds `mutex_`; so it can be
///     read with either. Its pairs are changed by anybody who holds `mutex_`, as a search that
///     finds a pair due waits for no turn; so they are read under `mutex_`.
///  3. Nothing that is traced is done under `mutex_`.
///
/// Thread safety: Use, PairAsDue and AddTo from any thread; the others by who has the turn.
class KeptIndex {
 public:
  using Mask = SearchIndex::Mask;

  /// @param budget bytes of index and log, at most; 0: there is none @param attributes outlive it
  /// @param fixed names of attributes, and of pairs (OpenOptions::search_indexed)
  /// @param hash_seed the pool's, two words
  /// @throws Error(kInvalidArgument) there is no attribute of such a name, or no such pair, or no
  ///         index
  KeptIndex(std::uint64_t budget, std::uint32_t key_size, std::span<const Attribute> attributes,
            std::span<const std::string> fixed, const std::uint64_t* hash_seed);

  bool enabled() const { return budget_ > 0; }
  static Mask AskedBy(std::span<const Query> queries);

  /// Calls use(index), if it is of the state with this Admission::changers, and has what is asked
  /// for. @return whether it is
  template <class UseIndex>
  bool Use(Mask asked, std::uint64_t version, const UseIndex& use) {
    const std::shared_lock lock(mutex_);
    if (index_ == nullptr || index_->version() != version || !index_->Has(asked)) return false;
    NoteAsked(asked);
    use(*index_);
    return true;
  }

  /// Sorts by a pair that is due, if there is one, and memory for it; and an index that such a
  /// search will use. @param version as for Use @param threads_for to sort so many items
  void PairAsDue(Mask asked, std::uint64_t version, unsigned (*threads_for)(std::uint64_t items));

  /// What a search does that can't use it as it is.
  struct Plan {
    bool follows = false;        ///< it wants what changed, and no more
    bool makes = false;          ///< it may make an index, of all items
    bool at_once = false;        ///< whatever came before
    std::uint64_t log_room = 0;  ///< of the log that begins at its instant; 0: none does
  };
  /// @param items in the store, about @param version Admission::changers
  Plan Begin(Mask asked, std::uint64_t items, std::uint64_t version, const TableMaintenance& table);
  /// Follows, or makes an index, by what was held for the plan. @param table as for Begin
  /// @return whether there is an index of that instant that has what is asked for
  /// @throws Error(kGpu), std::bad_alloc; then Drop is to be called
  bool Take(const Plan& plan, Mask asked, HeldItems& items, TableMaintenance& table,
            ThreadPool* threads);
  /// It has missed something, or may have.
  void Drop();

  void AddTo(StoreStats* stats);

 private:
  /// Of the attributes that were asked for, what is to be indexed; nothing where that is too much.
  std::optional<Mask> Choose(Mask asked, std::uint64_t items, std::uint64_t log_bytes,
                             const TableMaintenance& table) const;
  IndexShape ShapeOf(Mask mask) const { return {attributes_, mask, KeyWords(key_size_)}; }
  void NoteAsked(Mask asked);
  /// Whether one attribute has room before another.
  bool IsBefore(std::uint32_t attribute, std::uint32_t than) const {
    const bool fixed = (fixed_ >> attribute & 1) != 0;
    if (fixed != ((fixed_ >> than & 1) != 0)) return fixed;
    return asked_at_[attribute] > asked_at_[than];
  }
  /// Whether it is dropped before it follows the next change.
  bool IsToGo() const { return index_->IsWorn() || index_->bytes() + log_bytes_ > budget_; }
  /// Drops attributes that are not asked for, while it takes too much, and there is memory for it.
  void KeepToBudget(Mask asked, ThreadPool* threads);
  void Set(std::unique_ptr<SearchIndex> index);
  struct Fixed {
    Mask mask = 0;
    AttributePairs pairs;
  };
  static Fixed FixedBy(std::span<const std::string> names, std::span<const Attribute> attributes);
  KeptIndex(std::uint64_t budget, std::uint32_t key_size, std::span<const Attribute> attributes,
            const Fixed& fixed, const std::uint64_t* hash_seed);

  const std::uint64_t budget_;
  const std::uint32_t key_size_;
  const std::span<const Attribute> attributes_;
  const Mask fixed_;
  const std::uint64_t hash_seed_[2];
  PairWishes wishes_;
  std::shared_mutex mutex_;
  std::unique_ptr<SearchIndex> index_;   ///< or null
  std::atomic<std::uint64_t> asked_{0};  ///< times that anything was asked for
  /// Which of those was the last one, by attribute; 0: none was.
  std::atomic<std::uint64_t> asked_at_[kMaxAttributes] = {};
  std::atomic<std::uint64_t> made_{0};
  std::atomic<std::uint64_t> followed_{0};
  std::atomic<std::uint64_t> log_bytes_{0};
  // Of who has the turn.
  std::optional<std::uint64_t> scanned_;  ///< state of the last search of all items, without index
  bool lacked_ = false;                   ///< attributes that a search wanted, since it was made
};

}  // namespace gpm

#endif  // GPM_ENGINE_KEPT_INDEX_H_
