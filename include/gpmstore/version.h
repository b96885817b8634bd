#ifndef GPMSTORE_VERSION_H_
#define GPMSTORE_VERSION_H_

#include <string_view>

/// The version of these headers, MAJOR.MINOR.PATCH. Before 1.0 a minor version may break its users.
/// The build system reads the three numbers here.
#define GPMSTORE_VERSION_MAJOR 0
#define GPMSTORE_VERSION_MINOR 1
#define GPMSTORE_VERSION_PATCH 0

#define GPMSTORE_VERSION_TEXT_OF_(x) #x
#define GPMSTORE_VERSION_TEXT_(x) GPMSTORE_VERSION_TEXT_OF_(x)

/// The same as a string literal, such as "1.2.3".
#define GPMSTORE_VERSION                                                         \
  GPMSTORE_VERSION_TEXT_(GPMSTORE_VERSION_MAJOR)                                 \
  "." GPMSTORE_VERSION_TEXT_(GPMSTORE_VERSION_MINOR) "." GPMSTORE_VERSION_TEXT_( \
      GPMSTORE_VERSION_PATCH)

namespace gpm {

/// The version that the linked library was built as; GPMSTORE_VERSION is that of the headers which
/// its user was compiled with. Thread safety: any thread.
std::string_view Version() noexcept;

}  // namespace gpm

#endif  // GPMSTORE_VERSION_H_
