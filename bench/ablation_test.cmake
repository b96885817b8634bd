# Runs `gpmstore_bench ablation` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(ablation --executor cpu --records 50000 --operations 40000 --warm-up 20000 --repeats 1
  --batches 1024,16384)
expect_rows(rows 30 workload configuration batch mops factor hit_rate bound_mops of_bound
  latency_us_p50 latency_us_p99 directory cache_bytes)
expect_rows("published;figures" 36 system workload batch mops)
expect_keys(benchmark machine store roofline published records operations repeats seconds)

# Each step has what it is called by, and the first is what the others are compared with.
foreach(expected "0 no.accelerators OFF OFF" "2 [+].directory ON OFF" "4 [+].hot.values ON ON")
  separate_arguments(expected)
  list(GET expected 0 row)
  list(GET expected 1 name)
  string(JSON configuration GET "${report}" rows ${row} configuration)
  if(NOT configuration MATCHES "^${name}$")
    message(FATAL_ERROR "row ${row}: ${configuration}")
  endif()
  list(GET expected 2 directory)
  string(JSON has_directory GET "${report}" rows ${row} directory)
  if(NOT has_directory STREQUAL directory)
    message(FATAL_ERROR "${configuration}: directory ${has_directory}")
  endif()
  list(GET expected 3 cache)
  string(JSON blocks GET "${report}" rows ${row} cache_blocks)
  if((cache AND blocks EQUAL 0) OR (NOT cache AND blocks GREATER 0))
    message(FATAL_ERROR "${configuration}: ${blocks} cached buckets")
  endif()
endforeach()
string(JSON factor GET "${report}" rows 0 factor)
if(NOT factor EQUAL 1)
  message(FATAL_ERROR "the first step has factor ${factor}")
endif()

# A workload of which each step has one row, whatever the batch sizes.
run_bench(ablation --executor cpu --records 50000 --operations 40000 --repeats 1 --batches 1024,16384
  --no-roofline --workloads bulk-load)
expect_rows(rows 3 workload configuration batch mops factor)
