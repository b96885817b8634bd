#ifndef GPM_ENGINE_EXPORT_H_
#define GPM_ENGINE_EXPORT_H_

#include <memory>

#include "engine/held_items.h"
#include "engine/query_plan.h"
#include "gpmstore/export.h"

namespace gpm {

class StoreImpl;

/// An export that is open: the items of its instant, and how far it has come.
class ExportState {
 public:
  ExportState(std::shared_ptr<StoreImpl> store, const ExportOptions& options);

  std::uint64_t Next(std::span<std::byte> keys, std::span<std::byte> values);
  bool ended() const { return next_ == items_.count(); }
  std::uint64_t items() const { return items_.total(); }
  std::uint64_t key_size() const;    ///< bytes
  std::uint64_t value_size() const;  ///< bytes
  bool InHomeProcess() const;

 private:
  bool IsWanted(const std::byte* value) const;

  const std::shared_ptr<StoreImpl> store_;
  const ExportOptions options_;
  const QueryPlan where_;
  HeldItems items_;
  std::uint64_t next_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_EXPORT_H_
