#ifndef GPM_ENGINE_SEARCH_INDEX_H_
#define GPM_ENGINE_SEARCH_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/attribute_pairs.h"
#include "gpmstore/batch.h"
#include "gpmstore/search.h"
#include "pm/thread_pool.h"

namespace gpm {

class HeldItems;
class PairWishes;

/// What queries match: how many items, and of each query those with the least keys, in order.
///
/// Thread safety: several threads may read it.
class MatchedRows {
 public:
  virtual ~MatchedRows() = default;
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  /// Rows of query i: [offsets[i], offsets[i + 1]). Of counts alone, empty.
  const std::vector<std::uint64_t>& offsets() const { return offsets_; }
  /// Copies the first `count` rows. @param keys, values for so many rows, in host memory; values
  /// may be null
  virtual void CopyRows(std::uint64_t count, std::byte* keys, std::byte* values,
                        ThreadPool* threads) const = 0;

 protected:
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> offsets_;
};

/// The keys and some attributes of all items of one state of a store, for searches of that state,
/// which then look at no value. It can follow what changed, from one state to the next.
///
/// An attribute may have a *partner*, another one that is indexed (AttributePairs): a query that
/// wants the first to equal a number looks at those rows alone that meet its condition on the
/// partner, too. That takes no more memory. What queries find does not depend on it.
///
/// Thread safety: several threads may ask it; Follow, Drop and Pair, of who is alone, but for Read.
class SearchIndex {
 public:
  /// What is indexed: attribute i, where bit i is set.
  using Mask = std::uint32_t;

  virtual ~SearchIndex() = default;
  /// Admission::changers of the state.
  std::uint64_t version() const { return version_; }
  Mask mask() const { return mask_; }
  bool Has(Mask mask) const { return (mask & ~mask_) == 0; }
  const AttributePairs& pairs() const { return pairs_; }
  virtual std::uint64_t bytes() const = 0;
  /// Whether so much has changed that one made anew takes less memory and time.
  virtual bool IsWorn() const = 0;

  /// What changed up to a later state.
  struct Changes {
    virtual ~Changes() = default;
  };
  /// Reads what Follow wants of the values of changed items, while others ask; Follow is next.
  /// @param items HeldItems::of_logged, of a log that began at `version`; they outlive it
  virtual std::unique_ptr<Changes> Read(HeldItems& items, ThreadPool* threads) = 0;
  /// Brings it to that state. @throws Error(kGpu), std::bad_alloc; then it is of no use any more
  virtual void Follow(const Changes& changes, ThreadPool* threads) = 0;
  /// An attribute is indexed no more, and is nobody's partner.
  /// @throws std::bad_alloc; then nothing has changed, but perhaps partners
  void Drop(std::uint32_t attribute, ThreadPool* threads);
  /// Gives an attribute that partner, in place of another: sorts its rows anew. REQUIRES: both are
  /// indexed. @throws Error(kGpu), std::bad_alloc; then the attribute has the partner that it had,
  /// or, where its rows may be half sorted, AttributePairs::kLost: answers stay right either way
  void Pair(std::uint32_t attribute, std::uint32_t partner, ThreadPool* threads);
  /// Who is told which pairs queries lack. It outlives the index.
  void SetWishes(PairWishes* wishes) { wishes_ = wishes; }
  PairWishes* wishes() const { return wishes_; }

  /// @param rows else counts alone @param limit rows of a query at most
  /// REQUIRES: it has the attributes that conditions are on. @throws Error(kGpu), std::bad_alloc
  virtual std::unique_ptr<MatchedRows> Ask(std::span<const Query> queries, bool rows,
                                           std::uint64_t limit, ThreadPool* threads) const = 0;
  /// The same, of arrays of which some are in the memory of a device: sets `matches` as
  /// Store::Search does, or, where it does not reach them, nothing.
  /// Values are not its affair.
  /// @return rows that it gave, if it does @throws Error(kGpu), std::bad_alloc
  virtual std::optional<std::uint64_t> AskArrays(const QueryArray& /*queries*/,
                                                 std::uint64_t /*limit*/,
                                                 Matches* /*matches*/) const {
    return std::nullopt;
  }

 protected:
  SearchIndex(std::uint64_t version, Mask mask) : version_(version), mask_(mask) {}
  virtual void DropOrder(std::uint32_t attribute) = 0;
  /// Where it may fail half done, it calls SetLost before.
  virtual void SortByPair(std::uint32_t attribute, std::uint32_t partner, ThreadPool* threads) = 0;
  void SetLost(std::uint32_t attribute) { pairs_.Set(attribute, AttributePairs::kLost); }
  /// The attribute's partner is about to go. @return AttributePairs::kNone, if its rows have been
  /// put in order without one, else kLost @throws std::bad_alloc; then nothing has changed
  virtual std::uint32_t LosePartner(std::uint32_t attribute, ThreadPool* threads) = 0;

  std::uint64_t version_;
  Mask mask_;

 private:
  AttributePairs pairs_;
  PairWishes* wishes_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_ENGINE_SEARCH_INDEX_H_
