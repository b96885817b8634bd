#include "table/geometry.h"

#include <fmt/format.h>

#include <charconv>
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

std::uint64_t CapacityAt(Geometry geometry, std::uint32_t top) {
  std::uint64_t buckets = 0;
  for (std::uint32_t i = 0; i < geometry.levels && i <= top; ++i) {
    buckets += std::uint64_t{1} << (top - i);
  }
  return buckets * geometry.slots;
}

}  // namespace gpm
