# Runs `gpmstore_bench recovery` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
foreach(sizes "8;128" "32;8")
  list(GET sizes 0 key_size)
  list(GET sizes 1 value_size)
  run_bench(recovery --executor cpu --records 50000 --repeats 2 --key-size ${key_size}
    --value-size ${value_size})
  expect_rows(rows 3 what seconds seconds_runs read_bytes small_writes bound_seconds of_bound)
  expect_keys(benchmark machine store roofline records repeats seed seconds)
  foreach(row 0 1)
    string(JSON seconds GET "${report}" rows ${row} recovery_seconds)
    string(JSON all GET "${report}" rows ${row} seconds)
    if(seconds GREATER all)
      message(FATAL_ERROR "recovery took ${seconds} s of ${all}")
    endif()
  endforeach()
endforeach()
