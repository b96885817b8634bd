#ifndef GPM_ENGINE_EXPORT_H_
#define GPM_ENGINE_EXPORT_H_

#include <memory>
#include <optional>

#include "engine/maintenance.h"
#include "engine/snapshot.h"
#include "gpmstore/export.h"

namespace gpm {

class StoreImpl;

/// An export that is open: what a snapshot has, and how far it has come. From the instant on its
/// cells are held, so that the values in them stay as they were.
class ExportState {
 public:
  ExportState(std::shared_ptr<StoreImpl> store, const ExportOptions& options);
  ~ExportState();
  ExportState(const ExportState&) = delete;
  ExportState& operator=(const ExportState&) = delete;

  std::uint64_t Next(std::span<std::byte> keys, std::span<std::byte> values);
  bool ended() const { return next_ == copy_->items; }
  std::uint64_t items() const { return copy_->total; }
  bool InHomeProcess() const;

 private:
  void KeepBase(std::uint32_t range_bits);
  const std::byte* ValueOf(std::uint64_t item) const;
  bool IsWanted(const std::byte* value) const;

  const std::shared_ptr<StoreImpl> store_;
  const ExportOptions options_;
  std::optional<Snapshots::Turn> turn_;
  std::unique_ptr<TableCopy> copy_;
  std::optional<Snapshots::Copying> copying_;
  std::uint64_t next_ = 0;  ///< item of the copy
};

}  // namespace gpm

#endif  // GPM_ENGINE_EXPORT_H_
