.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python

.PHONY: help setup run test lint unit crash crds lock bench-aa bench-operator bench-tensorrt bench-rtx bench-search bench-cpu-landscapes bench-verdict bench-scaling e2e e2e-faults clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: ## Create .venv from the locked dependencies
	@scripts/setup

run: setup ## Tune a real model on this machine, end to end
	.venv/bin/trtfleet run examples/magika.yaml

test: setup ## Every check and test
	scripts/test

lint: setup ## ruff, mypy, import-linter
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

unit: setup ## Tests without the slow ones
	$(PY) -m pytest -m "not slow" -q

crash: setup ## The crash test alone: SIGKILLs at random points
	$(PY) -m pytest -m slow -q tests/crash

e2e: setup ## A real cluster with real pods tunes a real model (root; builds Kubernetes once)
	$(PY) -m pytest -q tests/e2e

e2e-faults: setup ## Break everything at every moment on a real cluster; writes bench/results/e2e-faults.md (about an hour)
	$(PY) -m bench.faults

crds: setup ## Write crds/ from the models
	$(PY) -m tuner_job.api.crd crds
	scripts/chart-crds

bench-aa: setup ## False winners: simulated and real A/A finals (about half an hour on an idle machine)
	$(PY) -m bench.aa simulate
	$(PY) -m bench.aa real

bench-operator: setup ## 1,000 finished TuningJobs re-settle after a restart; prints seconds and memory (root)
	$(PY) -m bench.operator.settle

bench-tensorrt: setup ## A whole campaign over all 211 knobs of a scripted TensorRT (about five minutes)
	$(PY) -m bench.tensorrt_scripted

bench-rtx: setup ## Real TensorRT-RTX builds every example under every builder setting; no GPU needed
	$(PY) -m bench.rtx_builds

bench-search: setup ## Adaptive and its peers on recorded and synthetic landscapes (hours; goes on where it was)
	$(PY) -m bench.search --seeds 100 --jobs 2

bench-cpu-landscapes: setup ## Record the full products that bench-search plays on, on this CPU (idle: about ten minutes a model)
	$(PY) -m bench.cpu

bench-verdict: setup ## What the verdict is worth beside simpler rules (about a quarter of an hour)
	$(PY) -m bench.verdict

bench-scaling: setup ## A campaign on 1 to 64 simulated workers, with stragglers and kills
	$(PY) -m bench.scaling

lock: ## Lock dependencies again (needs uv on PATH)
	scripts/lock

clean: ## Remove what was built and run here
	rm -rf .venv trtfleet-out .mypy_cache .ruff_cache .hypothesis
