#!/usr/bin/env bash
# The long runs that show crash consistency and linearizability, each from a seed that is printed.
# Usage: prove.sh [SEED]      into build; exit status 0 when nothing was found
#
# STATES (10 million), SCHEDULES (1 million) and KILLS (500) say how much; JOBS how many processes
# explore at once. Some 15 minutes on 4 cores, and several more for all faults. Fuzzing is
# scripts/fuzz.sh; kills on a GPU are scripts/gpu.sh's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seed=${1:-$((RANDOM * 32768 + RANDOM))}
jobs=${JOBS:-$(nproc)}
kills=${KILLS:-500}
build=build
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
cmake --build "$build" --target gpmstore_cli schedule_explore fault_test \
  capacity_fault_test search_fault_test
pools=$(mktemp -d /dev/shm/gpmstore_prove_XXXXXX)
trap 'rmdir "$pools" 2>/dev/null || echo "kept: $pools"' EXIT

echo "== crash states, seed $seed"
"$build/cli/gpmstore" crash-explore --seed "$seed" --states "${STATES:-10000000}" \
  --processes "$jobs"

echo "== schedules, seed $seed"
"$build/crash_sim/schedule_explore" --seed "$seed" --count "${SCHEDULES:-1000000}" \
  --threads "$jobs"
echo "== schedules with crashes, seed $seed"
"$build/crash_sim/schedule_explore" --seed "$seed" --count "$((${SCHEDULES:-1000000} / 10))" \
  --threads "$jobs" --crash-states 8

echo "== kills, seed $seed"
for size in 8:128 32:128 32:8 8:5; do
  echo "-- keys of ${size%:*} bytes, values of ${size#*:}"
  "$build/cli/gpmstore" crash-test --rounds "$((kills / 4 + 1))" --seed "$seed" --pool "$pools/pool" \
    --key-size "${size%:*}" --value-size "${size#*:}" --max-batch 65536 --jobs 2
done
echo "-- 3 shards"
"$build/cli/gpmstore" crash-test --rounds "$((kills / 4 + 1))" --seed "$seed" --pool "$pools/shards" \
  --shards 3 --max-batch 65536 --jobs 2

echo "== faults, seed $seed"
for test in fault_test capacity_fault_test search_fault_test; do
  GPM_TEST_FAULTS=1 GPM_TEST_SEED="$seed" "$build/tests/$test" --gtest_brief=1
done
