#!/usr/bin/env bash
# On a machine with a GPU: the tests labelled gpu, compute-sanitizer over them, and the YCSB figures,
# from binaries that were built before (here or elsewhere).
#
#   scripts/gpu.sh BUILD_DIR OUT_DIR PHASE...     phases: tests, forced_pmem, sanitizer,
#                                                 kills, stress, stress_sanitizer, replay, speed,
#                                                 pair, user, middle, host_arrays, large, elastic,
#                                                 search, python, embedding, applications,
#                                                 several;
#                                                 stress_begin and stress_end, for a stress that
#                                                 goes on between two calls (the first:
#                                                 stress_begin beside; the second: stress_end, ...)
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
out=$2
shift 2
mkdir -p "$out"
failed=0
export GPM_TEST_EXECUTOR=cuda

run() { # run NAME COMMAND...: a line with the outcome, the log in $out
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "ok     $name ($((SECONDS - start)) s)"
  else
    failed=1
    echo "FAILED $name ($((SECONDS - start)) s)"
    grep -E "Failure|FAILED|error|Error|=========" "$out/$name.log" | head -n 20
    tail -n 15 "$out/$name.log"
  fi
}

gpu_tests=(cuda_test cuda_streams_test cuda_queues_test cuda_compose_test cuda_copier_test
  cuda_grouping_test cuda_search_test search_test export_test capacity_test store_test
  row_operations_test space_test draining_test
  composed_growth_test snapshot_test snapshot_schedule_test snapshot_disk_test recovery_test model_test
  cache_test fault_test failure_test kill_test typed_store_test profiler_test ycsb_test
  cuda_splitter_test cuda_shard_test shard_test memory_nodes_test peers_test cli_test)

phase_tests() {
  run device_view_example "$build/examples/device_view/device_view"
  for name in ${TESTS:-${gpu_tests[@]}}; do
    run "$name" timeout 300 "$build/tests/$name"
  done
}

phase_forced_pmem() { # the lines that kernels wrote are flushed through libpmem
  for name in cuda_test recovery_test; do
    run "$name-forced-pmem" env PMEM_IS_PMEM_FORCE=1 timeout 240 "$build/tests/$name"
  done
  run model_test-forced-pmem env PMEM_IS_PMEM_FORCE=1 GPM_TEST_OPS=1000000 timeout 240 \
    "$build/tests/model_test"
}

phase_sanitizer() {
  for tool in memcheck racecheck; do
    # (Those left out have batches so large that they take too long.)
    run "$tool-cuda_test" timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$build/tests/cuda_test" --gtest_filter='-*EverySize*:*HowPersistent*:*Beside*'
    run "$tool-cache_test" timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$build/tests/cache_test" --gtest_filter='CacheTest.*'
    run "$tool-model_test" env GPM_TEST_OPS=60000 timeout 240 compute-sanitizer --tool "$tool" \
      --error-exitcode 9 "$build/tests/model_test"
    run "$tool-cuda_search_test" timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$build/tests/cuda_search_test" --gtest_filter='-*ManyItems*'
    run "$tool-search_index_test" timeout 240 compute-sanitizer --tool "$tool" \
      --error-exitcode 9 "$build/tests/search_test" --gtest_filter='SearchIndexTest.FollowsWhatChanges'
  done
}

