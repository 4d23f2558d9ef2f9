# `make test` and `make reproduce` set up all they need in .venv and are quick when run again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install test test-slow lint format reproduce bench pictures clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(READY) ## the library, editable, with all tools, in .venv

# A worker a core, each with one thread: most tests are too small to keep two threads busy.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto

# The examples of a document build on each other: they stay in one process, where the tests are spread over many.
test: $(READY) ## all tests but the slow ones
	$(PYTEST) tests
	$(BIN)/python -m pytest -q src README.md docs

test-slow: $(READY) ## the tests of the whole published grid
	$(PYTEST) -m slow tests

lint: $(READY) ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reproduce: $(READY) ## the paper's quality beside ours
	$(BIN)/python -m knockout.eval.reproduce

bench: $(READY) ## benchmarks, once the operator's tests have passed
	$(BIN)/python -m pytest -q tests/test_operator.py
	$(BIN)/python -m benchmarks.gather
	$(BIN)/python -m benchmarks.rounds

pictures: $(READY) ## draw the README's picture again
	$(BIN)/python docs/images/draw.py

clean: ## remove what the other commands made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
