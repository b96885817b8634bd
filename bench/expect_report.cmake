# Shared by the tests of commands that write a report.

# run_bench(argument...): runs the program, which must succeed, and leaves its report in `report` and what it
# printed in `output`; each report says which version made it.
function(run_bench)
  execute_process(COMMAND ${BENCH} ${ARGN} --json ${JSON}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: exit status ${status}\n${output}")
  endif()
  file(READ ${JSON} text)
  string(JSON version ERROR_VARIABLE error GET "${text}" gpmstore_version)
  if(NOT version MATCHES "^[0-9]+[.][0-9]+[.][0-9]+$")
    message(FATAL_ERROR "${ARGN}: gpmstore_version is ${version}")
  endif()
  set(report "${text}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

# refuse_bench(pattern argument...): the program says no, and why.
function(refuse_bench pattern)
  execute_process(COMMAND ${BENCH} ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 2 OR NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN}: exit status ${status}\n${output}")
  endif()
endfunction()

# expect_rows(section rows key...): the section has so many rows, and each has the keys. A figure
# that is a rate or a time is above 0.
function(expect_rows section rows)
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
      if(key MATCHES "^(mops|bound_mops|factor|of_bound|seconds|bound_seconds)$|_us_" AND NOT value GREATER 0)
        message(FATAL_ERROR "${section}, row ${row}: ${key} is ${value}")
      endif()
    endforeach()
  endforeach()
endfunction()

# expect_keys(key...): of the report itself.
function(expect_keys)
  foreach(key ${ARGN})
    string(JSON value ERROR_VARIABLE error GET "${report}" ${key})
    if(error)
      message(FATAL_ERROR "${error}")
    endif()
  endforeach()
endfunction()

# spares_link(argument...): where the last argument, a name for what is made and removed, is that of a link to
# nowhere, the program says so and leaves it.
function(spares_link)
  list(GET ARGN -1 link)
  file(REMOVE ${link})
  file(CREATE_LINK ${link}.nowhere ${link} SYMBOLIC)
  refuse_bench("exists already|file of this name" ${ARGN})
  if(NOT IS_SYMLINK ${link})
    message(FATAL_ERROR "${ARGN}: the link is gone")
  endif()
  file(REMOVE ${link})
endfunction()
