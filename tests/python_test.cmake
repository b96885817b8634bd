# Builds the Python package, without CUDA, and runs its tests.
# cmake -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCXX_COMPILER=... -DCXX_LAUNCHER=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

# The Python of scripts/python_env.sh, or else any that has what is needed.
set(python ${SOURCE_DIR}/build-python/env/bin/python)
if(NOT EXISTS ${python})
  find_program(python_found python3)
  set(python ${python_found})
endif()
execute_process(COMMAND ${python} -c "import nanobind, numpy, pytest, sysconfig, os
assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')), 'no Python.h'"
  RESULT_VARIABLE failed ERROR_VARIABLE why)
if(NOT failed EQUAL 0)
  message("skipped: no Python to build for, with nanobind, numpy and pytest (scripts/python_env.sh)")
  message("${why}")
  return()
endif()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
  -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"  # which compiles sooner
  -DPython_EXECUTABLE=${python} -DGPM_PYTHON_PACKAGE=ON -DGPM_CUDA=OFF
  -DGPM_PMEM=OFF -DGPM_TESTS=OFF -DGPM_BENCH=OFF -DGPM_CLI=OFF -DGPM_INSTALL=OFF)
run(${CMAKE_COMMAND} --build ${WORK_DIR} --parallel 2)
file(REMOVE_RECURSE ${WORK_DIR}/site)
run(${CMAKE_COMMAND} --install ${WORK_DIR} --component python --prefix ${WORK_DIR}/site)
run(${CMAKE_COMMAND} -E env PYTHONPATH=${WORK_DIR}/site PYTHONDONTWRITEBYTECODE=1
  ${python} -m pytest -q -p no:cacheprovider ${SOURCE_DIR}/python/tests)
