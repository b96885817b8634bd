# Runs `gpmstore_bench paper` for each figure on the cpu executor, small, and looks for the keys of its report and
# for relations that no clock decides.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --scale 0.001 --repeats 1 --commit tested)
set(keys series workload batch operations mops latency_us_p50 latency_us_p99 hit_rate key_size value_size theta
  geometry)

# expect_value(value path...): of the report.
function(expect_value expected)
  string(JSON value GET "${report}" ${ARGN})
  if(NOT value STREQUAL expected)
    message(FATAL_ERROR "${ARGN} is ${value}, not ${expected}")
  endif()
endfunction()

# 16000 records: batches of 2^10 and 2^12, ten workloads.
foreach(figure_key_size 5:8 6:32)
  string(REPLACE ":" ";" pair ${figure_key_size})
  list(GET pair 0 figure)
  list(GET pair 1 key_size)
  run_bench(paper --figure ${figure} ${small})
  expect_rows(rows 20 ${keys})
  expect_keys(benchmark machine store figure scale records repeats commit gpmstore_version)
  expect_value(tested commit)
  expect_value(${figure} figure)
  expect_value(16000 records)
  expect_value(${key_size} rows 0 key_size)
  expect_value(find rows 0 series)
  expect_value(1024 rows 0 batch)
  expect_value(4096 rows 1 batch)
  expect_value(f rows 19 series)
endforeach()

# 16 batches of 1000 inserts: nothing is lost, and the table is never fuller than full.
run_bench(paper --figure 7 ${small})
expect_rows(rows 16 series geometry items load_factor resizes)
expect_value(16000 rows 15 items)
string(JSON most GET "${report}" maximum_load_factor)
if(most LESS_EQUAL 0.3 OR most GREATER 1)
  message(FATAL_ERROR "the maximum load factor is ${most}")
endif()
foreach(row RANGE 15)
  string(JSON load GET "${report}" rows ${row} load_factor)
  if(load GREATER most)
    message(FATAL_ERROR "row ${row} is ${load} full, the maximum is ${most}")
  endif()
endforeach()

# Five key sizes, four skews. A cache of a fifth of the buckets serves more of what is more skewed.
run_bench(paper --figure 12 ${small})
expect_rows(rows 9 ${keys})
expect_value(128 rows 4 key_size)
string(JSON even GET "${report}" rows 5 hit_rate)
string(JSON skewed GET "${report}" rows 8 hit_rate)
if(NOT skewed GREATER even)
  message(FATAL_ERROR "hit rate ${skewed} with theta 0.99, ${even} with 0.5")
endif()

run_bench(paper --figure 13 ${small})
expect_rows(rows 12 ${keys} maximum_load_factor)
expect_value(2L-2H-8S rows 8 series)
expect_value(2L-2H-8S rows 8 geometry)

refuse_bench("--figure" paper --figure 10 --executor cpu --json ${JSON})
refuse_bench("--scale" paper --figure 5 --scale 0 --json ${JSON})
refuse_bench("--json" paper --figure 5)
