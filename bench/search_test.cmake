# Runs `gpmstore_bench search` on the cpu executor, small, and looks for the keys of its report.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
run_bench(search --executor cpu --records 20000 --batch 500 --repeats 2)
expect_rows(searches 21 what indexed scanned queries matches_each seconds queries_per_s matches_per_s)
# Groups of 1, 10, 100, 1000 and 10000 of the 20000 items.
expect_rows(contest_searches 14 contestant what queries matches_each seconds queries_per_s matches_per_s)
expect_rows(contest_mixes 6 contestant batches_a_round inserts erases searches updates ops_per_s)
expect_rows(writes 8 kind batch indexed ops_per_s with_search_ops_per_s)
expect_keys(benchmark machine store batch index_build_seconds index_bytes pair_seconds)

run_bench(search --executor cpu --records 20000 --batch 500 --repeats 1 --queries 64)
expect_rows(contest_searches 12 contestant what queries matches_each seconds queries_per_s matches_per_s)

refuse_bench("--peers: ghsh is none that searches by attributes on executor cpu" search --executor cpu --peers ghsh)
refuse_bench("nobody is left" search --executor cpu --no-store)

# A round of as many operations as there are items, and of one more.
run_bench(search --executor cpu --records 1500 --batch 1500 --queries 10 --repeats 2 --peers none)
expect_rows(contest_mixes 6 contestant ops_per_s)
refuse_bench("--batch 1501: more operations than the 1500 items" search --executor cpu --records 1500 --batch 1501)
