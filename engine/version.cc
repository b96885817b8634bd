#include "gpmstore/version.h"

namespace gpm {

std::string_view Version() noexcept { return GPMSTORE_VERSION; }

}  // namespace gpm
