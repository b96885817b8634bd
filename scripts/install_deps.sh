#!/usr/bin/env bash
# Installs the Debian packages that the build needs and that are missing. Without root it only says
# which are missing. CUDA is optional, is not a Debian package, and is used when nvcc is found.
set -euo pipefail

packages=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev
 libopenmpi-dev openmpi-bin libpmem-dev libcuckoo-dev zlib1g-dev python3 python3-dev python3-venv)

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: not a Debian system; needed are the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi
if [[ $(id -u) -ne 0 ]]; then
  echo "install_deps: missing packages; as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
