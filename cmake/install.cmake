# Installs the library, its headers and what find_package(gpmstore) needs. Included by the top-level
# CMakeLists.txt after the target gpmstore is complete.

include(CMakePackageConfigHelpers)
set(GPM_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/gpmstore)

install(TARGETS gpmstore EXPORT gpmstore-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\"
  \"-DSOURCE_DIR=${CMAKE_CURRENT_SOURCE_DIR}\"
  \"-DDESTINATION=\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\"
  -P \"${CMAKE_CURRENT_SOURCE_DIR}/cmake/install_headers.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
install(EXPORT gpmstore-targets NAMESPACE gpmstore:: DESTINATION ${GPM_PACKAGE_DIR})

configure_package_config_file(
  ${CMAKE_CURRENT_SOURCE_DIR}/cmake/gpmstoreConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/gpmstoreConfig.cmake
  INSTALL_DESTINATION ${GPM_PACKAGE_DIR})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/gpmstoreConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/gpmstoreConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/gpmstoreConfigVersion.cmake
  DESTINATION ${GPM_PACKAGE_DIR})
