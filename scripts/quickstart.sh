#!/usr/bin/env bash
# Installs what is missing, builds the gpmstore command and runs the main job: YCSB A, 1 M records,
# 1 M operations, on a temporary pool, on the GPU when there is one that can be used.
# Further arguments go to `gpmstore ycsb`, such as --executor cpu or --json result.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install_deps.sh
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
cmake --build build --target gpmstore_cli
exec build/cli/gpmstore ycsb -w a --records 1000000 --operations 1000000 --executor auto "$@"
