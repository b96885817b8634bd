# Runs `gpmstore_bench find-or-insert` on the cpu executor, small, and looks for the keys of its
# report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(find-or-insert --executor cpu --records 20000 --batches 100,3000 --repeats 2)
expect_rows(rows 2 batch find_or_insert_ms find_then_insert_ms find_or_insert_mops times)
expect_keys(benchmark machine store missing)
