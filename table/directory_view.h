#ifndef GPM_TABLE_DIRECTORY_VIEW_H_
#define GPM_TABLE_DIRECTORY_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "table/layout.h"

namespace gpm {

/// The directory: of every slot of the reserved and the addressable levels a 16-bit fingerprint and
/// an *entry* of its value reference and its key, in the executor's own memory. A search reads
/// persistent memory for the value alone (and, where there was no room for the keys, to compare the
/// key). A miss, and the search for a free slot, read none of it. A trivially copyable, non-owning
/// view, the same on host and device.
///
/// With a directory, searches look nowhere else, so it decides what batches see: an operation takes
/// effect when the directory says so, and it is durable by then.
///
/// Invariants:
///  1. Who inserts, updates or erases a key holds its lock (KeyLocks) from its search until the
///     directory tells of the change, which persistent memory has by then.
///  2. So while nobody holds a key's lock, the directory has the key in the same slot, and with the
///     same reference, as persistent memory, or both do not have it.
///  3. A slot's entry is written by who claimed the slot, replaced its reference or erased it, and
///     no two of them at once. Key and reference are there before the fingerprint is.
struct DirectoryView {
  static constexpr std::uint16_t kEmpty = 0;
  static constexpr std::uint16_t kTaken = 1;  ///< claimed, or erased and not given back
  static constexpr std::uint32_t kPrintsInWord = 4;
  static constexpr std::uint32_t kNoIndex = 0xFFFFFFFF;  ///< of a bucket that is not in it

  std::uint16_t* fingerprints = nullptr;  ///< `stride` for each bucket; null: there is no directory
  std::uint32_t stride = 0;               ///< fingerprints of a bucket: its slots, but at least 4
  /// Of slots, `entry_bytes` each: the number of the value's cell, and the cache's tag of the slot
  /// (table/value_cache.h), 4 bytes each, or the reference where values are inline; then the key,
  /// if keys are here. Side by side, as a search that finds its key reads them all.
  std::byte* entries = nullptr;
  std::uint32_t entry_bytes = 0;
  /// The same fingerprints of the level that is being drained beside batches, as they were when
  /// that began; kEmpty once the slot's item was moved up. Null: its state words tell
  /// (table/draining.h).
  std::uint16_t* drained = nullptr;

  static GPM_HD std::uint32_t EntryBytes(std::uint32_t key_words) { return 8 + 8 * key_words; }

  GPM_HD bool enabled() const { return fingerprints != nullptr; }
  GPM_HD bool has_keys() const { return entry_bytes > EntryBytes(0); }
  // Of a slot's entry, by number.
  GPM_HD std::uint32_t* CellAt(std::uint64_t slot) const {
    return reinterpret_cast<std::uint32_t*>(entries + slot * entry_bytes);
  }
  GPM_HD std::uint32_t* TagAt(std::uint64_t slot) const { return CellAt(slot) + 1; }
  GPM_HD std::uint64_t* InlineAt(std::uint64_t slot) const {
    return reinterpret_cast<std::uint64_t*>(entries + slot * entry_bytes);
  }
  GPM_HD std::uint64_t* KeyAt(std::uint64_t slot) const { return InlineAt(slot) + 1; }

  static GPM_HD std::uint16_t FingerprintOf(const KeyHash& hash) {
    const auto fingerprint = static_cast<std::uint16_t>(hash.g);
    return fingerprint <= kTaken ? static_cast<std::uint16_t>(fingerprint + 2) : fingerprint;
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_DIRECTORY_VIEW_H_
