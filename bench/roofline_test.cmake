# Runs `gpmstore_bench roofline` over a small range on the cpu executor, and on cuda where there is a
# GPU, and looks for the keys of its report; and an executor that is not there is refused.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --range-bytes 32M --accesses 1000,20000 --repeats 2)
set(keys kind order accesses bytes mops gb_per_second in_flight)
run_bench(roofline --executor cpu ${small})
expect_rows(link 36 ${keys})
expect_rows(memory 0)
expect_rows(bounds 2 operation accesses mops limit)
expect_keys(benchmark machine executor medium range_bytes cell_bytes repeats threads seconds)

refuse_bench("range" roofline --executor cpu ${small} --range-bytes 16)
string(JSON gpus GET "${report}" machine gpus)
if(gpus EQUAL 0)
  refuse_bench("executor cuda" roofline --executor cuda ${small})
else()
  run_bench(roofline --executor cuda ${small})
  expect_rows(link 48 ${keys})
  expect_rows(memory 3 ${keys})
endif()
