# Runs `gpmstore_bench cpu` with each peer, and looks for the keys of its report; and a peer that is
# not there is refused.
# cmake -DBENCH=... -DJSON=... -P this

include(${CMAKE_CURRENT_LIST_DIR}/expect_report.cmake)
set(small --records 20000 --runs 1 --threads 2)
run_bench(cpu ${small} --peer none --value-size 32)
expect_rows(phases 5 phase operations checksum gpmstore_mops)
foreach(peer libcuckoo unordered_map)
  run_bench(cpu ${small} --peer ${peer})
  expect_rows(phases 5 phase operations checksum gpmstore_mops peer_mops ratio)
  expect_keys(benchmark machine store records operations threads batch runs theta seed peer)
  if(NOT output MATCHES "gpmstore / ${peer}: ")
    message(FATAL_ERROR "--peer ${peer} printed:\n${output}")
  endif()
endforeach()

refuse_bench("there is no such peer; there are dash,[ \n]+libcuckoo,[ \n]+libcuckoo-malloc,[ \n]+unordered_map,[ \n]+and[ \n]+none" cpu ${small} --peer std)
refuse_bench("'010' has a leading zero" cpu ${small} --batch 010)
refuse_bench("'nan' is not a number" cpu ${small} --theta nan)
refuse_bench("'-1' is not a whole number" cpu ${small} --seed -1)
refuse_bench("/nonexistent/report: can't be written" cpu --records 1000000000 --json /nonexistent/report)
refuse_bench("compiled for values of 128" cpu ${small} --peer libcuckoo --value-size 32)
