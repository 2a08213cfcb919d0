PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint bench pages clean

demo: $(INSTALLED)  ## train every family on the digits of scikit-learn: a table and an HTML report
	$(BIN)/leanbayes demo

test: $(INSTALLED) lint  ## style, types and the whole suite
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## what everything costs, relative to the plain network and to other libraries
	$(BIN)/python -m research bench run

pages: $(INSTALLED)  ## the tables and pictures of all pages, from results/
	$(BIN)/python -m research page

clean:
	rm -rf .venv .venv-bench .mypy_cache .ruff_cache .pytest_cache build dist

$(INSTALLED): pyproject.toml constraints.txt setup.py src/leanbayes/kernels/kernels.cpp
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
