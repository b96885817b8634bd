# A rank of a job is killed in the middle of batches; MPI then ends the others. What any rank has seen
# acknowledged is there, and each key has one batch's value.
#
# PROGRAM: mpi_test. MPIRUN: how to start a job of three ranks, a list. FOLDER: to work in.

foreach(round RANGE 1 3)
  file(REMOVE_RECURSE ${FOLDER})
  file(MAKE_DIRECTORY ${FOLDER})
  execute_process(COMMAND ${MPIRUN} ${PROGRAM} kill ${FOLDER}/store
    RESULT_VARIABLE killed OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 120)
  if(killed EQUAL 0 OR killed MATCHES "timeout")
    message(FATAL_ERROR "the job ended with ${killed}: ${output}")
  endif()
  execute_process(COMMAND ${PROGRAM} check ${FOLDER}/store
    RESULT_VARIABLE wrong OUTPUT_VARIABLE checked ERROR_VARIABLE checked)
  if(NOT wrong EQUAL 0)
    message(FATAL_ERROR "round ${round}: ${checked}\n${output}")
  endif()
  if(checked MATCHES "^0 ")
    message(FATAL_ERROR "round ${round}: no batch was acknowledged: ${output}")
  endif()
endforeach()
file(REMOVE_RECURSE ${FOLDER})
