#ifndef GPM_YCSB_PROPERTY_NAMES_H_
#define GPM_YCSB_PROPERTY_NAMES_H_

#include <string>
#include <vector>

#include "ycsb/properties.h"

namespace gpm::ycsb {

/// A line for each name that is no property of YCSB's client and core workload, with the one that
/// was probably meant where one is close: a misspelt name leaves the default in force.
std::vector<std::string> UnknownNameWarnings(const Properties& properties);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_PROPERTY_NAMES_H_
