# Runs `gpmstore_bench cache --quick` and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(cache --quick --executor cpu)
expect_rows(sizes 36 workload batch directory policy fraction mops speedup hit_rate best_static)
expect_rows(theta 8 theta batch mops mops_no_cache speedup hit_rate best_static of_best_static)
expect_rows(load 4 workload mode hit_rate_before hit_rate_after load_begin_ms load_end_ms load_seconds
  steady_mops after_mops lowest_mops lowest_of_steady window_mops)
expect_rows(cost 2 workload batch mops mops_no_cache ratio)
expect_keys(benchmark machine store records operations warm_up repeats distribution theta seed
  seconds)
