#include "engine/kept_index.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "engine/attribute_index.h"
#include "gpmstore/error.h"
#include "pm/text.h"

namespace gpm {
namespace {

/// A change costs a search a look into the table, and some into the index: so many of them take
/// still far less than to look at all items, and the log takes a byte an item or so.
constexpr std::uint64_t kItemsForLogged = 16;
constexpr std::uint64_t kFewestLogged = 4096;

std::uint64_t LogRoomFor(std::uint64_t items) { return items / kItemsForLogged + kFewestLogged; }

/// Between the names of a pair; no attribute's name has it.
constexpr char kPairSign = '+';

[[noreturn]] void RefuseFixed(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "search_indexed: " + what);
}

std::uint32_t PlaceOf(const std::string& name, std::span<const Attribute> attributes) {
  const auto named = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const Attribute& a) { return a.name == name; });
  if (named == attributes.end()) RefuseFixed("the pool has no attribute " + Quoted(name));
  return static_cast<std::uint32_t>(named - attributes.begin());
}

/// Sorts by it, unless memory or the GPU fails: answers are right without a pair, too, and it is
/// not tried again before the next index.
void TryPair(SearchIndex& index, const AttributePair& pair, ThreadPool* threads) {
  const auto bit = [](std::uint32_t attribute) { return SearchIndex::Mask{1} << attribute; };
  if (!index.Has(bit(pair.first) | bit(pair.partner))) return;
  try {
    index.Pair(pair.first, pair.partner, threads);
  } catch (const std::bad_alloc&) {
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu) throw;
  }
}

}  // namespace

KeptIndex::Fixed KeptIndex::FixedBy(std::span<const std::string> names,
                                    std::span<const Attribute> attributes) {
  Fixed fixed;
  for (const std::string& name : names) {
    const std::size_t sign = name.find(kPairSign);
    const std::uint32_t first = PlaceOf(name.substr(0, sign), attributes);
    fixed.mask |= Mask{1} << first;
    if (sign == std::string::npos) continue;
    const std::uint32_t partner = PlaceOf(name.substr(sign + 1), attributes);
    fixed.mask |= Mask{1} << partner;
    if (partner == first) RefuseFixed(Quoted(name) + " names one attribute twice");
    if (fixed.pairs.Has(first) && fixed.pairs.PartnerOf(first) != partner) {
      RefuseFixed(attributes[first].name + " is the first of two pairs, " +
                  Quoted(attributes[first].name + kPairSign +
                         attributes[fixed.pairs.PartnerOf(first)].name) +
                  " and " + Quoted(name) + "; it can be of one");
    }
    fixed.pairs.Set(first, partner);
  }
  return fixed;
}

KeptIndex::KeptIndex(std::uint64_t budget, std::uint32_t key_size,
                     std::span<const Attribute> attributes, std::span<const std::string> fixed,
                     const std::uint64_t* hash_seed)
    : KeptIndex(budget, key_size, attributes, FixedBy(fixed, attributes), hash_seed) {}

KeptIndex::KeptIndex(std::uint64_t budget, std::uint32_t key_size,
                     std::span<const Attribute> attributes, const Fixed& fixed,
                     const std::uint64_t* hash_seed)
    : budget_(budget),
      key_size_(key_size),
      attributes_(attributes),
      fixed_(fixed.mask),
      hash_seed_{hash_seed[0], hash_seed[1]},
      wishes_(fixed.pairs) {
  if (fixed_ != 0 && !enabled()) RefuseFixed("there is no index, as search_index_bytes is 0");
}

KeptIndex::Mask KeptIndex::AskedBy(std::span<const Query> queries) {
  Mask asked = 0;
  for (const Query& query : queries) {
    for (const Condition& condition : query) asked |= Mask{1} << condition.attribute;
  }
  return asked;
}

void KeptIndex::NoteAsked(Mask asked) {
  const std::uint64_t now = asked_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (std::uint32_t a = 0; a < attributes_.size(); ++a) {
    if ((asked >> a & 1) != 0) asked_at_[a].store(now, std::memory_order_relaxed);
  }
}

std::optional<KeptIndex::Mask> KeptIndex::Choose(Mask asked, std::uint64_t items,
                                                 std::uint64_t log_bytes,
                                                 const TableMaintenance& table) const {
  const auto fits = [&](Mask mask) {
    const std::uint64_t bytes = table.MakesIndexes()
                                    ? table.IndexBytes(items, ShapeOf(mask))
                                    : AttributeIndex::BytesFor(items, key_size_, attributes_, mask);
    return log_bytes + bytes <= budget_;
  };
  if (!AttributeIndex::CanBe(items) || !fits(asked)) return {};
  std::vector<std::uint32_t> others;
  for (std::uint32_t a = 0; a < attributes_.size(); ++a) {
    const bool wanted = asked_at_[a] > 0 || (fixed_ >> a & 1) != 0;
    if ((asked >> a & 1) == 0 && wanted) others.push_back(a);
  }
  std::sort(others.begin(), others.end(),
            [&](std::uint32_t x, std::uint32_t y) { return IsBefore(x, y); });
  Mask mask = asked;
  for (const std::uint32_t a : others) {
    if (!fits(mask | Mask{1} << a)) break;
    mask |= Mask{1} << a;
  }
  return mask;
}

