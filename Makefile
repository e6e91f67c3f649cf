# Two commands do everything on a fresh machine with Python 3.11 or newer:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format results clean

demo: $(VENV)/.ready
	$(BIN)/lebm demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tables of README.md and docs/results.md, from results/*.json
results: $(VENV)/.ready
	$(BIN)/python tools/write_docs.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("lebm needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .coverage* htmlcov
