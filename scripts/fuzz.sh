#!/usr/bin/env bash
# Fuzzes pool files (tests/fuzz/pool_fuzz.h says what must hold) with libFuzzer, under the address and
# undefined-behaviour sanitizers, from the checked-in corpus. Needs clang with its fuzzer runtime.
# Usage: fuzz.sh SECONDS [JOBS]      into build-fuzz; exit status 0 when nothing was found
#
# Ends with the number of executions. New inputs that reach something new stay in build-fuzz/corpus
# for the next run; an input that breaks a property is kept in build-fuzz/findings, and
# `build-fuzz/tests/fuzz/pool_fuzz FILE` replays it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $# -lt 1 || ! $1 =~ ^[0-9]+$ || ! ${2:-1} =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
seconds=$1
jobs=${2:-1}
build=build-fuzz

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
  -DGPM_CUDA=OFF -DGPM_BENCH=OFF -DGPM_FUZZ=ON -DGPM_SANITIZE=address,undefined,fuzzer-no-link
cmake --build "$build" --target pool_fuzz

mkdir -p "$build/corpus" "$build/findings"
logs=$(mktemp -d)
pids=()
trap '[[ ${#pids[@]} -eq 0 ]] || kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
for ((job = 0; job < jobs; ++job)); do
  "$build/tests/fuzz/pool_fuzz" -max_total_time="$seconds" -max_len=512 -timeout=20 \
    -rss_limit_mb=4096 -reload=10 -print_final_stats=1 -artifact_prefix="$build/findings/" \
    "$build/corpus" tests/fuzz/corpus >"$logs/$job" 2>&1 &
  pids+=($!)
done
failed=0
for ((job = 0; job < jobs; ++job)); do
  if ! wait "${pids[$job]}"; then
    failed=1
    grep -E -B 3 -A 30 "base pool|ERROR:|runtime error" "$logs/$job" | head -n 60 || true
  fi
done
pids=()
for ((job = 0; job < jobs; ++job)); do
  grep -E "^#[0-9]+.* cov:" "$logs/$job" | tail -n 1 || true
done
cat "$logs"/* | awk '/stat::number_of_executed_units/ { sum += $2 }
  END { printf "executions: %d\n", sum }'
if [[ $failed -ne 0 ]]; then
  echo "fuzz: found something; the inputs are in $build/findings" >&2
fi
exit "$failed"
