#!/usr/bin/env bash
# Measures what the figures of GPHash's evaluation show (docs/EVALUATION.md), of the store and of
# peers on this machine: OUT gets figureN.json and paper_figureN.svg of each, and gpus.json of a store
# over two ranks (of GPUs, as far as there are two).
# Usage: paper.sh OUT [--scale S] [--executor E] [--repeats N] [--figures "5 7 fill"]
#   [--peers A,B] [--batches N,N]
#
# --peers is for figures 5, 6, 7, 10 and 12, --batches for 5 and 6. With --executor cuda there is more, of the
# peers' own papers: peers (all beside the store), warpdrive (its figures 7 and 8), hashgraph (building and
# finding), ghsh (12 to 14) and dyhash (11 to 15: its bounds, erases and batches, step by step). Their reports
# have other names.
# A GPU takes OUT/figure8.json from executor cpu, which alone counts accesses in any build. Without
# matplotlib (Debian: python3-matplotlib) it does nothing; PYTHON names another python3 that has it,
# and PYTHON=none draws nothing. Builds gpmstore_bench into build, unless BENCH names one; COMMIT
# says of which commit that is, where it is not the one checked out.
set -euo pipefail
usage="usage: paper.sh OUT [--scale S] [--executor E] [--repeats N] [--figures \"5 7 fill\"] [--peers A,B] [--batches N,N]"
[[ $# -ge 1 && $1 != -* ]] || { echo "$usage" >&2; exit 2; }
out=$1
shift
figures=
scale=1
repeats=3
executor=auto
options=()
peers=()
batches=()
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || { echo "paper.sh: $1 has no value; $usage" >&2; exit 2; }
  case $1 in
    --scale | --repeats) options+=("$1" "$2") && declare "${1#--}=$2" ;;
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
if [[ -z $figures ]]; then
  figures="5 6 7 8 9 10 11 12 13 14 15 fill values streams gpus"
  [[ $executor != cuda ]] || figures+=" peers warpdrive hashgraph ghsh dyhash"
fi

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
measure() { # measure NAME COMMAND...
  "$BENCH" "${@:2}" --commit "$commit" --json "$out/$1.json"
  reports+=("$out/$1.json")
}
scaled() { # scaled NUMBER [MOST]
  awk -v of="$1" -v scale="$scale" -v most="${2:-1e18}" \
    'BEGIN { n = int(of * scale); if (n < 1) n = 1; if (n > most) n = most; printf "%d", n }'
}
contest() { # contest NAME RECORDS OPTION...: of some peers alone, in one batch
  measure "$1" peers --executor cuda --no-store --repeats "$repeats" --records "$2" --operations "$2" --batches "$2" "${@:3}"
}

for figure in $figures; do
  millions=$(scaled 16777216)
  sixteen=(--records "$(scaled 16000000)" --operations "$(scaled 4194304)"
    --batches "$(scaled 1048576 4096),$(scaled 1048576)")
  case $figure in
    peers | warpdrive | hashgraph | ghsh | dyhash)
      [[ $executor == cuda ]] || { echo "paper.sh: figure $figure takes --executor cuda" >&2; exit 2; }
      ;;&
    peers)
      measure peers peers --executor cuda --repeats "$repeats" "${sixteen[@]}"
      continue
      ;;
    warpdrive)
      groups=$(printf ",warpdrive-pairs-%s" 1 2 4 8 16 32)
      contest warpdrive_fills "$millions" --key-size 4 --value-size 4 --fill 0.5,0.7,0.8,0.9,0.95 \
        --workloads find,find-missing,c,update --peers "${groups#,}"
      contest warpdrive_27 "$(scaled $((1 << 27)))" --key-size 4 --value-size 4 --fill 0.5,0.8,0.95 \
        --workloads find --peers "${groups#,}"
      continue
      ;;
    hashgraph)
      graphs=$(printf ",hashgraph-%s" v1 v2 ordered ellpack sliced)
      for log in 22 24 26; do
        contest "hashgraph_$log" "$(scaled $((1 << log)))" --value-size 16 --workloads find,find-missing \
          --peers "${graphs#,}"
      done
      measure hashgraph peers --executor cuda --no-store --repeats "$repeats" "${sixteen[@]}" \
        --workloads find,find-missing,c --peers "${graphs#,}"
      continue
      ;;
    ghsh)
      for log in 20 22 24; do
        contest "ghsh_$log" "$(scaled $((1 << log)))" --key-size 4 --value-size 4 --fill 0.65 \
          --workloads find,find-missing --peers ghsh-words,warpdrive-pairs-4
      done
      measure ghsh_batches peers --executor cuda --no-store --repeats "$repeats" --key-size 4 --value-size 4 --fill 0.65 \
        --records "$millions" --operations "$millions" \
        --batches "$(scaled 32768),$(scaled 65536),$(scaled 131072)" --workloads find \
        --peers ghsh-words,warpdrive-pairs-4
      continue
      ;;
    dyhash)
      elastic=(elastic --executor cuda --peer dyhash)
      for batch in 250000 500000 2000000; do
        measure "dyhash_batch_$batch" "${elastic[@]}" --batch "$(scaled "$batch" 16777216)"
      done
      elastic+=(--batch "$(scaled 1000000 16777216)")
      measure dyhash "${elastic[@]}"
      for alpha in 0.25 0.3 0.35 0.45; do measure "dyhash_alpha_$alpha" "${elastic[@]}" --peer-bounds "$alpha,0.9"; done
      for beta in 0.75 0.8 0.85 0.95; do measure "dyhash_beta_$beta" "${elastic[@]}" --peer-bounds "0.4,$beta"; done
      for erases in 0.1 0.2 0.3 0.5; do measure "dyhash_erases_$erases" "${elastic[@]}" --erases "$erases"; done
      continue
      ;;
    gpus)
      records=$(scaled 4000000)
      measure gpus scale --executor "$executor" --records "$((records > 1000 ? records : 1000))" \
        --batch "$(scaled 1048576 16777216)" --batches 5 --in-flight 4 --ranks 0,1,2
      continue
      ;;
  esac
  of_figure=$executor
  [[ $figure != 8 ]] || of_figure=cpu
  of=("${options[@]}")
  case $figure in
    5 | 6) of+=("${peers[@]}" "${batches[@]}") ;;
    7 | 10 | 12) of+=("${peers[@]}") ;;
  esac
  measure "figure$figure" paper --figure "$figure" --executor "$of_figure" "${of[@]}"
done
[[ $python == none ]] || "$python" "$root/scripts/plot_bench.py" "${reports[@]}" --out "$out"
