# Runs `gpmstore_bench peers` on the cpu executor, and looks for the keys of its report; what can't be
# measured is refused.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --records 20000 --batches 512,4096 --repeats 1 --threads 2)
run_bench(peers ${small})
expect_rows(contestants 4 name kinds mixed sequential whole_values grows durable caches builds_once)
expect_rows(rows 48 contestant workload batch fill operations mops mops_runs latency_us_p50 latency_us_p99)
expect_rows(wins 12 workload batch fill winner mops gpmstore_mops)
expect_keys(benchmark machine store executor records operations key_size value_size theta seed threads repeats)
run_bench(peers ${small} --peers none --key-size 4 --value-size 4 --workloads c,a)
expect_rows(rows 6 contestant workload batch fill operations mops mops_runs latency_us_p50 latency_us_p99)
run_bench(peers ${small} --peers none --cached 0.2 --no-ordering --dealt-up-to 1 --workloads c)
expect_rows(rows 4 contestant workload batch fill operations mops mops_runs latency_us_p50 latency_us_p99)
run_bench(peers ${small} --no-store --peers libcuckoo --workloads find)
expect_rows(rows 4 contestant workload batch fill operations mops mops_runs latency_us_p50 latency_us_p99)

# Every workload, and two fills; what a workload needs to be warm is made where it is not measured.
run_bench(peers ${small} --no-store --peers dash,libcuckoo --fill 0.5,0.7
  --workloads a,b,d,erase,f)
expect_rows(rows 48 contestant workload batch fill operations mops mops_runs latency_us_p50 latency_us_p99)

refuse_bench("nobody is left" peers ${small} --no-store --peers none)
refuse_bench("there is no such peer; there are dash,[ \n]+libcuckoo,[ \n]+libcuckoo-malloc,[ \n]+unordered_map,[ \n]+and[ \n]+none" peers ${small} --peers std)
refuse_bench("keys of 8[ \n]+or 32 or 128 bytes" peers ${small} --peers libcuckoo --key-size 4)
refuse_bench("compiled for values of 128" peers ${small} --peers libcuckoo --value-size 32)
refuse_bench("there are insert, find, find-missing, c, a, update, b, d, f, erase" peers ${small} --workloads e)
refuse_bench("a batch has 1 to 20000 operations" peers ${small} --batches 0)
refuse_bench("keys of 8 bytes" peers ${small} --peers dash --key-size 32)
