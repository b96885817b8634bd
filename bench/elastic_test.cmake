# Runs `gpmstore_bench elastic` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(elastic --executor cpu --batch 5000 --steps 4 --growths 2,1.25 --compact-below 0.3)
expect_rows(steps 8 growth step items load_factor pm_bytes pm_bytes_ready pm_bytes_free value_cells
  free_cells level_buckets gpu_bytes insert_mops find_mops erase_mops slowest_ms compact_ms resizes
  pool_growths pool_growth_waits pool_growth_wait_ms displaced_items displacing_ms)
expect_rows(runs 2 growth lowest_load_factor_while_growing most_bytes_of_item mops slowest_ms
  last_pm_bytes)
expect_keys(benchmark machine store rebuild batch erases grow_above compact_below seed)
