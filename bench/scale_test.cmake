# Runs `gpmstore_bench scale` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --threads 1 --records 3000 --batch 500 --batches 2)
run_bench(scale ${small} --ranks 1,3)
expect_rows(rows 12 work ranks mops batch_ms)
expect_keys(benchmark machine store records batch strong devices memory exchange seed)
run_bench(scale ${small} --ranks 0,2 --strong)
expect_rows(rows 12 work ranks mops batch_ms)
refuse_bench("exists already" scale --folder ${CMAKE_CURRENT_LIST_DIR})
