PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-long lint bench leaderboard pages docs clean

demo: $(INSTALLED)  ## train every family on the digits of scikit-learn: a table and an HTML report
	$(BIN)/leanbayes demo

test: $(INSTALLED) lint  ## style, types and the whole suite
	$(BIN)/python -m pytest -n 2

test-long: $(INSTALLED)  ## what docs/trust.md reports: hours; gold posteriors need the extra gold
	$(BIN)/python -m research trust properties
	$(BIN)/python -m research trust calibration
	$(BIN)/python -m research trust faults
	$(BIN)/python -m research trust fuzz
	$(BIN)/python -m research trust mutants
	$(BIN)/python -m research trust coverage --data runs/coverage
	$(BIN)/python -m research trust gold
	$(BIN)/python -m research page lists

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/python -m pytest -q -p no:cacheprovider --noconftest tests/test_language.py

bench: $(INSTALLED)  ## what everything costs, relative to the plain network and to other libraries
	$(BIN)/python -m research bench run

leaderboard: $(INSTALLED)  ## every method on every task, with the peers that are installed; resumes
	$(BIN)/python -m research studies leaderboard
	$(BIN)/python -m research page

pages: $(INSTALLED)  ## the tables and pictures of all pages, from results/
	$(BIN)/python -m research page

docs: .venv-docs/.installed  ## the site, built without a network and without warnings
	rm -rf docs/_build/html
	.venv-docs/bin/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf .venv .venv-bench .venv-docs docs/_build .mypy_cache .ruff_cache .pytest_cache build dist

$(INSTALLED): pyproject.toml constraints.txt setup.py src/leanbayes/kernels/kernels.cpp
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-docs/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