KeptIndex::Plan KeptIndex::Begin(Mask asked, std::uint64_t items, std::uint64_t version,
                                 const TableMaintenance& table) {
  NoteAsked(asked);
  const bool whole = table.LogIsWhole();
  if (index_ != nullptr && index_->version() != version) {
    if (!whole) scanned_.reset();
    if (!whole || IsToGo()) Set(nullptr);
  }
  const std::uint64_t room = LogRoomFor(items);
  const std::uint64_t log_bytes = table.LogBytes(room, KeyWords(key_size_));
  Plan plan;
  if (index_ != nullptr && index_->Has(asked)) {
    plan = {.follows = true, .log_room = room};
  } else if (!Choose(asked, items, log_bytes, table)) {
    return {};
  } else if (index_ != nullptr && !lacked_) {
    lacked_ = true;
    return {};
  } else {
    plan.at_once = index_ == nullptr && fixed_ != 0 && (asked & ~fixed_) == 0;
    plan.makes = plan.at_once || index_ != nullptr || (scanned_ && (whole || scanned_ == version));
    plan.log_room = room;
  }
  log_bytes_ = log_bytes;
  return plan;
}

bool KeptIndex::Take(const Plan& plan, Mask asked, HeldItems& items, TableMaintenance& table,
                     ThreadPool* threads) {
  if (plan.log_room == 0) return false;
  if (items.of_logged()) {
    const auto changes = index_->Read(items, threads);
    {
      const std::unique_lock lock(mutex_);
      try {
        index_->Follow(*changes, threads);
      } catch (...) {
        index_.reset();  // before anybody asks what is half done
        throw;
      }
    }
    followed_.fetch_add(1, std::memory_order_relaxed);
    KeepToBudget(asked, threads);
    return true;
  }
  const bool again = plan.at_once || items.log_was_whole() || scanned_ == items.version() ||
                     (index_ != nullptr && index_->version() == items.version());
  Set(nullptr);  // a log has begun that is not its own
  scanned_ = items.version();
  if (!plan.makes || !again) return false;
  const std::optional<Mask> mask = Choose(asked, items.count(), log_bytes_, table);
  if (!mask) return false;
  std::unique_ptr<SearchIndex> index;
  if (table.MakesIndexes()) {
    index = table.MakeIndex(items.copy(), ShapeOf(*mask), items.version());
    if (index == nullptr) {
      scanned_.reset();  // it is not tried at once again
      return false;
    }
  } else {
    items.BringToHost();
    index =
        std::make_unique<AttributeIndex>(items, key_size_, hash_seed_, attributes_, *mask, threads);
  }
  const AttributePairs pairs = wishes_.chosen();
  for (std::uint32_t a = 0; a < attributes_.size(); ++a) {
    if (pairs.Has(a)) TryPair(*index, {a, pairs.PartnerOf(a)}, threads);
  }
  index->SetWishes(&wishes_);
  Set(std::move(index));
  made_.fetch_add(1, std::memory_order_relaxed);
  lacked_ = false;
  return true;
}

void KeptIndex::KeepToBudget(Mask asked, ThreadPool* threads) {
  while (index_->bytes() + log_bytes_ > budget_) {
    std::optional<std::uint32_t> oldest;
    for (std::uint32_t a = 0; a < attributes_.size(); ++a) {
      const bool may_go = ((index_->mask() & ~asked) >> a & 1) != 0;
      if (may_go && (!oldest || IsBefore(*oldest, a))) oldest = a;
    }
    if (!oldest) return;
    const std::unique_lock lock(mutex_);
    try {
      index_->Drop(*oldest, threads);
    } catch (const std::bad_alloc&) {
      return;  // nothing has gone, and all of it goes before the next change is followed
    }
  }
}

void KeptIndex::PairAsDue(Mask asked, std::uint64_t version,
                          unsigned (*threads_for)(std::uint64_t items)) {
  if (wishes_.DueItems() == 0) return;
  const std::unique_lock lock(mutex_);
  const std::uint64_t items = wishes_.DueItems();
  if (items == 0 || index_ == nullptr || !index_->Has(asked)) return;
  if (index_->version() != version && IsToGo()) return;  // the next one gets it
  ThreadPool threads(threads_for(items));
  const std::optional<AttributePair> pair = wishes_.Take();
  if (pair) TryPair(*index_, *pair, &threads);
}

void KeptIndex::Set(std::unique_ptr<SearchIndex> index) {
  const std::unique_lock lock(mutex_);
  index_.swap(index);
}

void KeptIndex::Drop() {
  Set(nullptr);
  scanned_.reset();
}

void KeptIndex::AddTo(StoreStats* stats) {
  stats->search_indexes_made = made_;
  stats->search_index_updates = followed_;
  const std::shared_lock lock(mutex_);
  stats->search_pairs = index_ == nullptr ? 0 : index_->pairs().count();
  stats->search_index_bytes = log_bytes_ + (index_ == nullptr ? 0 : index_->bytes());
}

}  // namespace gpm
