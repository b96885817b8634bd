# Runs `gpmstore_bench capacity` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(capacity --executor cpu --items 5000 --batch 500 --finds 5000)
expect_rows(rows 5 policy find_mops insert_mops evictions evicted)
expect_keys(benchmark machine items batch)
spares_link(capacity --executor cpu --items 1000 --pool ${JSON}.link)
refuse_bench("would be removed" capacity --executor cpu --items 1000 --pool ${JSON}.pool --json ${JSON}.pool)
