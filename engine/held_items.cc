#include "engine/held_items.h"

#include <algorithm>

#include "engine/profiler_range.h"
#include "engine/store_impl.h"
#include "pm/format.h"

namespace gpm {

HeldItems::HeldItems(StoreImpl& store, For use, const std::string& changed_since)
    : store_(store),
      key_stride_(std::uint64_t{8} * KeyWords(store.key_size())),
      pool_(InlineValues(store.value_size()) ? nullptr : store.pool_->base()),
      tracer_(store.pool_->mapping().persist().tracer()) {
  const ProfilerRange range(use == For::kExport ? "export" : "search");
  store_.health_.Check();
  turn_.emplace(store_.snapshots_, use == For::kExport);
  CopyShape shape{.key_words = KeyWords(store_.key_size())};
  std::uint64_t items = 0;
  {
    const Admission::Entered entered(store_.admission_);
    items = store_.space_.items();
  }
  shape.room = RoomForCopy(items);
  if (!changed_since.empty()) {
    store_.BeginHeader({.base = changed_since});  // refuses what is not the base
    shape.changes_only = true;
    shape.range_bits = std::max(RangeBitsFor(items), store_.snapshots_.base->range_bits);
  }
  copy_ = store_.executor_->MakeCopy(shape);
  store_.TakeInstant(shape, &copy_, &copying_, &version_);
  try {
    if (shape.changes_only) KeepBase(shape.range_bits);
    copy_->Fetch();
    if (use == For::kExport) store_.NameHeldCells(*copy_);  // a search soon lets go of all
  } catch (...) {
    copying_.reset();
    store_.ReleaseCells();
    throw;
  }
  keys_ = reinterpret_cast<const std::byte*>(copy_->keys);
}

/// What has changed since the base has changed since then still.
void HeldItems::KeepBase(std::uint32_t range_bits) {
  const Snapshots::Base base = *store_.snapshots_.base;
  store_.snapshots_.base.reset();
  store_.executor_->MarkAgain(*copy_);  // if that fails, the next increment is refused
  store_.snapshots_.base = {base.id, base.sequence, range_bits};
}

HeldItems::~HeldItems() {
  copying_.reset();
  store_.ReleaseCells();
}

}  // namespace gpm
