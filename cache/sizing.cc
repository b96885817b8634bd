#include "cache/sizing.h"

#include <algorithm>

namespace gpm {
namespace {

/// Indices of buckets have 32 bits, and so have those of frames.
constexpr std::uint64_t kMaxBuckets = 0x7FFF'FFFF + std::uint64_t{TableView::kReservedBuckets};

}  // namespace

CacheShape ShapeCache(const CacheOptions& options, const CacheDefaults& defaults,
                      const TableView& table) {
  ValidateCacheOptions(options);
  std::uint64_t buckets = TableView::kReservedBuckets;
  for (std::uint32_t level = 0; level < table.levels; ++level) buckets += table.Buckets(level);
  if (!options.directory.value_or(defaults.directory) || buckets > kMaxBuckets) return {};
  CacheShape shape;
  shape.buckets = static_cast<std::uint32_t>(buckets);
  shape.slots = table.slots;
  shape.stride = std::max(table.slots, DirectoryView::kPrintsInWord);
  shape.key_words = table.key_words;
  shape.limited = options.bytes != 0;
  shape.value_stride =
      table.inline_values() ? 0 : static_cast<std::uint32_t>(RoundUp(table.value_size, 16));
  if (shape.limited && shape.directory_bytes() > options.bytes) {
    shape.key_words = 0;  // 8-byte keys are state words, which a directory without them can't tell
    if (table.key_words == 1 || shape.directory_bytes() > options.bytes) return {};
  }
  if (options.policy == CachePolicy::kOff || shape.value_stride == 0) return shape;
  shape.fill = defaults.fill;
  shape.frames = static_cast<std::uint32_t>(options.fraction.value_or(1.0) * shape.buckets);
  const auto limit = [&](std::uint64_t bytes, std::uint64_t taken) {
    const std::uint64_t left = bytes > taken ? bytes - taken : 0;
    shape.frames =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(shape.frames, shape.FramesIn(left)));
  };
  if (shape.limited) {
    limit(options.bytes, shape.directory_bytes() + shape.fixed_bytes());
  } else if (!options.fraction) {
    limit(defaults.cache_bytes, shape.fixed_bytes());
  }
  return shape;
}

}  // namespace gpm
