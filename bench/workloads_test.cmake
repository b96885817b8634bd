# Runs `gpmstore_bench workloads` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --records 50000 --operations 40000 --warm-up 20000 --repeats 2)
set(keys workload configuration batch operations mops mops_runs latency_us_p50 latency_us_p99 hit_rate
  directory directory_bytes cache_policy cache_blocks cache_bytes gpu_bytes pm_bytes load_factor)

# All workloads; the last batch of each is shorter than the others.
run_bench(workloads ${small} --batches 1024,16384 --directory --cache 0.2)
expect_rows(rows 15 ${keys} bound_mops bound_limit of_bound bound_terms accesses)
expect_keys(benchmark machine store roofline records operations warm_up repeats distribution theta seed
  threads seconds)
string(JSON hits GET "${report}" rows 0 hit_rate)
if(NOT hits GREATER 0.1)
  message(FATAL_ERROR "workload c hits a cache of a fifth of the buckets at a rate of ${hits}")
endif()

string(JSON bulk GET "${report}" rows 14 batch)
if(NOT bulk EQUAL 50000)
  message(FATAL_ERROR "a bulk load of 50000 records has a row of batch ${bulk}")
endif()

# What changes the items too, in tables of another geometry. d and churn insert, so that f meets a pool that
# was put back; the finds of f and the updates that belong to them are one operation.
run_bench(workloads ${small} --workloads d,churn,f,erase --batches 1024,5000 --geometry 1L-2H-16S --directory)
expect_rows(rows 8 ${keys} bound_mops bound_limit of_bound)
string(JSON geometry GET "${report}" store geometry)
string(JSON f GET "${report}" rows 4)
string(JSON operations GET "${f}" operations)
string(JSON latencies GET "${f}" latencies)
if(NOT geometry STREQUAL "1L-2H-16S" OR NOT operations EQUAL 40000)
  message(FATAL_ERROR "${geometry}, ${operations} operations of f")
endif()
# Some 60000 rows in batches of 1024, twice.
if(latencies LESS 110 OR latencies GREATER 120)
  message(FATAL_ERROR "f of 40000 operations has ${latencies} whole batches of 1024 in 2 repeats")
endif()
run_bench(workloads --executor cpu --records 30000 --operations 40000 --repeats 1 --workloads erase --batches 1024
  --no-roofline)
string(JSON operations GET "${report}" rows 0 operations)
if(NOT operations EQUAL 30000)
  message(FATAL_ERROR "erase of 30000 records measured ${operations} operations")
endif()

# Other sizes, values in the slots, no roofline.
run_bench(workloads ${small} --no-roofline --workloads b,insert,bulk-load --min-batch-log 12
  --max-batch-log 13 --key-size 32 --value-size 8)
expect_rows(rows 5 ${keys})
run_bench(workloads ${small} --workloads find,a --batches 1000 --key-size 32 --value-size 100)
expect_rows(rows 2 ${keys} bound_mops)

refuse_bench("a batch of 65536" workloads ${small} --batches 65536)
refuse_bench("3L-2H-8S" workloads ${small} --batches 1024 --geometry 3L-2H-8S)
refuse_bench("can't be opened again" workloads ${small} --batches 1024 --pool pinned:)
