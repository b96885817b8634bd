#include "engine/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/profiler_range.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"

namespace gpm {

ExportState::ExportState(std::shared_ptr<StoreImpl> store, const ExportOptions& options)
    : store_(std::move(store)), options_(options) {
  const ProfilerRange range("export");
  if (options.score_bytes > 0) {
    const Capacity score{.items = 1,
                         .policy = EvictionPolicy::kScore,
                         .score_offset = options.score_offset,
                         .score_bytes = options.score_bytes};
    ValidateCapacity(score, store_->value_size());
  }
  store_->health_.Check();
  turn_.emplace(store_->snapshots_, true);
  CopyShape shape{.key_words = (store_->key_size() + 7) / 8};
  std::uint64_t items = 0;
  {
    const Admission::Entered entered(store_->admission_);
    items = store_->space_.items();
  }
  shape.room = RoomForCopy(items);
  if (!options.changed_since.empty()) {
    store_->BeginHeader({.base = options.changed_since});  // refuses what is not the base
    shape.changes_only = true;
    shape.range_bits = std::max(RangeBitsFor(items), store_->snapshots_.base->range_bits);
  }
  copy_ = store_->executor_->MakeCopy(shape);
  store_->TakeInstant(shape, &copy_, &copying_);
  try {
    if (shape.changes_only) KeepBase(shape.range_bits);
    copy_->Fetch();
    store_->NameHeldCells(*copy_);
  } catch (...) {
    copying_.reset();
    store_->ReleaseCells();
    throw;
  }
}

/// What has changed since the base has changed since then still.
void ExportState::KeepBase(std::uint32_t range_bits) {
  const Snapshots::Base base = *store_->snapshots_.base;
  store_->snapshots_.base.reset();
  store_->executor_->MarkAgain(*copy_);  // if that fails, the next increment is refused
  store_->snapshots_.base = {base.id, base.sequence, range_bits};
}

ExportState::~ExportState() {
  copying_.reset();
  store_->ReleaseCells();
}

bool ExportState::InHomeProcess() const { return store_->process().IsThis(); }

const std::byte* ExportState::ValueOf(std::uint64_t item) const {
  const std::uint64_t* const reference = copy_->references + item;
  if (InlineValues(store_->value_size())) return reinterpret_cast<const std::byte*>(reference);
  return store_->pool_->base() + *reference;
}

bool ExportState::IsWanted(const std::byte* value) const {
  if (options_.score_bytes == 0) return true;
  std::uint64_t score = 0;
  std::memcpy(&score, value + options_.score_offset, options_.score_bytes);
  return options_.least <= score && score <= options_.most;
}

std::uint64_t ExportState::Next(std::span<std::byte> keys, std::span<std::byte> values) {
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  const std::uint64_t key_size = store_->key_size();
  const std::uint64_t value_size = store_->value_size();
  const std::uint64_t key_stride = (key_size + 7) / 8 * 8;
  const std::uint64_t room = keys.size() / key_size;
  if (room == 0 || keys.size() % key_size != 0 ||
      (!values.empty() && values.size() != room * value_size)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("export: 'keys' has {} bytes and 'values' {}; they must have {} and, if "
                    "they are wanted, {} for each row",
                    keys.size(), values.size(), key_size, value_size));
  }
  store_->process().Check();
  const auto* const copied = reinterpret_cast<const std::byte*>(copy_->keys);
  std::uint64_t filled = 0;
  for (; filled < room && next_ < copy_->items; ++next_) {
    if (next_ + kAhead < copy_->items) __builtin_prefetch(ValueOf(next_ + kAhead));
    const std::byte* const value = ValueOf(next_);
    if (!IsWanted(value)) continue;
    std::memcpy(keys.data() + filled * key_size, copied + next_ * key_stride, key_size);
    if (!values.empty()) std::memcpy(values.data() + filled * value_size, value, value_size);
    ++filled;
  }
  return filled;
}

void EndExport::operator()(ExportState* state) const noexcept {
  // (In a fork of the store's process there is nobody who waits, and locks may be held for ever.)
  if (state->InHomeProcess()) delete state;
}

Exporter::Exporter() = default;
Exporter::Exporter(ExportStatePtr state) : state_(std::move(state)) {}
Exporter::Exporter(Exporter&&) noexcept = default;
Exporter& Exporter::operator=(Exporter&&) noexcept = default;
Exporter::~Exporter() = default;

std::uint64_t Exporter::Next(std::span<std::byte> keys, std::span<std::byte> values) {
  if (state_ == nullptr) return 0;
  const std::uint64_t rows = state_->Next(keys, values);
  if (state_->ended()) state_.reset();  // whoever waits for that need not wait for the caller
  return rows;
}

std::uint64_t Exporter::items() const { return state_ == nullptr ? 0 : state_->items(); }

}  // namespace gpm
