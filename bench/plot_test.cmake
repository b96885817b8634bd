# Runs scripts/plot_bench.py: on the reports in bench/results and on those that the other tests of
# this folder leave, where matplotlib is installed; without matplotlib; and on what is no report.
# cmake -DPYTHON=... -DSCRIPT=... -DRESULTS=... -DREPORTS=... -DWORK_DIR=... -P this

# plot(expected_status pattern argument...): the output matches, and shows no traceback.
function(plot expected_status pattern)
  execute_process(COMMAND ${PYTHON} ${SCRIPT} --out ${WORK_DIR}/plots ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL expected_status OR NOT output MATCHES "${pattern}" OR output MATCHES "Traceback")
    message(FATAL_ERROR "${ARGN}: exit status ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
set(bad ${WORK_DIR}/bad.json)
foreach(text "" "{" "[]" "3" "{}" "{\"benchmark\": 3}" "{\"benchmark\": \"cpu\"}"
    "{\"benchmark\": [\"cpu\"], \"phases\": []}" "{\"benchmark\": \"cpu\", \"phases\": {}}"
    "{\"benchmark\": \"cpu\", \"phases\": [7]}" "{\"benchmark\": \"workloads\", \"rows\": [{}]}")
  file(WRITE ${bad} "${text}")
  plot(2 "^plot_bench.py: .*bad.json: " ${bad})
endforeach()
plot(2 "no-such-file" no-such-file)

# Without matplotlib: a module of that name that can't be imported comes first.
file(WRITE ${WORK_DIR}/without/matplotlib.py "raise ImportError('not here')\n")
file(GLOB results ${RESULTS}/*.json)
set(path_before "$ENV{PYTHONPATH}")
set(ENV{PYTHONPATH} ${WORK_DIR}/without)
plot(0 "REPORT.json" --help)
plot(2 "needs matplotlib" ${results})
set(ENV{PYTHONPATH} "${path_before}")

execute_process(COMMAND ${PYTHON} -c "import matplotlib" RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  message(STATUS "no matplotlib: nothing was drawn")
  return()
endif()
foreach(text "{\"benchmark\": \"cpu\", \"phases\": [{\"phase\": 1, \"gpmstore_mops\": \"x\"}]}"
    "{\"benchmark\": \"roofline\", \"link\": [{\"kind\": 1, \"order\": 1, \"accesses\": 1, \"mops\": {}}]}")
  file(WRITE ${bad} "${text}")
  plot(2 "not a whole report" ${bad})
endforeach()
foreach(report ${results} ${REPORTS})
  if(NOT EXISTS ${report})
    message(FATAL_ERROR "${report} is not there: run the tests that write it first")
  endif()
endforeach()
plot(0 "svg" ${results} ${REPORTS})
foreach(report ${results} ${REPORTS})
  get_filename_component(name ${report} NAME_WE)
  file(GLOB plots ${WORK_DIR}/plots/*_${name}.svg)
  if(NOT plots)
    message(FATAL_ERROR "${report}: nothing was drawn")
  endif()
endforeach()
list(GET results 0 report)
plot(2 "another report's already" ${report} ${report})
file(REMOVE_RECURSE ${WORK_DIR})
