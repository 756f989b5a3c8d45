# On a fresh machine, `make up` and `make test` are sufficient: both create .venv first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# First interpreter of a supported version; override with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
SPARK := $(VENV)/.spark

# Keep all caches in the checkout, so that no target needs a writable HOME.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Write bytecode even if the environment disables it: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
CLASSES := .cache/trunkline/.classes
# Quick tests of the library, without one that kills processes and limits their time.
COVERED := tests/unit tests/client --ignore tests/client/test_exactly_once.py
CHECKS := check-types check-security check-audit check-lint check-generated docs
# Material for MkDocs announces its successor at each start.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup up test coverage dist check $(CHECKS) format generate bench chaos lock clean

help: ## show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: $(STAMP) ## create .venv from requirements.lock

# Rebuild the whole directory, so that an interrupted or outdated .venv is never reused.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "trunkline needs Python 3.11 or newer; install it or run make PYTHON=/path/to/python" >&2; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Spark is half a gigabyte; only tests, checks and benchmarks need it.
$(SPARK): $(STAMP) requirements-spark.lock
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements-spark.lock
	@touch $@

up: setup ## start everything in .trunkline; ARGS="--port 8080 --pg-port 5433"
	@exec $(BIN)/trunkline up $(ARGS)

# Class-data sharing halves the start time of Spark's JVMs. Without Java, no archive is written.
$(CLASSES): $(SPARK)
	-XDG_CACHE_HOME=$(CURDIR)/.cache $(BIN)/python -m trunkline.spark.session.class_cache
	@mkdir -p $(@D) && touch $@

test: $(CLASSES) ## run all tests; ARGS="-k name"
	$(BIN)/python tools/tests.py $(ARGS)

check: $(SPARK) ## check format, lint, language, SQL text, strict types, import contract, security, docs
	@$(MAKE) --no-print-directory -j 2 --output-sync=target $(CHECKS)

check-types:
	$(BIN)/mypy

check-security:
	$(BIN)/bandit -q -r src -c pyproject.toml 2> >(grep -v "nosec encountered" >&2)

check-audit:
	$(BIN)/python tools/audit.py

check-lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/sql_text.py
	$(BIN)/python tools/widths.py
	$(BIN)/python tools/private_access.py
	$(BIN)/lint-imports --cache-dir .cache/import_linter

check-generated:
	$(BIN)/python tools/unasync.py --check
	for page in sql python errors cli diagrams performance; do $(BIN)/python tools/docs_$$page.py --check || exit 1; done
	$(BIN)/python -m bench.charts --check

docs: setup ## build the documentation as a site in build/site
	$(BIN)/mkdocs build

coverage: setup ## measure the coverage of the quick tests; fails below the floor in pyproject.toml
	rm -f .cache/coverage*
	$(BIN)/coverage run -m pytest -q -n 2 --dist loadgroup $(COVERED) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/coverage html --quiet

dist: setup ## build wheel and source distribution in dist
	rm -rf dist
	$(BIN)/hatchling build

format: setup ## format the code and apply lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup ## regenerate the sync modules, the reference pages, and the figures of the README
	$(BIN)/python tools/unasync.py
	for page in sql python errors cli diagrams performance; do $(BIN)/python tools/docs_$$page.py; done
	$(BIN)/python -m bench.charts

bench: $(SPARK) ## run the benchmarks; prints a table and writes JSON
	$(BIN)/python -m bench $(ARGS)

chaos: setup ## run the history checker at full length
	$(BIN)/python -m tests.chaos $(ARGS)

lock: ## regenerate the lock files (needs network access)
	tools/lock.sh

clean: ## remove .venv and caches, but no data
	rm -rf $(VENV) .cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
