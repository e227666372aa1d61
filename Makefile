# `make help` lists the targets. Each one sets up what it needs in $(VENV), without root.
# PYTHON=python3.12, PYTHON=/a/path or PYTHON=newest chooses the Python, in an environment of its own;
# tools/setup_env.sh says which one is taken otherwise.
SHELL := /bin/bash
export PYTHON ?=
VENV ?= .venv$(addprefix -,$(notdir $(PYTHON)))
ARGS ?=
PYTEST_ARGS ?=
# Else every process of a test would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE
# Tests compile the same functions many times, in many processes: JAX keeps what it has compiled.
test test-full test-slow: export JAX_COMPILATION_CACHE_DIR ?= $(abspath $(VENV))/jax_cache
test test-full test-slow: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
test test-full test-slow: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1

BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PINS := requirements/py310.txt requirements/py311plus.txt
DOCS_VENV ?= .venv-docs
# An environment whose interpreter is gone, or that was copied from another folder, is set up again,
# and one that may be of another Python than the one that is named is looked at.
STALE := $(shell test -x $(BIN)/python && grep -qxsF -- "$(abspath $(VENV))" $(STAMP) \
	&& { test -z "$(PYTHON)" || grep -qxsF -- "PYTHON=$(PYTHON)" $(STAMP); } || echo force)

.PHONY: help setup pins train test test-full test-all test-slow faults lint format docs bench clean force

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make or update the environment, and nothing else

$(STAMP): $(PINS) requirements/bootstrap.txt pyproject.toml tools/setup_env.sh $(STALE)
	@tools/setup_env.sh $(VENV)

pins: $(STAMP) ## renew the pins of requirements/ within the bounds of pyproject.toml
	@tools/renew_pins.sh $(BIN)

train: $(STAMP) ## train IMPALA on CartPole-v1 (ARGS="..." adds flags)
	$(BIN)/distrl train --env=CartPole-v1 --agent=impala $(ARGS)

test: $(STAMP) ## the quick tests, two at a time (PYTEST_ARGS="..." adds flags)
	$(BIN)/python -m pytest -m "not slow and not full" -n 2 --dist worksteal $(PYTEST_ARGS)

test-full: $(STAMP) ## the longer tests, which prove more: docs/testing.md
	$(BIN)/python -m pytest -m "full and not slow" -n 2 --dist worksteal $(PYTEST_ARGS)

test-all: test test-full ## the quick and the longer tests

test-slow: $(STAMP) ## the slow tests: whole programs, minutes each
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=1800 $(PYTEST_ARGS)

faults: $(STAMP) ## every node, every way to fail, every topology: writes a table to docs/faults.md
	$(BIN)/python benchmarks/faults.py $(ARGS)

lint: $(STAMP) ## formatter check, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(DOCS_VENV)/.stamp ## build the site of docs/ into build/site, in an environment of its own
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet

$(DOCS_VENV)/.stamp: requirements/docs.txt
	python3 -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	touch $@

bench: $(STAMP) ## environment steps per second, by topology: benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py $(ARGS)

clean: ## remove the environment and every cache; run folders stay
	rm -rf $(VENV) $(DOCS_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find distrl programs launch tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
