# Runs `gpmstore_bench user` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --records 20000 --operations 20000 --repeats 1)
set(keys workload batch memory refreshes load_mops load_slowest_ms cold_mops cold_hit_rate mops mops_runs hit_rate
  median_ms slowest_ms small_median_ms small_slowest_ms spaced_median_ms asked_mops asked_hit_rate)

run_bench(user ${small} --batches 1024,16384)
expect_rows(rows 6 ${keys} moved_mops moved_hit_rate workloads_mops of_workloads)
expect_keys(benchmark machine store workloads records operations repeats distribution)
run_bench(user ${small} --workloads find-missing --batches 1000 --no-workloads --value-size 8)
expect_rows(rows 1 ${keys})
expect_keys(benchmark machine)

run_bench(user ${small} --workloads c --batches 1000 --no-workloads --memory host,host)
expect_rows(rows 2 ${keys})

refuse_bench("insert" user ${small} --workloads insert)
refuse_bench("can't be opened again" user ${small} --pool pinned:)
