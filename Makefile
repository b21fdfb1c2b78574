# Two commands do everything on a fresh machine: `make audit` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: audit test tests setup compiled lint types imports docs clean

unexport PYTHONDONTWRITEBYTECODE  # what one process compiles, hundreds of others read

audit: $(VENV)/.ready ## set up what an audit needs, audit the bundled subject, say where the report is
	@$(BIN)/assay audit --budget quick || test $$? -ne 2  # 1 and 3 are verdicts on the subject, not failures of the audit

test: $(VENV)/.test-ready ## set up the rest, lint, types, import contract, all tests
	@$(MAKE) --no-print-directory -j 2 types tests

tests: compiled lint imports
	OMP_NUM_THREADS=1 $(PYTEST) -p xdist -n auto --dist worksteal

PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p hypothesispytest -p assay.pytest_plugin
# plugins are named, or pytest rewrites the asserts of all of src too

compiled: $(VENV)/.test-ready ## src, what it imports and the tests, their asserts rewritten, as bytecode once for all processes
	@$(BIN)/python -m compileall -qq src
	@$(PYTEST) --collect-only -qq > /dev/null 2>&1 || true  # what is wrong the tests will tell

setup: $(VENV)/.test-ready ## all that the tests need

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Assay needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# --no-compile: of what is installed a third is ever imported, and that is compiled when it is
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

$(VENV)/.ready: pyproject.toml | $(VENV)/.made
	$(INSTALL) .
	touch $@

$(VENV)/.test-ready: pyproject.toml | $(VENV)/.made
	$(INSTALL) '.[test]'
	touch $(VENV)/.ready $@

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet src tests tools benchmarks examples

types: $(VENV)/.test-ready
	$(BIN)/mypy

imports: $(VENV)/.test-ready
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.test-ready ## regenerate the pages that are made from the registries
	$(BIN)/python tools/make_docs.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
