# Runs `gpmstore_bench limits` on the cpu executor over a small range, and looks for the keys of its
# report; and an executor that is not there is refused.
# cmake -DBENCH=... -DJSON=... -P this

set(small --range-bytes 32M --accesses 1000,20000 --repeats 2)
execute_process(COMMAND ${BENCH} limits --executor cpu ${small} --json ${JSON}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}\n${output}")
endif()
file(READ ${JSON} report)

# expect(section rows key...): the section has so many rows, and each has the keys.
function(expect section rows)
  string(JSON count ERROR_VARIABLE error LENGTH "${report}" ${section})
  if(NOT count EQUAL rows)
    message(FATAL_ERROR "${section}: ${count} rows, not ${rows} (${error})")
  endif()
  if(rows EQUAL 0)
    return()
  endif()
  math(EXPR last "${rows} - 1")
  foreach(row RANGE ${last})
    foreach(key ${ARGN})
      string(JSON value ERROR_VARIABLE error GET "${report}" ${section} ${row} ${key})
      if(error)
        message(FATAL_ERROR "${section}, row ${row}: ${error}")
      endif()
      if(key STREQUAL "mops" AND NOT value GREATER 0)
        message(FATAL_ERROR "${section}, row ${row}: a rate of ${value}")
      endif()
    endforeach()
  endforeach()
endfunction()

expect(link 24 kind order accesses bytes mops gb_per_second in_flight)
expect(memory 0)
expect(bounds 4 operation accesses mops limit)
foreach(key benchmark machine executor medium range_bytes cell_bytes repeats threads seconds)
  string(JSON value ERROR_VARIABLE error GET "${report}" ${key})
  if(error)
    message(FATAL_ERROR "${error}")
  endif()
endforeach()

execute_process(COMMAND ${BENCH} limits --executor cpu ${small} --range-bytes 16
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 2 OR NOT output MATCHES "range")
  message(FATAL_ERROR "a range of 16 bytes: exit status ${status}\n${output}")
endif()

string(JSON gpus GET "${report}" machine gpus)
if(gpus EQUAL 0)
  execute_process(COMMAND ${BENCH} limits --executor cuda ${small}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 2 OR NOT output MATCHES "executor cuda")
    message(FATAL_ERROR "executor cuda without a GPU: exit status ${status}\n${output}")
  endif()
endif()
