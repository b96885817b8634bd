# Makes GPMStore part of another project's build: configures that by FetchContent and by
# add_subdirectory, builds the latter and runs it.
# cmake -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCXX_COMPILER=... -DCXX_LAUNCHER=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE_RECURSE ${WORK_DIR})
foreach(fetch ON OFF)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/embedder -B ${WORK_DIR} -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
    -DGPMSTORE_SOURCE=${SOURCE_DIR} -DGPMSTORE_FETCH=${fetch} -DGPM_CUDA=OFF)
endforeach()
run(${CMAKE_COMMAND} --build ${WORK_DIR} --parallel 2)
run(${WORK_DIR}/embedder ${WORK_DIR}/embedder.pool)
# Nothing but the embedder's own is installed, or cached as the build's type.
file(STRINGS ${WORK_DIR}/CMakeCache.txt build_type REGEX "^CMAKE_BUILD_TYPE:.*=.+")
if(build_type)
  message(FATAL_ERROR "the parent's build type was set: ${build_type}")
endif()
run(${CMAKE_COMMAND} --install ${WORK_DIR} --prefix ${WORK_DIR}/prefix)
if(EXISTS ${WORK_DIR}/prefix)
  message(FATAL_ERROR "the parent's installation has parts of GPMStore")
endif()
file(REMOVE_RECURSE ${WORK_DIR})
