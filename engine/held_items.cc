#include "engine/held_items.h"

#include <algorithm>

#include "engine/profiler_range.h"
#include "engine/store_impl.h"
#include "pm/format.h"

namespace gpm {

HeldItems::HeldItems(StoreImpl& store, const std::string& changed_since) : HeldItems(store) {
  const ProfilerRange range("export");
  store_.health_.Check();
  turn_.emplace(store_.snapshots_, true);
  const std::uint64_t items = store_.ItemsNow();
  CopyShape shape{.room = RoomForCopy(items), .key_words = KeyWords(store_.key_size())};
  if (!changed_since.empty()) {
    store_.BeginHeader({.base = changed_since});  // refuses what is not the base
    shape.changes_only = true;
    shape.range_bits = std::max(RangeBitsFor(items), store_.snapshots_.base->range_bits);
  }
  Take(shape);
  BringToHost();
  store_.NameHeldCells(*copy_);  // (A search, which soon lets go of all, does not.)
}

HeldItems::HeldItems(StoreImpl& store, bool logged_only, std::uint64_t log_room)
    : HeldItems(store) {
  const ProfilerRange range("search");
  store_.health_.Check();
  CopyShape shape{.key_words = KeyWords(store_.key_size()), .log_room = log_room};
  // (Should it be whole no more at the instant, there is more to copy, for which room is made
  // then.)
  shape.logged_only = logged_only && store_.executor_->LogIsWhole();
  shape.room = shape.logged_only ? log_room : RoomForCopy(store_.ItemsNow());
  Take(shape);
}

HeldItems::HeldItems(StoreImpl& store)
    : store_(store),
      key_stride_(std::uint64_t{8} * KeyWords(store.key_size())),
      pool_(InlineValues(store.value_size()) ? nullptr : store.pool_->base()),
      tracer_(store.pool_->mapping().persist().tracer()) {}

void HeldItems::Take(const CopyShape& shape) {
  copy_ = store_.executor_->MakeCopy(shape);
  store_.TakeInstant(shape, &copy_, &copying_, &version_);
  if (shape.changes_only) KeepBase(shape.range_bits);
}

void HeldItems::BringToHost() {
  if (keys_ != nullptr) return;
  copy_->Fetch();
  keys_ = reinterpret_cast<const std::byte*>(copy_->keys);
}

/// What has changed since the base has changed since then still.
void HeldItems::KeepBase(std::uint32_t range_bits) {
  const Snapshots::Base base = *store_.snapshots_.base;
  store_.snapshots_.base.reset();
  store_.executor_->MarkAgain(*copy_);  // if that fails, the next increment is refused
  store_.snapshots_.base = {base.id, base.sequence, range_bits};
}

/// (Also of one that could not be made: then it may hold nothing, and another's cells are not its.)
HeldItems::~HeldItems() {
  if (!copying_) return;
  copy_.reset();  // is in the executor's memory, which Close may give back from here on
  copying_.reset();
  store_.ReleaseCells();
}

}  // namespace gpm
