# Runs `gpmstore_bench sweep` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(sweep --executor cpu --records 2000 --batches 1,300 --repeats 2 --key-size 16 --value-size 64)
expect_rows(rows 44 operations keys batch us mops)
expect_keys(benchmark machine store memory)
run_bench(sweep --executor cpu --records 2000 --batches 100 --repeats 1 --value-size 20)
expect_rows(rows 19 batch mops)
refuse_bench("--memory" sweep --memory disk)
