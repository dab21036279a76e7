# Every target sets up .venv by itself; needed beforehand: python3 with venv, a C++20 compiler, and PyPI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILT := $(VENV)/.built
STAMP := $(VENV)/.installed
EXTRAS := dev,bench,docs
# Tests of engine="torch"; this release has a CPU build where no card is. Empty leaves it and its tests out.
TORCH ?= torch==2.13.0 triton
PYTEST_FLAGS ?=
PAPER_FLAGS ?=
FUZZ_FLAGS ?=
TABLES ?=
BASE ?= main~1
PYTHONS ?= python3
CORE := CMakeLists.txt $(wildcard cpp/* cpp/*/*)
CODE := src tests $(wildcard benchmarks studies docs tools examples)

.DEFAULT_GOAL := help
.PHONY: help demo test slow search bench tables docs pages site paper lint format wheel release fuzz sanitize torture audit compare clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

demo: $(BUILT) ## fit the bundled data and print what was found
	$(BIN)/python -m log1pnmf demo

# The fits of tests and pages are short. Threads that spin while they wait for work would cost more than the work.
test pages site: export OMP_WAIT_POLICY := passive
test pages site: export OPENBLAS_NUM_THREADS := 1
# Compiled once: every process of every test would compile the package again, and pytest all tests.
test pages slow: export PYTHONDONTWRITEBYTECODE :=

test: lint ## lint, types and tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

slow: $(STAMP) ## what test leaves out: whole data sets and the reference's figures (../shared), the demo
	$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

search: $(STAMP) ## the tests of laws with new random examples (test draws the same on every run)
	$(BIN)/python -m pytest --hypothesis-profile=search -m "hypothesis and not gpu" $(PYTEST_FLAGS) tests

bench: $(STAMP) ## measure speed and memory
	$(BIN)/python -m benchmarks.run

paper: $(STAMP) ## reproduce the paper from ../shared/data (PAPER_FLAGS="--fresh": fit again what was kept)
	$(BIN)/python -m studies.paper $(PAPER_FLAGS)

tables: $(STAMP) ## measure the tables of the pages and of README again (TABLES="defaults pace"; all take a day)
	$(BIN)/python docs/tables.py $(TABLES)

docs: pages site ## run the code of all pages and build the site

pages: $(STAMP) ## run the code of all pages
	$(BIN)/python -m pytest -q -m docs $(PYTEST_FLAGS) tests/test_docs.py

site: $(STAMP) ## run the tutorials and build the site in docs/_build/html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going --quiet docs docs/_build/html

lint: $(STAMP) ## ruff, mypy and clang-format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror cpp/*

format: $(STAMP) ## let ruff and clang-format lay out the code and correct what they can
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/clang-format -i cpp/*

wheel: $(STAMP) ## build the source archive and the wheel, and use it in a fresh environment
	$(BIN)/python tools/check_wheel.py

release: ## rehearse a release with each of PYTHONS="python3.10 python3.12": archive, wheels, fresh environments
	tools/rehearse.sh $(PYTHONS)

fuzz: $(STAMP) ## read 100,000 damaged files of all formats (FUZZ_FLAGS="--cases 1000 --only t.h5ad")
	$(BIN)/python -m tests.fuzz.run $(FUZZ_FLAGS)

torture: $(STAMP) ## kill the command 200 times: nothing finished is lost, nothing half done is left
	$(BIN)/python -m pytest -m torture tests/torture $(PYTEST_FLAGS)

sanitize: $(STAMP) ## the compiled core under the address and undefined-behaviour sanitizers
	tools/sanitize.sh

audit: $(STAMP) ## known holes in what is installed
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python tools/audit.py

compare: $(STAMP) ## speed of the working tree against another commit (BASE=main~1)
	$(BIN)/python -m benchmarks.compare --base $(BASE)

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist bench-out demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks studies tools -name __pycache__ -type d -exec rm -rf {} +

# What the demo needs, and nothing else. The build runs inside .venv (no isolation), so a change in cpp/ recompiles only
# what it touches.
$(BUILT): pyproject.toml $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" ninja "setuptools-scm>=8"
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[cli,report]"
	touch $@

# What tests, documentation and benchmarks need.
$(STAMP): $(BUILT)
	test -z "$(TORCH)" || $(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[$(EXTRAS)]"
	touch $@
