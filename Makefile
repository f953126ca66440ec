# `make demo` records a run and shows it; `make test` installs what the tests need and runs them; `make test-all` adds the
# slow tests, three at a time, as many of them wait; `make quick`, for the inner loop, runs what needs no process, no
# browser and no more than a moment.
# `make test VENV=.venv-newest CONSTRAINTS=tests/constraints-newest.txt` tests with the newest torch, Bokeh and pandas.
PYTHON ?= python3
VENV ?= .venv
GPUS ?= 2
BIN := $(VENV)/bin
CONSTRAINTS ?= tests/constraints.txt
PARALLEL := --dist=loadfile --no-loadscope-reorder --numprocesses
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

# Tests start hundreds of processes: compiled files, also pytest's, take a third off each start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all quick lint types format docs package clean

demo: $(VENV)/.record
	$(BIN)/dptrace record --mode interleaved --gpus $(GPUS) --model medium -o demo/interleaved --force
	$(BIN)/dptrace analyze demo/interleaved
	$(BIN)/dptrace view demo/interleaved -o demo/interleaved.html --no-browser --force

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL)=2 -m "not slow" $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL)=3 $(ARGS)

quick: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL)=2 -m "not browser and not spawn and not slow and not heavy" $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going --quiet docs build/docs
	@echo "Open build/docs/index.html"

# The sdist and the wheel made from it, checked, and installed alone: on each Python that is here, and with the oldest
# dependencies that pyproject.toml allows. Needs uv (pip install uv).
package:
	rm -rf dist
	uv build --quiet --no-create-gitignore
	uv tool run --quiet twine check --strict dist/*
	@for python in 3.10 3.11 3.12 3.13 3.14; do \
	  uv python find --quiet $$python >/dev/null 2>&1 || { echo "skipped: no Python $$python here"; continue; }; \
	  uv run --quiet --isolated --no-project --python $$python --with dist/*.whl python tests/support/installed.py || exit 1; \
	done
	uv pip compile --quiet --python 3.10 --resolution lowest-direct pyproject.toml -o dist/lowest.txt
	@uv run --quiet --isolated --no-project --python 3.10 --with-requirements dist/lowest.txt --with dist/*.whl \
	  python tests/support/installed.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "dptrace needs Python 3.10 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "No venv module here: apt install python3-venv, or name another Python with PYTHON="; exit 1; }

$(VENV)/.record: $(VENV)/bin/python pyproject.toml
	@echo "Installing dptrace and torch in $(VENV) …"
	@$(PIP) --editable '.[record]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	@echo "Installing dptrace, torch and what the tests need in $(VENV) …"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.record

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	@echo "Installing dptrace and what its documentation needs in $(VENV) …"
	@$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
