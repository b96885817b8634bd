#include "cache/sizing.h"

#include <algorithm>

namespace gpm {
namespace {

/// Indices of buckets have 32 bits, and so have those of the slots of frames.
constexpr std::uint32_t kMaxTop = 30;

}  // namespace

CacheShape ShapeCache(const CacheOptions& options, const CacheOptions& defaults,
                      const TableView& table) {
  ValidateCacheOptions(options);
  const double fraction =
      options.fraction.value_or(options.bytes != 0 ? 1.0 : defaults.fraction.value_or(0));
  if (!options.directory.value_or(defaults.directory.value_or(false)) || table.top > kMaxTop) {
    return {};
  }
  CacheShape shape;
  const std::uint32_t lowest = table.top + 1 - table.levels;
  shape.buckets =
      static_cast<std::uint32_t>((std::uint64_t{2} << table.top) - (std::uint64_t{1} << lowest));
  shape.slots = table.slots;
  shape.stride = std::max(table.slots, DirectoryView::kPrintsInWord);
  shape.key_words = table.key_words;
  shape.value_stride =
      table.inline_values() ? 0 : static_cast<std::uint32_t>(RoundUp(table.value_size, 16));
  if (options.bytes != 0 && shape.directory_bytes() > options.bytes) {
    shape.key_words = 0;  // 8-byte keys are state words, which a directory without them can't tell
    if (table.key_words == 1 || shape.directory_bytes() > options.bytes) return {};
  }
  if (options.policy == CachePolicy::kOff || shape.value_stride == 0) return shape;
  shape.frames = static_cast<std::uint32_t>(fraction * shape.buckets);
  if (options.bytes != 0) {
    const std::uint64_t taken = shape.directory_bytes() + shape.fixed_bytes();
    const std::uint64_t left = options.bytes > taken ? options.bytes - taken : 0;
    shape.frames = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(shape.frames, left / shape.bytes_per_frame()));
  }
  return shape;
}

}  // namespace gpm
