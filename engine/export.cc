#include "engine/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/store_impl.h"
#include "gpmstore/error.h"

namespace gpm {

namespace {

const ExportOptions& Valid(const ExportOptions& options, std::uint32_t value_size) {
  if (options.score_bytes > 0) {
    const Capacity score{.items = 1,
                         .policy = EvictionPolicy::kScore,
                         .score_offset = options.score_offset,
                         .score_bytes = options.score_bytes};
    ValidateCapacity(score, value_size);
  }
  return options;
}

}  // namespace

ExportState::ExportState(std::shared_ptr<StoreImpl> store, const ExportOptions& options)
    : store_(std::move(store)),
      options_(Valid(options, store_->value_size())),
      where_({&options.where, 1}, store_->attributes()),
      items_(*store_, options.changed_since) {}

std::uint64_t ExportState::key_size() const { return store_->key_size(); }
std::uint64_t ExportState::value_size() const { return store_->value_size(); }
bool ExportState::InHomeProcess() const { return store_->process().IsThis(); }

bool ExportState::IsWanted(const std::byte* value) const {
  if (options_.score_bytes > 0) {
    std::uint64_t score = 0;
    std::memcpy(&score, value + options_.score_offset, options_.score_bytes);
    if (score < options_.least || score > options_.most) return false;
  }
  if (options_.where.empty()) return true;
  bool wanted = false;
  where_.Ask(value, [&](std::uint32_t) { wanted = true; });
  return wanted;
}

std::uint64_t ExportState::Next(std::span<std::byte> keys, std::span<std::byte> values) {
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  const std::uint64_t key_size = store_->key_size();
  const std::uint64_t value_size = store_->value_size();
  const std::uint64_t room = keys.size() / key_size;
  if (room == 0 || keys.size() % key_size != 0 ||
      (!values.empty() && values.size() != room * value_size)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("export: 'keys' has {} bytes and 'values' {}; they must have {} and, if "
                    "they are wanted, {} for each row",
                    keys.size(), values.size(), key_size, value_size));
  }
  RequireHostMemory(keys.data(), keys.size(), "keys");
  RequireHostMemory(values.data(), values.size(), "values");
  store_->process().Check();
  std::uint64_t filled = 0;
  for (; filled < room && !ended(); ++next_) {
    items_.Prefetch(next_ + kAhead);
    const std::byte* const value = items_.ValueOf(next_);
    if (!IsWanted(value)) continue;
    std::memcpy(keys.data() + filled * key_size, items_.KeyOf(next_), key_size);
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
Exporter::Exporter(std::vector<ExportStatePtr> states, std::shared_ptr<void> open)
    : open_(std::move(open)), states_(std::move(states)) {
  for (const ExportStatePtr& state : states_) items_ += state->items();
  std::reverse(states_.begin(), states_.end());
}
Exporter::Exporter(Exporter&&) noexcept = default;
Exporter& Exporter::operator=(Exporter&& other) noexcept {
  states_ = std::move(other.states_);  // before what they hold open
  open_ = std::move(other.open_);
  items_ = other.items_;
  return *this;
}
Exporter::~Exporter() = default;

std::uint64_t Exporter::Next(std::span<std::byte> keys, std::span<std::byte> values) {
  std::uint64_t rows = 0;
  while (!states_.empty()) {
    ExportState& state = *states_.back();
    const std::uint64_t filled = state.Next(keys, values);
    rows += filled;
    if (!state.ended()) break;
    keys = keys.subspan(filled * state.key_size());
    if (!values.empty()) values = values.subspan(filled * state.value_size());
    states_.pop_back();  // whoever waits for that need not wait for the caller
    if (keys.empty()) break;
  }
  if (states_.empty()) open_.reset();
  return rows;
}

std::uint64_t Exporter::items() const { return states_.empty() ? 0 : items_; }

}  // namespace gpm
