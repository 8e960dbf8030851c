# Needs Python >= 3.11 with pip, and make. `make help` lists the commands.
#
#   PYTHON=python3.12      the interpreter that .venv is made from
#   ACCELERATOR=cpu        cpu, cuda12 or cuda13 instead of what this machine's driver says

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Driver branch 580 is the first that runs CUDA 13, 525 the first that runs CUDA 12.
ifndef ACCELERATOR
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	| sed -n '1s/^\([0-9][0-9]*\)\..*/\1/p')
ACCELERATOR := $(shell driver="$(DRIVER)"; if [ "$${driver:-0}" -ge 580 ]; then echo cuda13; \
	elif [ "$${driver:-0}" -ge 525 ]; then echo cuda12; else echo cpu; fi)
endif

# PyTorch names its builds by a suffix of the version; macOS has a single one without it. Asking for
# the suffix means that a machine without a GPU never downloads gigabytes of CUDA libraries.
TORCH := $(shell grep '^torch==' constraints.txt)
TORCH_BUILD_cpu := cpu
TORCH_BUILD_cuda12 := cu126
TORCH_BUILD_cuda13 := cu130
TORCH_BUILD := $(TORCH_BUILD_$(ACCELERATOR))
ifneq ($(shell uname -s),Darwin)
TORCH := $(TORCH)+$(TORCH_BUILD)
endif

EXTRAS_cpu := dev
EXTRAS_cuda12 := dev,cuda12
EXTRAS_cuda13 := dev,cuda13
EXTRAS := $(EXTRAS_$(ACCELERATOR))

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.installed-$(ACCELERATOR)

.PHONY: help demo test test-gpu bench-reduction soak lint format clean

help:
	@echo "make demo      score the bundled example with the bundled model, into out/"
	@echo "make test      run the tests (those that need a GPU are skipped where there is none)"
	@echo "make test-gpu  run only the tests that need a GPU"
	@echo "make bench-reduction  time the reduction on the GPU"
	@echo "make soak      a million rows without a model: rate and memory of the pipeline"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff format the code"
	@echo "make clean     remove .venv, caches and out/"

demo: $(STAMP)
	@rm -rf out && mkdir out
	$(BIN)/scorer score examples/sentiment.jsonl --model examples/demo-model -o out/sentiment.scores.jsonl
	@echo
	@echo "The first rows of out/sentiment.scores.jsonl:"
	@head -n 3 out/sentiment.scores.jsonl

test: $(STAMP)
	$(BIN)/python -m pytest

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

bench-reduction: $(STAMP)
	$(BIN)/python -m tests.bench_reduction --kernels

soak: $(STAMP)
	$(BIN)/python -m tests.soak

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find scorer tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch alone first, from where pip looks anyway (a mirror, a folder of wheels), else from PyTorch's
# own index, which holds the suffixed builds; then everything else, from where pip looks anyway.
$(STAMP): pyproject.toml constraints.txt Makefile
	@test -n "$(EXTRAS)" || { echo "ACCELERATOR is cpu, cuda12 or cuda13, got '$(ACCELERATOR)'" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("scorer needs Python >= 3.11, \
	got " + sys.version.split()[0] + ": name a newer one with make PYTHON=python3.12")'
	@rm -f $(VENV)/.installed-*
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH)"
	@$(PIP_INSTALL) --no-deps "$(TORCH)" 2>/dev/null || $(PIP_INSTALL) --no-deps "$(TORCH)" \
	  --extra-index-url https://download.pytorch.org/whl/$(TORCH_BUILD)
	$(PIP_INSTALL) --quiet hatchling
	$(PIP_INSTALL) --quiet --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@
