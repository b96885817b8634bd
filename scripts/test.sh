#!/usr/bin/env bash
# Installs what is missing, builds everything, runs all tests, then the quick ones under the address
# and undefined-behaviour sanitizers. What this says is what CI says.
#
# Tests labelled gpu skip where there is no GPU. Some of the tests are randomized and print their
# seed; GPM_TEST_SEED replays one. Build folders: build, build-asan.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install_deps.sh
scripts/python_env.sh
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
cmake --build build
ctest --test-dir build --output-on-failure --timeout 1800 -j2
scripts/sanitize.sh address
