# Installs the build into a prefix of its own, and configures, builds and runs what embeds it:
#  - examples/embed, without a CUDA toolkit in reach; tests/embedder likewise, with warnings as errors
#  - examples/pagerank and examples/dlrm_inference (what they do: applications_test)
#  - examples/device_view, where there is CUDA (built only: there may be no GPU)
#  - examples/ranks, where there is MPI
#  - tests/embedder by pkg-config, where there is pkg-config
# cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCXX_COMPILER=...
#   -DCUDA_COMPILER=(or nothing) -DCUDA_ARCHITECTURES=... -DMPIRUN=(or nothing) -P this

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(prefix ${WORK_DIR}/prefix)
# build(folder [CMAKE-ARGUMENTS ...])
function(build source)
  cmake_path(GET source FILENAME name)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/${source} -B ${WORK_DIR}/${name} -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/${name})
endfunction()
# run_on_pool(program): the program makes a pool.
function(run_on_pool program)
  run(${program} ${program}.pool)
  if(NOT EXISTS ${program}.pool)
    message(FATAL_ERROR "${program} ran, but left no pool at ${program}.pool")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})

build(examples/embed -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
run_on_pool(${WORK_DIR}/embed/embed)
build(tests/embedder -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
run_on_pool(${WORK_DIR}/embedder/embedder)

foreach(name pagerank dlrm_inference)
  build(examples/${name} -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
  run(${WORK_DIR}/${name}/${name} --help)
endforeach()

file(WRITE ${WORK_DIR}/lacks/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(lacks LANGUAGES CXX)
find_package(gpmstore REQUIRED COMPONENTS voodoo)
")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/lacks -B ${WORK_DIR}/lacks/build -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix} OUTPUT_QUIET ERROR_VARIABLE error)
if(NOT error MATCHES "it has no component voodoo")
  message(FATAL_ERROR "not said what is missing:\n${error}")
endif()

if(MPIRUN)  # its last argument is to be the number of processes
  build(examples/ranks -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
  execute_process(COMMAND ${MPIRUN} 2 ${CMAKE_COMMAND} -E true RESULT_VARIABLE no_mpi OUTPUT_QUIET ERROR_QUIET)
  if(no_mpi EQUAL 0)
    foreach(ranks 1 2)  # the second time on what the first has counted
      run(${MPIRUN} ${ranks} ${WORK_DIR}/ranks/ranks ${WORK_DIR}/counts)
    endforeach()
  endif()
endif()

if(CUDA_COMPILER)
  build(examples/device_view -DCMAKE_CUDA_COMPILER=${CUDA_COMPILER}
    -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES})
  # Also in a project that insists on C++20.
  build(examples/device_view -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_STANDARD_REQUIRED=ON)
endif()

find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  file(GLOB_RECURSE pc ${prefix}/*/gpmstore.pc)
  cmake_path(GET pc PARENT_PATH pc_dir)
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_dir} ${PKG_CONFIG} --cflags --libs gpmstore)
  separate_arguments(flags UNIX_COMMAND "${run_output}")
  run(${CXX_COMPILER} -std=c++20 ${SOURCE_DIR}/tests/embedder/main.cc
    -o ${WORK_DIR}/by_pkg_config ${flags})
  run_on_pool(${WORK_DIR}/by_pkg_config)
endif()
file(REMOVE_RECURSE ${WORK_DIR})
