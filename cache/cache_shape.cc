#include "cache/cache_shape.h"

#include <algorithm>
#include <string>

#include "pm/error.h"

namespace gpm {
namespace {

/// Indices of buckets have 32 bits.
constexpr std::uint32_t kMaxTop = 30;
/// Of the memory: a copy saves four probes of persistent memory, a block of values one access to
/// it for each hot item.
constexpr double kShareOfCopies = 0.65;

}  // namespace

CacheShape ShapeCache(const CacheOptions& options, double default_fraction,
                      const TableView& table) {
  const double fraction = options.fraction.value_or(options.bytes != 0 ? 1.0 : default_fraction);
  if (!(fraction >= 0 && fraction <= 1)) {
    throw Error(ErrorCode::kInvalidArgument, "cache: a fraction of " + std::to_string(fraction) +
                                                 " of the buckets; it must be between 0 and 1");
  }
  CacheShape shape;
  if (options.policy == CachePolicy::kOff || table.top > kMaxTop) return shape;
  const std::uint32_t lowest = table.top + 1 - table.levels;
  shape.buckets =
      static_cast<std::uint32_t>((std::uint64_t{2} << table.top) - (std::uint64_t{1} << lowest));
  shape.value_stride =
      table.inline_values() ? 0 : static_cast<std::uint32_t>(RoundUp(table.value_size, 16));
  shape.copy_bytes = table.bucket_bytes;
  shape.block_bytes = std::uint64_t{shape.value_stride} * table.slots;
  const bool has_values = shape.value_stride != 0;

  // In bytes of buckets with their values; what is there for copies and blocks alone.
  std::uint64_t bytes = static_cast<std::uint64_t>(
      fraction * shape.buckets *
      static_cast<double>(shape.bytes_per_copy() + (has_values ? shape.bytes_per_block() : 0)));
  if (options.bytes != 0) {
    const std::uint64_t fixed = shape.fixed_bytes();
    bytes = std::min(bytes, options.bytes > fixed ? options.bytes - fixed : 0);
  }
  const std::uint64_t for_copies =
      has_values ? static_cast<std::uint64_t>(kShareOfCopies * static_cast<double>(bytes)) : bytes;
  shape.copies = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(shape.buckets, for_copies / shape.bytes_per_copy()));
  if (has_values) {
    const std::uint64_t blocks =
        (bytes - shape.copies * shape.bytes_per_copy()) / shape.bytes_per_block();
    const std::uint64_t pairs = bytes / (shape.bytes_per_copy() + shape.bytes_per_block());
    shape.blocks = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(shape.buckets, blocks > shape.copies ? pairs : blocks));
    // What blocks leave of their share, because they are whole or each bucket has one, copies use.
    shape.copies = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        shape.buckets, (bytes - shape.blocks * shape.bytes_per_block()) / shape.bytes_per_copy()));
  }
  return shape;
}

}  // namespace gpm
