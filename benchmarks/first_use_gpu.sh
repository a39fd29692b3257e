#!/usr/bin/env bash
# Measure fine-tuning, a vision transformer and retrieval on CIFAR-10, in parallel on one GPU.
#
#     ANTIPODE_DATA=/path/to/data bash benchmarks/first_use_gpu.sh OUT                  # all parts
#     ANTIPODE_DATA=/path/to/data bash benchmarks/first_use_gpu.sh OUT finetune         # one part
#     ANTIPODE_DATA=/path/to/data bash benchmarks/first_use_gpu.sh OUT vit retrieval    # two parts
#
# OUT gets finetune.jsonl, vit.json, retrieval-cifar10.json and the logs. Every file is written as
# soon as a result is there, and the same command continues after an interruption. Run folders are
# in WORK (by default /tmp/antipode-first-use). Parts that share a GPU slow each other down, so
# their seconds cannot be compared with those of a part that runs alone.
set -u
: "${ANTIPODE_DATA:?set it to the folder with CIFAR-10}"
out=$(mkdir -p "${1:?name the folder for the results}" && cd "$1" && pwd)
shift
parts=" ${*:-finetune vit retrieval} "
work=${WORK:-/tmp/antipode-first-use}
python=${PYTHON:-python}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.." || exit 2
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$work"
jobs=()

start() { # NAME SCRIPT ARGUMENT...: start a script in the background, with its output in NAME.log
    local name=$1 script=$2
    shift 2
    $python "$here/$script" "$@" > "$out/$name.log" 2>&1 &
    jobs+=($!)
}

tune() { # START: fine-tune from a run that is trained first, or from scratch
    start "finetune-$1" finetune.py --run "$work/simclr" --starts "$1" --out "$out/finetune.jsonl"
}

case $parts in *" finetune "*) tune run && tune scratch ;; esac
case $parts in *" vit "*) start vit vit.py --run "$work/vit" --out "$out/vit.json" ;; esac
case $parts in *" retrieval "*)
    start retrieval retrieval.py cifar10 --jobs 4 --only simclr mocov2 byol vicreg --epochs 12 \
        --bank 10000 --out "$out/retrieval-cifar10.json" ;;
esac
status=0
for job in "${jobs[@]}"; do
    wait "$job" || status=1
done
tail -n 12 "$out"/*.log
exit $status
