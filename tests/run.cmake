# run(command [arguments ...]): fails with what the command said. Its output is in run_output.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGN}\n${output}\n${error}")
  endif()
  set(run_output "${output}" PARENT_SCOPE)
endfunction()
