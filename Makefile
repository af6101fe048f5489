# sinklens: `make demo` and `make test` do all set-up. See CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell nproc 2>/dev/null || echo 2)
# Parallel workers get one thread each, and wait without spinning.
SHARE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

.PHONY: demo test lint bench test-gpu setup clean
.DEFAULT_GOAL := help
help:
	@echo "make demo      set up, then watch three small models, follow their sinks and mask them"
	@echo "make test      set up, then lint and test (what CI runs)"
	@echo "make lint      ruff and mypy"
	@echo "make bench     benchmarks that need no GPU"
	@echo "make test-gpu  the GPU suite, with the python3 on the PATH (needs torch with CUDA and triton)"

setup: $(BIN)/.ready
$(BIN)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/sinklens demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(SHARE) $(BIN)/python -m pytest -n $(CORES) -m "not gpu and not hub"
	@$(BIN)/python tests/sizes.py

bench: setup
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/observe_cpu.py
	$(BIN)/python benchmarks/trace_sizes.py
	$(BIN)/python benchmarks/summary.py
	$(BIN)/python benchmarks/handoffs.py
	$(BIN)/python benchmarks/classifier.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/masking.py

test-gpu:
	SINKLENS_GPU=1 PYTHONPATH=src $(PYTHON) -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -m gpu

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
