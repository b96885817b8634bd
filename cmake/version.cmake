# Sets gpmstore_header_version to the version that include/gpmstore/version.h says.

set(gpmstore_header_version)
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/gpmstore/version.h line
    REGEX "^#define GPMSTORE_VERSION_${part} [0-9]+$")
  if(NOT line MATCHES "([0-9]+)$")
    message(FATAL_ERROR "include/gpmstore/version.h has no GPMSTORE_VERSION_${part}")
  endif()
  list(APPEND gpmstore_header_version ${CMAKE_MATCH_1})
endforeach()
list(JOIN gpmstore_header_version "." gpmstore_header_version)
# A changed header is seen by the next build, not only by the next configuration.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_LIST_DIR}/../include/gpmstore/version.h)
