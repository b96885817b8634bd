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

# A peer that grows in the store's place: of 5000 inserts and 2000 erases a step 3000 are left, in the end none.
run_bench(elastic --executor cpu --batch 5000 --steps 4 --peer libcuckoo)
expect_rows(steps 4 step items slots load_factor insert_mops find_mops erase_mops slowest_ms)
expect_keys(benchmark machine peer peer_bounds executor key_size value_size batch erases seed)
foreach(step_items 0:3000 1:6000 2:3000 3:0)
  string(REPLACE ":" ";" pair ${step_items})
  list(GET pair 0 step)
  list(GET pair 1 items)
  string(JSON found GET "${report}" steps ${step} items)
  if(NOT found EQUAL items)
    message(FATAL_ERROR "step ${step} leaves ${found} items, not ${items}")
  endif()
endforeach()
refuse_bench("operation [0-9]+ of 5000 insert was no-space" elastic --executor cpu --batch 5000 --steps 8 --peer dash)
refuse_bench("does not say how many slots" elastic --executor cpu --peer unordered_map)
refuse_bench("there are dash,[ \n]+libcuckoo,[ \n]+libcuckoo-malloc,[ \n]+unordered_map" elastic --executor cpu --peer dyhash)
refuse_bench("would be above the upper one" elastic --executor cpu --peer libcuckoo --peer-bounds 0.7,0.9)
refuse_bench("requires --peer" elastic --executor cpu --peer-bounds 0.4,0.9)
refuse_bench("keys of 8[ \n]+or 32 or 128 bytes" elastic --executor cpu --peer libcuckoo --key-size 16)
