# Every target sets up .venv by itself. Only python3 (3.11 or newer) has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint types lock clean
.DEFAULT_GOAL := setup

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --require-hashes --python $(BIN)/python -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

setup: .venv/ready

demo: setup          ## run iCaRL under Equ.T, FF.org, FF.ours and FF.flow on the embedded data set; print a table, write a page
	$(BIN)/ffcil demo

test: lint types     ## all checks of CI; the last lines name the tests that were not run
	$(BIN)/pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

lock: setup          ## update the pinned versions and their hashes (without index lines)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header --generate-hashes \
	  --extra dev --upgrade -o requirements.lock pyproject.toml

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
