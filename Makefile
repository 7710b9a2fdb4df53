# make demo   sets up .venv and runs the demo
# make test   sets up .venv and runs everything that a change must pass
#
# Both install locked versions, and only when the locks have changed. PYTHON=… chooses the interpreter.

PYTHON ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# bash, because a pipe into tee must not hide that pytest failed; make on macOS is too old for .SHELLFLAGS
SHELL := /bin/bash
PYTEST := set -o pipefail && $(BIN)/python -m pytest --color=$$(test -t 2 && echo yes || echo no)
WITH_JAVA := export JAVA_HOME && JAVA_HOME="$$(scripts/java)" &&
SPARK_MODULES = $(wildcard src/millpond/runtimes/spark src/millpond/runtimes/spark.py)

# How long `make kill`, `make soak`, `make model` and `make chaos` go on; inside `make test` they run in their short form.
# SEED=… repeats a soak, the random schedules of the model, or a chaos; without a seed, as in `make test`, it is a fixed
# list of them.
ROUNDS ?= 100
MINUTES ?= 30
SEED ?= random

.PHONY: demo test lint types unit spark kill soak model chaos chaos-spark bench bench-windows bench-life format lock clean

demo: .venv/run.stamp
	@$(WITH_JAVA) $(BIN)/millpond demo

test:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory spark
	@$(MAKE) --no-print-directory chaos ROUNDS=0 SEED=
	@$(MAKE) --no-print-directory soak MINUTES=5 SEED=
	@echo
	@for group in unit spark chaos soak; do printf '%-6s' $$group; grep -E ' in [0-9.]+s' .venv/$$group.log | tail -n 1; done

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	@find src -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 450 { print "long module:", $$2, $$1, "lines" }'

types: .venv/dev.stamp
	$(BIN)/mypy

# everything that needs no JVM: seconds
unit: .venv/dev.stamp
	@$(PYTEST) tests src/millpond --ignore=tests/spark --ignore=tests/soak --ignore=tests/chaos $(SPARK_MODULES:%=--ignore=%) | tee .venv/unit.log

spark: .venv/dev.stamp
	@$(WITH_JAVA) $(PYTEST) tests/spark $(SPARK_MODULES) | tee .venv/spark.log

# kill -9 of drivers and executors, ROUNDS times
kill: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_KILL_ROUNDS=$(ROUNDS) && $(PYTEST) tests -k kill -s --timeout=0

# random actions under load, for MINUTES
soak: .venv/dev.stamp
	@export MILLPOND_SOAK_SECONDS=$$(($(MINUTES) * 60)) MILLPOND_SOAK_SEED=$(SEED) && $(PYTEST) tests/soak -s --timeout=0 | tee .venv/soak.log

# every schedule of the protocol's actors with one turn, random ones, and those with two turns: MINUTES for each scenario
model: .venv/dev.stamp
	@export MILLPOND_MODEL_SECONDS=$$(($(MINUTES) * 60)) MILLPOND_MODEL_SEED=$(SEED) && $(PYTEST) tests/protocol -s --timeout=0

# drivers, admins and readers in processes of their own under random signals, ROUNDS times; 0 is the short form
chaos: .venv/dev.stamp
	@export MILLPOND_CHAOS_ROUNDS=$(ROUNDS) MILLPOND_CHAOS_SEED=$(SEED) && $(PYTEST) tests/chaos -k "not spark" -s --timeout=0 | tee .venv/chaos.log

chaos-spark: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_CHAOS_SPARK_ROUNDS=$(ROUNDS) MILLPOND_CHAOS_SEED=$(SEED) && $(PYTEST) tests/chaos -k spark -s --timeout=0

bench: .venv/dev.stamp
	@$(WITH_JAVA) $(BIN)/python bench

bench-windows: .venv/dev.stamp
	@$(WITH_JAVA) $(BIN)/python bench/windows.py

# recovery, compaction, many keys, start-up; needs no JVM
bench-life: .venv/dev.stamp
	@$(BIN)/python bench/life.py

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The run lock is a part of the dev lock, so that what is tested is what is run.
COMPILE = $(BIN)/python -m uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: .venv/made.stamp
	$(PIP) uv
	$(COMPILE) requirements/dev.in requirements/run.in pyproject.toml -o requirements/dev.txt
	$(COMPILE) requirements/run.in pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	$(COMPILE) requirements/java.in -o requirements/java.txt

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache state spark-warehouse metastore_db derby.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/made.stamp: scripts/venv
	@scripts/venv $(PYTHON)
	@touch $@

.venv/run.stamp: .venv/made.stamp requirements/run.txt pyproject.toml
	@echo "millpond: installing into .venv; the first time this takes a minute or two" >&2
	@$(PIP) --require-hashes -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: .venv/made.stamp requirements/dev.txt pyproject.toml
	@echo "millpond: installing into .venv; the first time this takes a minute or two" >&2
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@ .venv/run.stamp
