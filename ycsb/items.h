#ifndef GPM_YCSB_ITEMS_H_
#define GPM_YCSB_ITEMS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpmstore/options.h"
#include "ycsb/workload.h"

namespace gpm::ycsb {

/// Keys and values that follow from numbers, so that whatever a store returns can be verified.
/// Thread safety: pure functions.

/// The first 8 bytes of record i's key: its hash, or i. No record's key has bit 63 set, so setting
/// it (`missing`) gives keys that are never inserted.
std::uint64_t KeyWord(std::uint64_t record, KeyOrder order, bool missing = false);

/// Bytes of a key that tell records apart.
inline constexpr std::uint32_t kLeastKeyBytes = 8;
/// @throws Error(kInvalidArgument) for shorter ones
void RequireKeyBytes(std::uint32_t key_size);

/// Writes a key of key.size() bytes: the word, little-endian, then bytes mixed from it. Of a
/// shorter key, what of the word has room.
void WriteKey(std::uint64_t word, std::span<std::byte> key);

/// Version of a value: 0 when it was loaded, otherwise a number from the operation that wrote it.
using Version = std::uint32_t;

/// Where values of kLeastSearchedBytes and more have the number of their record: items are searched
/// by it.
inline constexpr std::uint32_t kRecordAt = 8;
inline constexpr std::uint32_t kRecordBytes = 8;
inline constexpr std::uint32_t kLeastSearchedBytes = 24;
/// The attribute over it, by the name that it gets in new pools.
Attribute RecordAttribute();

/// Writes the value of one version of a record: the first 8 bytes say which version it is, the next
/// 8 are the record's number (of values of kLeastSearchedBytes and more), all others are mixed from
/// the first. So a torn value is told from a whole one.
void WriteValue(std::uint64_t record, Version version, std::span<std::byte> value);

/// Whether `value` is whole and the record's, and of this version. Without a version (not known
/// what was written last), values of under 8 bytes can't be told and are taken as right.
bool CheckValue(std::uint64_t record, std::optional<Version> version,
                std::span<const std::byte> value);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_ITEMS_H_
