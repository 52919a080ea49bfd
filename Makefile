# Two commands do everything on a fresh machine, each making its own .venv:
#   make demo    trains a small model, analyzes it, serves the dashboard (about a minute)
#   make test    lint, types and the test suite (a few minutes on 2 cores)
# The rest is for development and CI.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test test-slow lint format docs site bench clean

# the core only: what `pip install perfkit` gives
$(VENV)/core: pyproject.toml setup.py constraints.txt perfkit/sources/_scan.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

# torch is pinned on the command line: an open range would fetch several GB of CUDA packages
$(VENV)/dev: $(VENV)/core
	@$(BIN)/python -c 'import sys; sys.version_info >= (3, 11) or sys.exit("the pinned tools of development need Python 3.11: make PYTHON=python3.11 (perfkit itself runs on 3.10)")'
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '.[test,train,dashboard]'
	touch $@

# what `perfkit demo` needs: torch to train, dash to show
$(VENV)/demo: $(VENV)/core
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '.[train,dashboard]'
	touch $@

# ends after the report when nobody is at a terminal; DEMO="--fault slow-rank:1:1.5x" breaks it on purpose
demo: $(VENV)/demo
	$(BIN)/perfkit demo -o out/demo $(DEMO)

test: $(VENV)/dev lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the pages that are made from the code
docs: $(VENV)/core
	$(BIN)/python -m perfkit.schema
	$(BIN)/python -m perfkit.cli.reference
	$(BIN)/python -m perfkit.report.json_schema

# the documentation as a site, in out/site
site: $(VENV)/dev docs
	$(BIN)/mkdocs build --strict

bench: $(VENV)/dev
	$(BIN)/python benchmarks/ingest.py

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '__pycache__' -type d -prune -exec rm -rf {} +
	find perfkit -name '*.so' -delete
