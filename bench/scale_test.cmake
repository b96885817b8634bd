# Runs `gpmstore_bench scale` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --executor cpu --threads 1 --records 3000 --batch 500 --batches 2)
run_bench(scale ${small} --ranks 0,2 --strong)
expect_rows(rows 14 work ranks mops batch_ms)
run_bench(scale ${small} --ranks 0,1,2 --in-flight 3)
expect_rows(rows 21 work ranks mops batch_ms)
run_bench(scale ${small} --ranks 1,3)
expect_rows(rows 14 work ranks mops batch_ms)
expect_rows(bounds 2 ranks copy_gb_s to_others_gb_s from_host_gb_s to_host_gb_s multisplit_gb_s exchange_gb_s)
foreach(what copy to_others multisplit exchange)
  string(JSON rate GET "${report}" bounds 1 ${what}_gb_s)
  if(NOT rate GREATER 0)
    message(FATAL_ERROR "${what}: ${rate} GB/s of three ranks")
  endif()
endforeach()
expect_keys(benchmark machine store records batch strong devices memory exchange in_flight seed)
# A signal that ends it removes the folder with its pools.
set(folder ${JSON}.pools)
file(REMOVE_RECURSE ${folder})
execute_process(COMMAND sh -c "\"$@\" & pid=$!
    for i in $(seq 300); do ls ${folder}/*.pool >/dev/null 2>&1 && break; sleep 0.1; done
    kill -TERM $pid; wait $pid; test $? = 143"
  sh ${BENCH} scale --executor cpu --threads 1 --records 100000 --batches 10000 --ranks 1 --folder ${folder}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0 OR EXISTS ${folder})
  message(FATAL_ERROR "a signal did not end it, or left ${folder}: ${status}\n${output}")
endif()
refuse_bench("exists already" scale --folder ${CMAKE_CURRENT_LIST_DIR})
spares_link(scale ${small} --ranks 1 --folder ${JSON}.link)
