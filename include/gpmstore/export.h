#ifndef GPM_EXPORT_H_
#define GPM_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/search.h"

namespace gpm {

class ExportState;
struct EndExport {
  void operator()(ExportState* state) const noexcept;
};
using ExportStatePtr = std::unique_ptr<ExportState, EndExport>;

/// Which items an export has.
struct ExportOptions {
  /// If not 0: those with a score from `least` to `most` alone. It is an unsigned number of so many
  /// bytes, 4 or 8, in the value, little-endian.
  std::uint32_t score_bytes = 0;
  std::uint32_t score_offset = 0;  ///< bytes
  std::uint64_t least = 0;
  std::uint64_t most = ~std::uint64_t{0};
  Query where{};  ///< those alone that match it
  /// If not empty: the file of the last snapshot that was taken of this store with
  /// SnapshotOptions::track_changes, since it was opened. The export has the items that were added
  /// or updated since, and of those that were not, the few that share a hash range with one that
  /// was changed or erased (docs/SNAPSHOTS.md): changes are known by range. The next snapshot may
  /// still be an increment on it. What was erased is not told of.
  std::string changed_since{};
};

/// The items of a store at one instant, page by page, while batches go on (Store::Export,
/// ShardedStore::Export). Movable; destroying it, at any page, ends the export. A store can be
/// closed when its exports have ended.
///
/// Thread safety: one thread at a time.
class Exporter {
 public:
  Exporter();  ///< ended
  /// @param states of a store, or of each shard of one
  /// @param open let go of when all have ended
  explicit Exporter(std::vector<ExportStatePtr> states, std::shared_ptr<void> open = nullptr);
  Exporter(Exporter&&) noexcept;
  Exporter& operator=(Exporter&&) noexcept;
  ~Exporter();

  /// The next items, in no order, each once; the export ends behind the last of them.
  /// @param keys, values host memory, rows of key_size and of value_size bytes: both as many, one
  ///        at least, or no values
  /// @return rows that were filled; fewer than there is room for, or none, if these are the last
  /// @throws Error kInvalidArgument (arrays), kUnsupported (in a fork of the store's process)
  std::uint64_t Next(std::span<std::byte> keys, std::span<std::byte> values);
  /// Items in the store at the instant, whether they are wanted or not; 0 when it has ended.
  std::uint64_t items() const;

 private:
  std::shared_ptr<void> open_;
  std::vector<ExportStatePtr> states_;  ///< those with items left, the last one first
  std::uint64_t items_ = 0;
};

}  // namespace gpm

#endif  // GPM_EXPORT_H_
