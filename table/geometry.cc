#include "table/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "gpmstore/error.h"
#include "pm/pool.h"
#include "pm/text.h"

namespace gpm {
namespace {

/// Takes a number from 1 to 255 and `suffix` off the front of `*text`.
std::optional<std::uint8_t> TakeNumber(std::string_view* text, std::string_view suffix) {
  std::uint8_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || number == 0) return std::nullopt;
  text->remove_prefix(static_cast<std::size_t>(rest - text->data()));
  if (!text->starts_with(suffix)) return std::nullopt;
  text->remove_prefix(suffix.size());
  return number;
}

}  // namespace

Geometry ParseGeometry(std::string_view text) {
  std::string_view rest = text;
  const auto levels = TakeNumber(&rest, "L-");
  const auto locations = levels ? TakeNumber(&rest, "H-") : std::nullopt;
  const auto slots = locations ? TakeNumber(&rest, "S") : std::nullopt;
  if (!slots || !rest.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("geometry {} is not of the form xL-yH-zS, such as 2L-2H-8S", Quoted(text)));
  }
  const Geometry geometry{*levels, *locations, *slots};
  ValidateGeometry(geometry);
  return geometry;
}

std::string GeometryName(Geometry geometry) {
  return fmt::format("{}L-{}H-{}S", geometry.levels, geometry.locations, geometry.slots);
}

void ValidateGeometry(Geometry geometry) {
  const std::string defect = GeometryDefect(geometry);
  if (!defect.empty()) throw Error(ErrorCode::kInvalidArgument, defect);
}

void ValidateGrowth(const OpenOptions& open) {
  const auto require = [](double value, double least, double most, const char* what) {
    if (value >= least && value <= most) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format(fmt::runtime(what), value) +
                                                 fmt::format(" from {} to {}", least, most));
  };
  require(open.growth, 1.1, 4, "growth {} is not a number");
  require(open.growth_pause, 0, 1e9, "growth_pause {} is not a number of seconds");
  require(open.grow_above, 0, 1, "grow_above {} is not a load factor");
  require(open.compact_below, 0, 0.4, "compact_below {} is not a load factor");
}

std::uint64_t Growth::Next(std::uint64_t newest) const {
  const std::uint64_t locations = geometry.locations;
  const auto scaled = static_cast<std::uint64_t>(std::ceil(static_cast<double>(newest) * factor));
  const std::uint64_t next = std::max(RoundUp(scaled, locations), newest + locations);
  return std::min(next, kMaxLevelBuckets + 1);
}

LevelSizes Growth::Levels(std::uint64_t newest) const {
  LevelSizes sizes;
  for (double buckets = static_cast<double>(newest); sizes.size() < geometry.levels;
       buckets /= factor) {
    const auto parts = static_cast<std::uint64_t>(buckets) / geometry.locations;
    sizes.push_back(std::max<std::uint64_t>(parts, 1) * geometry.locations);
  }
  return sizes;
}

LevelSizes Growth::Smallest() const { return Levels(64); }

LevelSizes Growth::Reach(LevelSizes sizes, double slots) const {
  while (static_cast<double>(SlotsOf(geometry, sizes)) < slots) {
    const std::uint64_t next = Next(sizes.front());
    if (next > kMaxLevelBuckets) break;
    sizes.insert(sizes.begin(), next);
    sizes.resize(geometry.levels);
  }
  return sizes;
}

std::uint64_t SlotsOf(Geometry geometry, const LevelSizes& sizes) {
  std::uint64_t buckets = 0;
  for (std::size_t i = 0; i < geometry.levels; ++i) buckets += sizes[i];
  return buckets * geometry.slots;
}

LevelSizes SizesOf(const Superblock& superblock) {
  LevelSizes sizes;
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    sizes.push_back(superblock.levels[i].buckets);
  }
  return sizes;
}

std::uint64_t SlotsOf(const Superblock& superblock) {
  std::uint64_t buckets = 0;
  for (std::uint32_t i = 0; i < superblock.geometry.levels; ++i) {
    buckets += superblock.levels[i].buckets;
  }
  return buckets * superblock.geometry.slots;
}

}  // namespace gpm
