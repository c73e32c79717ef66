# PYTHON=python3.12   the interpreter that the virtual environment is made with
# VENV=.venv          where it is; `VENV=` uses PYTHON and the packages it has, and installs nothing
# TORCH=torch==2.9.1  another torch than the one in requirements.lock
PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell grep '^torch==' requirements.lock)

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
READY :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))

CLANG_FORMAT = $(PY) -c 'import clang_format as c; c.clang_format()'
C_FILES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help demo test c-test build lint format wheel gpu clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## train on handwritten digits, in plain torch and with halfstep
	$(PY) -m halfstep.cli demo $(ARGS)

test: build ## run the tests; those that need a GPU are skipped without one
	$(PY) -m pytest $(ARGS)

c-test: ## run the C tests under the address and undefined-behaviour sanitizers
	$(MAKE) -C tests/c

build: $(READY) ## compile halfstep._C into python/halfstep, with CUDA kernels where nvcc and a GPU are
	$(PY) setup.py -q build_ext --inplace

lint: $(READY) ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@$(CLANG_FORMAT) --dry-run -Werror $(C_FILES)

format: $(READY) ## format all sources
	$(PY) -m ruff format .
	@$(CLANG_FORMAT) -i $(C_FILES)

wheel: $(READY) ## build a wheel into dist and check that it keeps to the stable ABI
	$(PY) -m build --wheel --no-isolation
	$(PY) -m abi3audit --strict dist/halfstep-*.whl

gpu: ## build for this machine's GPU, test, sanitize and measure; PYTHON has torch, nothing is installed
	PYTHON=$(PYTHON) bash benchmarks/run_gpu.sh

clean: ## remove what was built
	rm -rf build dist python/*.egg-info
	find python -name '*.so' -delete

$(VENV)/.ready: requirements.lock pyproject.toml $(VENV)/.torch
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	$(PY) -m pip install --quiet $(TORCH)
	$(PY) -m pip install --quiet -r $(VENV)/requirements.txt
	HALFSTEP_CUDA=0 $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

$(VENV)/.torch: FORCE
	@mkdir -p $(VENV) && echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@
