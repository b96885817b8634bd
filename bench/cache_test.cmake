# Runs `gpmstore_bench cache --quick` and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

execute_process(COMMAND ${BENCH} cache --quick --executor cpu --json ${JSON}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}\n${output}")
endif()
file(READ ${JSON} report)

# expect(section rows key...): the section has so many rows, and the first and last have the keys.
function(expect section rows)
  string(JSON count ERROR_VARIABLE error LENGTH "${report}" ${section})
  if(NOT count EQUAL rows)
    message(FATAL_ERROR "${section}: ${count} rows, not ${rows} (${error})")
  endif()
  math(EXPR last "${rows} - 1")
  foreach(row 0 ${last})
    foreach(key ${ARGN})
      string(JSON value ERROR_VARIABLE error GET "${report}" ${section} ${row} ${key})
      if(error)
        message(FATAL_ERROR "${section}, row ${row}: ${error}")
      endif()
    endforeach()
  endforeach()
endfunction()

expect(sizes 28 workload batch directory policy fraction mops speedup hit_rate best_static)
expect(theta 8 theta batch mops mops_no_cache speedup hit_rate best_static of_best_static)
expect(load 4 workload mode hit_rate_before hit_rate_after load_begin_ms load_end_ms load_seconds steady_mops
  after_mops lowest_mops lowest_of_steady window_mops)
expect(cost 2 workload batch mops mops_no_cache ratio)
foreach(key benchmark machine store records operations warm_up repeats distribution theta seed seconds)
  string(JSON value ERROR_VARIABLE error GET "${report}" ${key})
  if(error)
    message(FATAL_ERROR "${error}")
  endif()
endforeach()
