#ifndef GPM_PM_ATTRIBUTES_H_
#define GPM_PM_ATTRIBUTES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/options.h"
#include "pm/format.h"

namespace gpm {

/// The attributes of a pool, as they are named and as they are stored.

/// Why they can't be those of values of so many bytes, and what would be right, or empty.
std::string AttributesDefect(std::span<const Attribute> attributes, std::uint32_t value_size);
/// The same of stored ones, which may be damaged.
std::string AttributesDefect(std::span<const AttributeEntry, kMaxAttributes> entries,
                             std::uint32_t value_size);

/// REQUIRES: they have no defect.
void WriteAttributes(std::span<const Attribute> attributes,
                     std::span<AttributeEntry, kMaxAttributes> entries);
/// REQUIRES: they have no defect.
std::vector<Attribute> ReadAttributes(std::span<const AttributeEntry, kMaxAttributes> entries);

}  // namespace gpm

#endif  // GPM_PM_ATTRIBUTES_H_
