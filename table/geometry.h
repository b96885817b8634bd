#ifndef GPM_TABLE_GEOMETRY_H_
#define GPM_TABLE_GEOMETRY_H_

#include <string>
#include <string_view>

#include "pm/format.h"

namespace gpm {

/// @throws Error(kInvalidArgument) unless all three are powers of two with a product of at most 32
void ValidateGeometry(Geometry geometry);

/// Slots of the `geometry.levels` levels that end at level `top`.
std::uint64_t CapacityAt(Geometry geometry, std::uint32_t top);

}  // namespace gpm

#endif  // GPM_TABLE_GEOMETRY_H_
