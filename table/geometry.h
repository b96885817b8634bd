#ifndef GPM_TABLE_GEOMETRY_H_
#define GPM_TABLE_GEOMETRY_H_

#include <string>
#include <string_view>

#include "pm/format.h"

namespace gpm {

/// Parses "2L-2H-8S". @throws Error(kInvalidArgument) saying what would be right
Geometry ParseGeometry(std::string_view text);

/// "2L-2H-8S".
std::string GeometryName(Geometry geometry);

/// @throws Error(kInvalidArgument) unless all three are powers of two with a product of at most 32
void ValidateGeometry(Geometry geometry);

/// Slots of the `geometry.levels` levels that end at level `top`.
std::uint64_t CapacityAt(Geometry geometry, std::uint32_t top);

}  // namespace gpm

#endif  // GPM_TABLE_GEOMETRY_H_