phase_kills() { # processes that are killed in the middle of batches on the GPU, 240 in all
  local key value
  for size in 8:128 32:8 16:100; do
    key=${size%:*} value=${size#*:}
    run "crash-test-key$key-value$value" timeout 400 "$build/cli/gpmstore" crash-test \
      --executor cuda --rounds "${KILL_ROUNDS:-80}" --jobs "${KILL_JOBS:-5}" --seed "${SEED:-1}" \
      --key-size "$key" --value-size "$value" --threads 4 --tickets 2 --max-batch 262144 \
      --longest 500 --pool "/dev/shm/gpmstore_kill_$key.pool"
    cat "$out/crash-test-key$key-value$value.log"
  done
}

phase_stress() { # batches of all sizes from many threads and streams; under the sanitizers, a short one
  run stress timeout $((${STRESS_SECONDS:-480} + 120)) "$build/cli/gpmstore" stress \
    --executor cuda --threads 8 --seconds "${STRESS_SECONDS:-480}" --seed "${SEED:-1}"
  cat "$out/stress.log"
}

stress_log=/tmp/gpmstore_stress.log

phase_stress_begin() { # in a session of its own, so that it outlives this call; other phases run beside
  rm -f "$stress_log" "$stress_log.rc"
  setsid bash -c 'timeout $(($1 + 120)) "$2" stress --executor cuda --threads 8 --seconds "$1" \
    --seed "$3" >"$4" 2>&1; echo $? >"$4.rc"' - "${STRESS_SECONDS:-480}" "$build/cli/gpmstore" \
    "${SEED:-1}" "$stress_log" </dev/null >/dev/null 2>&1 &
}

phase_stress_end() { # waits for what stress_begin started, and says how it ended
  while [ ! -e "$stress_log.rc" ] && pgrep -x gpmstore >/dev/null; do sleep 1; done
  run stress-outcome test "$(cat "$stress_log.rc")" = 0
  cp "$stress_log" "$out/stress.log"
  cat "$stress_log"
}

phase_beside() { # beside a stress: what takes no times, several phases at once; nothing of it is left running
  local pid pids=()
  beside() { # beside NAME PHASE...
    local name=$1
    shift
    scripts/gpu.sh "$build" "$out/$name" "$@" >"$out/beside-$name.log" 2>&1 &
    pids+=($!)
  }
  TESTS="${gpu_tests[*]:0:9}" beside tests tests
  TESTS="${gpu_tests[*]:9}" beside more-tests tests
  beside kills kills stress_sanitizer
  beside media forced_pmem replay
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  cat "$out"/beside-*.log
}

phase_stress_sanitizer() {
  run memcheck-stress timeout 400 compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$build/cli/gpmstore" stress --executor cuda --threads 4 --seed "${SEED:-1}" \
    --seconds "${SANITIZER_SECONDS:-40}" --hang-seconds 300 --max-batch 20000
  # One kernel after another: with several streams, no batch ended any more under racecheck.
  run racecheck-stress timeout 400 env CUDA_LAUNCH_BLOCKING=1 compute-sanitizer --tool racecheck \
    --error-exitcode 9 "$build/cli/gpmstore" stress --executor cuda --threads 1 \
    --seed "${SEED:-1}" --seconds "${SANITIZER_SECONDS:-40}" --hang-seconds 300 --max-batch 20000
  cat "$out/memcheck-stress.log" "$out/racecheck-stress.log"
}

phase_replay() { # every executor, every batch size: the same results, and those of a dictionary
  local data=tests/data w batch executor
  for w in a d f; do
    for executor in cpu cuda; do
      for batch in 1 7 4096 1048576; do
        run "replay-$w-$executor-$batch" "$build/cli/gpmstore" replay \
          --load "$data/workload$w.load.txt.gz" --run "$data/workload$w.run.txt.gz" \
          --batch "$batch" --executor "$executor" --results "/tmp/replay-$w-$executor-$batch"
        cmp "/tmp/replay-$w-$executor-$batch" "/tmp/replay-$w-cpu-1" || failed=1
      done
    done
    python3 scripts/replay_dictionary.py "$data/workload$w.load.txt.gz" \
      "$data/workload$w.run.txt.gz" | cmp - "/tmp/replay-$w-cpu-1" &&
      echo "ok     replay-$w equals the dictionary" || failed=1
  done
}

phase_applications() { # GPHash's figure 10, on data that is drawn; the results are checked
  local pool=/dev/shm/gpmstore_application.pool name
  for name in "pagerank --scale ${SCALE:-20}" "dlrm_inference --lines 1000000 --passes 2"; do
    rm -f "$pool"
    # shellcheck disable=SC2086  # name and options
    run "${name%% *}" timeout 300 "$build/examples/${name%% *}"/$name --executor cuda --pool "$pool"
    cat "$out/${name%% *}.log"
  done
  rm -f "$pool"
}

phase_speed() { # 16 M records, 8-byte keys, 128-byte values, pool on tmpfs
  local pool=/dev/shm/gpmstore_speed.pool records=16000000 w batch key
  for key in ${KEY_SIZES:-8}; do
    for batch in 4096 65536 1048576; do
      local operations=$((batch == 4096 ? 4000000 : 16000000)) run_phase
      rm -f "$pool"
      for w in load c a find find-missing update; do
        run_phase=(--operations "$operations")
        if [ "$w" = load ]; then run_phase=(); fi
        run "ycsb-$w-$batch-key$key" timeout 200 "$build/cli/gpmstore" ycsb -w "$w" \
          --records "$records" "${run_phase[@]}" --key-size "$key" --batch "$batch" \
          --executor cuda --pool "$pool" --keep --json "$out/ycsb-$w-$batch-key$key.json"
        grep -iE "mops|ops/s|throughput" "$out/ycsb-$w-$batch-key$key.log"
      done
    done
    run "check-key$key" "$build/cli/gpmstore" check "$pool"
    rm -f "$pool"
  done
}

phase_pair() { # beside $BASE, a gpmstore_bench of another commit: medians on one machine
  local which bench
  for which in base head; do
    bench=$build/bench/gpmstore_bench
    if [ "$which" = base ]; then bench=$BASE; fi
    run "workloads-$which" timeout 300 "$bench" workloads --executor cuda --cache 0.2 \
      --workloads c,b,a,find,find-missing,insert --batches 4096,1048576 --repeats 3 \
      --warm-up 16777216 --operations 8388608 "$([ "$which" = base ] && echo --no-limits || echo --no-roofline)" \
      --json "$out/workloads-$which.json"
    grep -vE "^(warning|\[)" "$out/workloads-$which.log" | tail -n 20
  done
}

phase_python() { # arrays of the libraries that are there; the package is $PYTHONPATH's
  run python timeout 400 python3 -m pytest -q -p no:cacheprovider python/tests/test_gpu_arrays.py \
    python/tests/test_store.py python/tests/test_items.py python/tests/test_rows.py \
    python/tests/test_torch.py python/tests/test_examples.py python/tests/test_gpu_ranks.py
}

phase_embedding() { # figures of gpmstore.torch and of what Python adds to a find
  run embedding timeout 500 python3 python/bench/embedding.py --json "$out/embedding.json"
  cat "$out/embedding.log"
}

bench() { # bench NAME COMMAND...: figures of gpmstore_bench, and their report
  run "$1" timeout 300 "$build/bench/gpmstore_bench" "$2" --executor cuda "${@:3}" --json "$out/$1.json"
  grep -vE "^(warning|\[)" "$out/$1.log"
}

phase_user() { # what a user gets: default options, an empty pool, a cold cache
  bench user user --no-roofline --workloads "${USER_WORKLOADS:-c,b,a}" \
    --batches "${USER_BATCHES:-4096,16384,65536,1048576}" --repeats "${REPEATS:-1}" \
    --operations 8388608
}

phase_middle() { # batches from small to large, each kind
  bench middle workloads --no-roofline --repeats "${REPEATS:-3}" --operations 4194304 \
    --workloads b,a,insert --batches 4096,5000,8192,16384,65536,1048576
  bench finds workloads --no-roofline --repeats "${REPEATS:-3}" --operations 8388608 \
    --workloads c,find,bulk-load --batches 4096,1048576
}

phase_host_arrays() { # batches in pinned, and in other, host memory
  local memory
  for memory in pinned host; do
    bench "$memory" user --no-roofline --no-workloads --workloads c,find,update \
      --batches "${HOST_BATCHES:-4096,1048576}" --repeats "${REPEATS:-1}" --operations 16777216 --memory "$memory"
  done
}

phase_large() { # 160 M items, a pool of some 30 GB
  bench large user --no-roofline --no-workloads --records 160000000 --workloads c \
    --batches 4096,1048576 --repeats 1 --operations "${LARGE_OPERATIONS:-134217728}"
}

phase_elastic() { # loading from empty, and back
  bench elastic-large elastic --batch 1048576 --steps 32 --growths 2,1.25
  bench elastic-small elastic --batch 4096 --steps 1000
}

phase_search() { # by attributes, with and without an index
  bench search search
}

phase_several() { # on a machine of several GPUs: the tests that use more than one, and what they gain
  local name exchange exchanges=(threads)
  if [ -x "$build/tests/nccl_test" ]; then exchanges+=(nccl); fi
  for name in cuda_splitter_test cuda_shard_test shard_test collective_test "${exchanges[@]:1}"; do
    run "$name" timeout 300 "$build/tests/${name/#nccl/nccl_test}"
  done
  for exchange in "${exchanges[@]}"; do
    bench "scale-$exchange" scale --records "${SCALE_RECORDS:-16000000}" --batch 1048576 \
      --exchange "$exchange" --ranks 0,1,2,4
  done
  bench scale-in-flight scale --records "${SCALE_RECORDS:-16000000}" --batch 1048576 --in-flight 7 \
    --ranks 0,1,2,4
  bench scale-strong scale --records "${SCALE_RECORDS:-16000000}" --batch 1048576 --strong --ranks 1,2,4
  bench scale-host scale --records "${SCALE_RECORDS:-16000000}" --batch 1048576 --memory host --ranks 0,1,2,4
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for phase in "$@"; do
  echo "== $phase"
  "phase_$phase"
done
exit "$failed"
