# Installs the library, its headers and what find_package(gpmstore) needs. Included by the top-level
# CMakeLists.txt after the target gpmstore is complete.

include(CMakePackageConfigHelpers)
set(GPM_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/gpmstore)

install(TARGETS gpmstore EXPORT gpmstore-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(GPM_INSTALLED_HEADERS ${CMAKE_CURRENT_BINARY_DIR}/installed_headers)
install(CODE "
  file(REMOVE_RECURSE \"${GPM_INSTALLED_HEADERS}\")
  execute_process(COMMAND \"${CMAKE_COMMAND}\"
    \"-DSOURCE_DIR=${CMAKE_CURRENT_SOURCE_DIR}\" \"-DDESTINATION=${GPM_INSTALLED_HEADERS}\"
    -P \"${CMAKE_CURRENT_SOURCE_DIR}/cmake/install_headers.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY ${GPM_INSTALLED_HEADERS}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT gpmstore-targets NAMESPACE gpmstore:: DESTINATION ${GPM_PACKAGE_DIR})
if(TARGET gpmstore_mpi)  # for find_package(gpmstore COMPONENTS mpi)
  set_target_properties(gpmstore_mpi PROPERTIES EXPORT_NAME mpi)
  install(TARGETS gpmstore_mpi EXPORT gpmstore-mpi-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT gpmstore-mpi-targets NAMESPACE gpmstore:: DESTINATION ${GPM_PACKAGE_DIR})
endif()

if(TARGET gpmstore_nccl)  # for find_package(gpmstore COMPONENTS nccl)
  set_target_properties(gpmstore_nccl PROPERTIES EXPORT_NAME nccl)
  install(TARGETS gpmstore_nccl EXPORT gpmstore-nccl-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT gpmstore-nccl-targets NAMESPACE gpmstore:: DESTINATION ${GPM_PACKAGE_DIR})
  cmake_path(GET NCCL_LIBRARY PARENT_PATH GPM_NCCL_DIR)
endif()

if(GPM_HAVE_CUDA)
  get_target_property(GPM_CUDART_LIBRARY CUDA::cudart_static IMPORTED_LOCATION)
  if(NOT GPM_CUDART_LIBRARY)
    set(GPM_CUDART_LIBRARY ${CUDA_cudart_static_LIBRARY})
  endif()
  cmake_path(GET GPM_CUDART_LIBRARY PARENT_PATH GPM_CUDART_DIR)
endif()
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

# For builds without CMake: pkg-config --cflags --libs gpmstore, with -std=c++20 and a C++ linker.
file(RELATIVE_PATH GPM_PKGCONFIG_PREFIX
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
set(GPM_PKGCONFIG_REQUIRES fmt)
set(GPM_PKGCONFIG_LIBS "-pthread")
if(GPM_HAVE_PMEM)
  string(APPEND GPM_PKGCONFIG_REQUIRES ", libpmem")
endif()
if(GPM_HAVE_CUDA)
  string(APPEND GPM_PKGCONFIG_LIBS " ${GPM_CUDART_LIBRARY} -ldl -lrt")
endif()
configure_file(${CMAKE_CURRENT_SOURCE_DIR}/cmake/gpmstore.pc.in
  ${CMAKE_CURRENT_BINARY_DIR}/gpmstore.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gpmstore.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
