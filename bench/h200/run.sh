#!/bin/bash
# What bench/results/h200 was made with, on a machine with an NVIDIA GPU, Python packages of pyproject.toml and onnxruntime-gpu:
#   bench/h200/run.sh smoke|tune|aa-cpu|aa-gpu OUTPUT_FOLDER [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
what=$1 out=$2 seconds=${3:-120}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
LD_LIBRARY_PATH=$(python3 - <<'PY'
import glob, nvidia, os
print(":".join(sorted({os.path.dirname(f) for root in nvidia.__path__ for f in glob.glob(f"{root}/*/lib/*.so*")})))
PY
)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
[ -f build/cnn.onnx ] || python3 bench/h200/cnn.py build/cnn.onnx
case $what in
smoke)
    python3 tests/backends/gpu_smoke.py --seconds "$seconds" >"$out/smoke.json" ;;
tune)
    python3 -m tuner_job.cli.main run bench/h200/cnn.yaml --folder "$out/run" --json >"$out/tune.json" ;;
aa-cpu)
    python3 -m bench.aa real --budget-seconds "$seconds" --output "$out/aa-real-magika-cpu" ;;
aa-gpu)
    python3 -m bench.aa real --job bench/h200/cnn.yaml --device GPU --budget-seconds "$seconds" --output "$out/aa-real-cnn-gpu" ;;
esac
