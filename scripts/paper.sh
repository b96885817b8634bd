#!/usr/bin/env bash
# Measures what the figures of GPHash's evaluation show (docs/EVALUATION.md), of the store and of
# peers on this machine: OUT gets figureN.json and paper_figureN.svg of each.
# Usage: paper.sh OUT [--scale S] [--executor E] [--repeats N] [--figures "5 7 fill"]
#   [--peers A,B] [--batches N,N]
#
# --peers is for figures 5, 6, 7, 10 and 12, --batches for 5 and 6.
# A GPU takes OUT/figure8.json from executor cpu, which alone counts accesses in any build. Without
# matplotlib (Debian: python3-matplotlib) it does nothing; PYTHON names another python3 that has it,
# and PYTHON=none draws nothing. Builds gpmstore_bench into build, unless BENCH names one; COMMIT
# says of which commit that is, where it is not the one checked out.
set -euo pipefail
usage="usage: paper.sh OUT [--scale S] [--executor E] [--repeats N] [--figures \"5 7 fill\"] [--peers A,B] [--batches N,N]"
[[ $# -ge 1 && $1 != -* ]] || { echo "$usage" >&2; exit 2; }
out=$1
shift
figures="5 6 7 8 9 10 11 12 13 14 15 fill values streams"
executor=auto
options=()
peers=()
batches=()
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || { echo "paper.sh: $1 has no value; $usage" >&2; exit 2; }
  case $1 in
    --scale | --repeats) options+=("$1" "$2") ;;
    --executor) executor=$2 ;;
    --peers | --batches) declare -n list=${1#--} && list=("$1" "$2") ;;
    --figures) figures=$2 ;;
    *)
      echo "paper.sh: $1: $usage" >&2
      exit 2
      ;;
  esac
  shift 2
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
if [[ $python != none ]] && ! "$python" -c "import matplotlib" 2>/dev/null; then
  echo "paper.sh: $python has no matplotlib (Debian: python3-matplotlib); PYTHON=none draws nothing" >&2
  exit 2
fi
if [[ -z ${BENCH:-} ]]; then
  cmake -S "$root" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  cmake --build "$root/build" --target gpmstore_bench
  BENCH=$root/build/bench/gpmstore_bench
fi
commit=${COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)}

mkdir -p "$out"
reports=()
for figure in $figures; do
  of_figure=$executor
  [[ $figure != 8 ]] || of_figure=cpu
  of=("${options[@]}")
  case $figure in
    5 | 6) of+=("${peers[@]}" "${batches[@]}") ;;
    7 | 10 | 12) of+=("${peers[@]}") ;;
  esac
  "$BENCH" paper --figure "$figure" --executor "$of_figure" "${of[@]}" --commit "$commit" \
    --json "$out/figure$figure.json"
  reports+=("$out/figure$figure.json")
done
[[ $python == none ]] || "$python" "$root/scripts/plot_bench.py" "${reports[@]}" --out "$out"
