# Everything a contributor runs. `make run` and `make test` need Python 3.11+ and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DIR ?= .
SEEDS ?= 100

.DEFAULT_GOAL := help
.PHONY: help run demo test lint format bench bench-circuit chaos sim clean

help:
	@echo "make run [DIR=path]   start a server, run an agent over DIR, replay it, keep serving"
	@echo "make demo [DIR=path]  the same, in a temporary directory, and stop"
	@echo "make test             all tests"
	@echo "make lint             ruff and mypy"
	@echo "make bench            measurements against a real server"
	@echo "make bench-circuit    circuits of three mock agents that hand over on channels"
	@echo "make chaos            kill processes at random points and check what is left"
	@echo "make sim SEEDS=n      simulated clusters with crashes between any two effects"

$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

run: $(VENV)/.installed
	@$(BIN)/python -m loomcycle.demo.run --dir $(DIR) --keep-serving

demo: $(VENV)/.installed
	@$(BIN)/python -m loomcycle.demo.run --dir $(DIR)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench $(ARGS)

bench-circuit: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench.circuit $(ARGS)

chaos: $(VENV)/.installed-dev
	$(BIN)/python -m tests.chaos $(ARGS)

sim: $(VENV)/.installed-dev
	$(BIN)/python -m tests.sim --seeds $(SEEDS) $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
