#ifndef GPM_ENGINE_HELD_ITEMS_H_
#define GPM_ENGINE_HELD_ITEMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/maintenance.h"
#include "engine/snapshot.h"
#include "pm/tracer.h"

namespace gpm {

class StoreImpl;

/// The items of a store at one instant, during its life: copies of their keys and references, and
/// the values in the pool, which stay as they were, since their cells are held. Batches go on.
///
/// Thread safety: several threads may read it.
class HeldItems {
 public:
  /// For an export: the caller does as it likes meanwhile (Snapshots).
  /// @param changed_since a snapshot's file: as ExportOptions has it; or empty
  /// @throws Error kInvalidArgument, kNotFound, kDamaged (of `changed_since`), kBusy, kGpu;
  ///         std::bad_alloc
  HeldItems(StoreImpl& store, const std::string& changed_since);
  /// For a search by who has the turn (Snapshots::Turn), and keeps it. Keys and references are
  /// where the executor has copied them until BringToHost.
  /// @param logged_only the items of logged keys alone, if the change log tells them all
  /// @param log_room of the log that begins at the instant; 0: none does
  /// @throws Error kGpu; std::bad_alloc. The change log may have begun anew then
  HeldItems(StoreImpl& store, bool logged_only, std::uint64_t log_room);
  ~HeldItems();
  HeldItems(const HeldItems&) = delete;
  HeldItems& operator=(const HeldItems&) = delete;

  /// Makes KeyOf, ValueOf and, of executor cpu, LoggedKey right, if they are not. @throws
  /// Error(kGpu), std::bad_alloc
  void BringToHost();
  const TableCopy& copy() const { return *copy_; }

  std::uint64_t count() const { return copy_->items; }
  std::uint64_t total() const { return copy_->total; }  ///< items in the store
  /// Admission::changers at the instant.
  std::uint64_t version() const { return version_; }
  /// Whether these are the items of the logged keys alone, perhaps some of them twice.
  bool of_logged() const { return copy_->of_logged; }
  /// Whether the change log told all up to the instant; then, if one began, the keys it had.
  bool log_was_whole() const { return copy_->log_whole; }
  std::uint64_t logged() const { return copy_->logged; }
  /// All words of a logged key.
  const std::uint64_t* LoggedKey(std::uint64_t i) const {
    return copy_->logged_keys + i * (key_stride_ / sizeof(std::uint64_t));
  }
  /// key_size bytes, zeros behind them up to a whole word.
  const std::byte* KeyOf(std::uint64_t item) const { return keys_ + item * key_stride_; }
  const std::byte* ValueOf(std::uint64_t item) const {
    const std::uint64_t* const reference = copy_->references + item;
    if (pool_ == nullptr) return reinterpret_cast<const std::byte*>(reference);
    const std::byte* const value = pool_ + *reference;
    // Before it is read, others go on, for all that a schedule explorer cares.
    if (tracer_ != nullptr) tracer_->Load(reinterpret_cast<const std::uint64_t*>(value));
    return value;
  }
  /// Fetches a value of later use into the cache, if there is such an item.
  void Prefetch(std::uint64_t item) const {
    if (item < count()) __builtin_prefetch(ValueOf(item));
  }

 private:
  explicit HeldItems(StoreImpl& store);
  void Take(const CopyShape& shape);
  void KeepBase(std::uint32_t range_bits);

  StoreImpl& store_;
  const std::uint64_t key_stride_;
  const std::byte* const pool_;  ///< null: values are inline
  PmTracer* const tracer_;       ///< or null
  std::optional<Snapshots::Turn> turn_;
  std::unique_ptr<TableCopy> copy_;
  std::optional<Snapshots::Copying> copying_;
  const std::byte* keys_ = nullptr;  ///< null: not in host memory yet
  std::uint64_t version_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_HELD_ITEMS_H_
