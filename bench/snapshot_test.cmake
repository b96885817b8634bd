# Runs `gpmstore_bench snapshot` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(snapshot --executor cpu --records 50000 --batch 2000 --seconds 0.1)
expect_rows(snapshots 3 what items written bytes seconds pause_ms gb_per_s)
expect_keys(benchmark machine store restore batch changed batches_alone_mops batches_beside_mops
  slowest_batch_alone_ms slowest_batch_beside_ms)
