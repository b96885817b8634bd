#!/usr/bin/env bash
# Makes a Python in build-python/env with what the Python package's build and tests need, from PyPI.
# Where that can't be (no venv module, no network) it says so; the ctest "python" is then skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

env=build-python/env
wanted="import nanobind, numpy, prometheus_client, pytest"
if "$env/bin/python" -c "$wanted" 2>/dev/null; then exit 0; fi
if python3 -m venv "$env" &&
  "$env/bin/pip" install -q --disable-pip-version-check "nanobind>=3.1" numpy prometheus-client pytest &&
  "$env/bin/python" -c "$wanted"; then
  exit 0
fi
echo "python_env: no Python with nanobind, numpy and pytest; the Python package is not tested" >&2
