#!/usr/bin/env bash
# Runs the quick tests, on the cpu executor, under a sanitizer.
# Usage: sanitize.sh address   AddressSanitizer and UndefinedBehaviorSanitizer (that one of the
#                              store's code alone, not of the tests'), into build-asan
#        sanitize.sh thread    ThreadSanitizer, into build-tsan
# Further arguments go to ctest. GPM_TEST_OPS scales the randomized tests (default here 400000).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[[ $# -ge 1 ]] || usage
run=()
case $1 in
  address)
    build="build-asan"
    sanitizers=address,undefined
    ;;
  thread)
    build="build-tsan"
    sanitizers=thread
    # ThreadSanitizer's shadow does not fit every randomized address layout.
    if setarch -R true 2>/dev/null; then run=(setarch -R); fi
    ;;
  *) usage ;;
esac
shift

# (With -O2 and all of -g the build takes as long as the tests. Warnings are errors in other builds:
# of code with sanitizers in it, compilers give false ones.)
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" \
  -DGPM_CUDA=OFF -DGPM_BENCH=OFF -DGPM_WERROR=OFF -DGPM_SANITIZE="$sanitizers"
"${run[@]}" cmake --build "$build"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export GPM_TEST_OPS="${GPM_TEST_OPS:-400000}"
"${run[@]}" ctest --test-dir "$build" -L quick --output-on-failure -j2 "$@"
