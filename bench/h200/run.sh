#!/bin/bash
# What bench/results/h200 was made with, on a machine with an NVIDIA GPU, Python packages of pyproject.toml and onnxruntime-gpu:
#   bench/h200/run.sh smoke OUTPUT_FOLDER [SECONDS]             the onnxruntime backend's GPU path
#   bench/h200/run.sh campaign JOB OUTPUT_FOLDER [SECONDS] …    trtfleet run on bench/h200/JOB.yaml; further arguments are its own
#   bench/h200/run.sh landscape|noise JOB OUTPUT_FOLDER [SECONDS] …   landscape … --without RECORDING goes on with it
#   bench/h200/run.sh aa JOB OUTPUT_FOLDER [SECONDS]            real A/A finals; goes on with a series in OUTPUT_FOLDER
#   bench/h200/run.sh tensorrt OUTPUT_FOLDER LIBRARIES          the real TensorRT: bench/h200/tensorrt_api.py
# GPU=1 names the device and CORES=0-15 the processor cores of one of several that run at once; DEVICE=CPU rehearses without a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.."
what=$1 && shift
case $what in campaign | landscape | noise | aa) job=$1 && shift ;; esac
out=$1 seconds=${2:-150}
mkdir -p "$out" && out=$(cd "$out" && pwd)
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
[ -z "${GPU:-}" ] || export CUDA_VISIBLE_DEVICES=$GPU
device=${DEVICE:-GPU}
pinned=${CORES:+taskset -c $CORES}
$pinned true 2>/dev/null || pinned= # this machine has other cores
LD_LIBRARY_PATH=$(python3 - <<'PY'
import glob, importlib.util, os
spec = importlib.util.find_spec("nvidia")
roots = list(spec.submodule_search_locations or ()) if spec else []
print(":".join(sorted({os.path.dirname(f) for root in roots for f in glob.glob(f"{root}/*/lib/*.so*")})))
PY
)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
[ -f build/cnn.onnx ] || python3 bench/h200/cnn.py build/cnn.onnx
[ -f build/cnn-small.onnx ] || python3 bench/h200/cnn.py build/cnn-small.onnx 4
[ -f build/minilm.onnx ] || python3 bench/h200/models.py build
run() { $pinned "$@"; }
case $what in
smoke)
    run python3 tests/backends/gpu_smoke.py --seconds "$seconds" >"$out/smoke.json" ;;
campaign)
    folder=${RUNS:-$out/runs}/$job # the same command goes on with a run that was stopped
    run timeout -s INT -k 20 "$seconds" python3 -m tuner_job.cli.main run "${JOBS:-bench/h200}/$job.yaml" --folder "$folder" \
        --json "${@:3}" >"$out/$job.json" 2>"$out/$job.log"
    code=$?
    cp "$folder"/reports/*.html "$out/$job-report.html" 2>/dev/null
    # Every record and sample, with the files' times; the bytes of engines are left out.
    (cd "$folder/store" && find . -type f -size -2048k -print0 | tar cz --null -T -) >"$out/$job-records.tar.gz"
    run python3 -m bench.overhead "$folder/store" >"$out/$job-overhead.md"
    exit $code ;;
landscape)
    run python3 -m bench.h200.landscape "${JOBS:-bench/h200}/landscape-$job.yaml" --device "$device" --output "$out/landscape-$job" \
        --budget-seconds "$seconds" "${@:3}" ;;
noise)
    run python3 -m bench.h200.noise "${JOBS:-bench/h200}/$job.yaml" --device "$device" --output "$out/noise-$job" \
        --budget-seconds "$seconds" "${@:3}" ;;
aa)
    run python3 -m bench.aa real --job "${JOBS:-bench/h200}/$job.yaml" --device "$device" --budget-seconds "$seconds" \
        --output "$out/aa-real-$job-${device,,}" ;;
tensorrt)
    run python3 -m bench.h200.tensorrt_api --libraries "$2" --output "$out/tensorrt-api" ;;
esac
