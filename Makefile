# make demo   set up .venv and run the demo
# make test   set up .venv and run everything that a change must pass
#
# Both install locked versions, and only when a lock has changed. PYTHON=… chooses the interpreter of a new .venv.
# CONTRIBUTING.md explains the other targets.

PYTHON ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# bash, because `pytest | tee` has to fail when pytest fails; make on macOS is too old for .SHELLFLAGS
SHELL := /bin/bash
PYTEST := set -o pipefail && $(BIN)/python -m pytest --color=$$(test -t 2 && echo yes || echo no)
# Temporary files of the unit tests go to memory and are removed at the end. Those of tests on Spark, of the soak and of
# chaos are on the disk.
IN_MEMORY := export TMPDIR && TMPDIR="$$(scripts/memory)" && trap 'rm -rf "$$TMPDIR"' EXIT &&
WITH_JAVA := export JAVA_HOME && JAVA_HOME="$$(scripts/java)" &&
SPARK_MODULES = $(wildcard src/millpond/runtimes/spark src/millpond/runtimes/spark.py)
# `make unit`, `make spark` and `make kafka-tests` spread their tests over this many processes. 0: one process, as a debugger needs it.
WORKERS ?= auto
NOT_UNIT = tests/spark tests/kafka tests/soak tests/chaos tests/packaging $(SPARK_MODULES)

# How long `make kill`, `make kafka-kill`, `make soak`, `make model` and `make chaos` run. `make test` runs them in a short form.
# SEED=… repeats one random run of a soak, a model or a chaos test. With an empty SEED, as in `make test`, the seeds
# are a fixed list.
ROUNDS ?= 100
MINUTES ?= 30
SEED ?= random

.PHONY: bench bench-windows bench-columns bench-kafka bench-life bench-replicas format hooks lock upgrade clean
.PHONY: demo test lint types docs unit wheel spark kafka-tests kafka kill kill-hosts kafka-kill soak model chaos chaos-spark

demo: .venv/run.stamp
	@$(WITH_JAVA) $(BIN)/millpond demo

test:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory wheel
	@$(MAKE) --no-print-directory spark
	@$(MAKE) --no-print-directory kafka-tests
	@$(MAKE) --no-print-directory chaos ROUNDS=0 SEED=
	@$(MAKE) --no-print-directory soak MINUTES=2 SEED=
	@echo
	@for group in unit wheel spark kafka chaos soak; do printf '%-6s' $$group; grep -E ' in [0-9.]+s' .venv/$$group.log | tail -n 1; done

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	@find src -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 450 { print "long module:", $$2, $$1, "lines" }'

# mypy: strict over src and examples, a little less strict over tests. pyright: what a user's editor sees in examples.
types: .venv/dev.stamp
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# the site, in build/site; a dead link or a page outside the navigation is an error
docs: .venv/dev.stamp
	$(BIN)/mkdocs build --strict

# everything that needs no JVM
unit: .venv/dev.stamp
	@$(IN_MEMORY) $(PYTEST) -n $(WORKERS) --dist worksteal -o tmp_path_retention_policy=failed \
		tests src/millpond $(NOT_UNIT:%=--ignore=%) | tee .venv/unit.log

# builds the wheel and the sdist and installs them into a fresh environment, as a user does; needs an index
wheel: .venv/dev.stamp
	@$(PYTEST) tests/packaging | tee .venv/wheel.log

# at most two processes, because each has a JVM and starts others
spark: .venv/dev.stamp
	@$(WITH_JAVA) $(PYTEST) -n $(WORKERS) --maxprocesses 2 --dist loadfile --no-loadscope-reorder \
		tests/spark $(SPARK_MODULES) | tee .venv/spark.log

# at most two processes, because each starts brokers; scripts/kafka downloads their jars the first time
kafka-tests: .venv/dev.stamp
	@$(WITH_JAVA) $(PYTEST) -n $(WORKERS) --maxprocesses 2 --dist loadfile --no-loadscope-reorder \
		tests/kafka | tee .venv/kafka.log

# a broker for trying things out, on 127.0.0.1:PORT until Ctrl-C; its data stays in build/kafka
PORT ?= 9092
kafka:
	@scripts/kafka run $(PORT)

# kill -9 of drivers and executors, ROUNDS times
kill: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_KILL_ROUNDS=$(ROUNDS) && $(PYTEST) tests -k kill -s --timeout=0

# kill -9 of the hosts of a cluster whose app has standbys, ROUNDS times
kill-hosts: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_KILL_HOSTS_ROUNDS=$(ROUNDS) && $(PYTEST) tests/spark/test_hosts_on_spark.py -s --timeout=0

# Kafka to Kafka: kill -9 of drivers, workers and brokers, at each step and call, ROUNDS times with other random numbers
kafka-kill: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_KAFKA_KILL_ROUNDS=$(ROUNDS) && \
		$(PYTEST) tests/kafka/test_kafka_crashes.py tests/kafka/test_kafka_cluster.py tests/kafka/test_kafka_spark_kills.py -s --timeout=0

# random actions under load, for MINUTES
soak: .venv/dev.stamp
	@export MILLPOND_SOAK_SECONDS=$$(($(MINUTES) * 60)) MILLPOND_SOAK_SEED=$(SEED) && $(PYTEST) tests/soak -s --timeout=0 | tee .venv/soak.log

# schedules of the commit protocol's actors: all with one turn, random ones, all with two turns; MINUTES per scenario
model: .venv/dev.stamp
	@export MILLPOND_MODEL_SECONDS=$$(($(MINUTES) * 60)) MILLPOND_MODEL_SEED=$(SEED) && $(PYTEST) tests/protocol -s --timeout=0

# drivers, admins and readers in separate processes under random signals, ROUNDS times; 0 is the short form
chaos: .venv/dev.stamp
	@export MILLPOND_CHAOS_ROUNDS=$(ROUNDS) MILLPOND_CHAOS_SEED=$(SEED) && $(PYTEST) tests/chaos -k "not spark" -s --timeout=0 | tee .venv/chaos.log

chaos-spark: .venv/dev.stamp
	@$(WITH_JAVA) export MILLPOND_CHAOS_SPARK_ROUNDS=$(ROUNDS) MILLPOND_CHAOS_SEED=$(SEED) && $(PYTEST) tests/chaos -k spark -s --timeout=0

# one table of all benchmarks; BENCH="--only NAME…" chooses some, --quick checks that they run, --no-peers leaves Spark out
BENCH ?=
bench: .venv/dev.stamp
	@$(WITH_JAVA) $(BIN)/python bench $(BENCH)

bench-windows: .venv/dev.stamp
	@$(WITH_JAVA) $(BIN)/python bench --only windows $(BENCH)

# functions over columns against functions over rows; needs no JVM
bench-columns: .venv/dev.stamp
	@$(BIN)/python bench --only map_batch apply_batch aggregate $(BENCH)

# from Kafka to Kafka against Quix Streams; BENCH="--only kafka-once" (or kafka-latency, kafka-source) runs one part
QUIX := build/quix-venv
bench-kafka: .venv/dev.stamp $(QUIX)/made.stamp
	@$(WITH_JAVA) $(BIN)/python bench $(if $(findstring --only,$(BENCH)),,--only kafka) $(BENCH)

# what Millpond is compared with has an environment of its own
$(QUIX)/made.stamp: .venv/made.stamp
	@echo "millpond: installing Quix Streams into $(QUIX)" >&2
	@$(BIN)/python -m venv $(QUIX)
	@$(QUIX)/bin/python -m pip install -qq --disable-pip-version-check quixstreams==3.28.1
	@touch $@

# standbys on a cluster of three hosts, drivers that take over, tables, readers, rescaling, stores; BENCH="--only
# replicas-cost" runs one part
REPLICAS := replicas-standbys replicas-driver replicas-rescale replicas-table replicas-reads replicas-stores
bench-replicas: .venv/dev.stamp
	@$(WITH_JAVA) $(BIN)/python bench $(if $(findstring --only,$(BENCH)),,--only $(REPLICAS)) $(BENCH)

# recovery, compaction, many keys, start-up; needs no JVM
bench-life: .venv/dev.stamp
	@$(BIN)/python bench/life.py

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ruff before every commit, all of lint and types before every push
hooks: .venv/dev.stamp
	@command -v pre-commit >/dev/null || { echo "millpond: pre-commit is not installed. Run: pipx install pre-commit" >&2; exit 1; }
	pre-commit install --install-hooks --hook-type pre-commit --hook-type pre-push

# Versions that are in a lock already stay; `make upgrade` takes the newest ones.
# run.txt is a subset of dev.txt: what is tested is what runs.
COMPILE = $(BIN)/python -m uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: .venv/made.stamp
	$(PIP) uv
	$(COMPILE) --all-extras requirements/dev.in requirements/run.in pyproject.toml -o requirements/dev.txt
	$(COMPILE) requirements/run.in pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	$(COMPILE) requirements/java.in -o requirements/java.txt

upgrade:
	@$(MAKE) --no-print-directory lock UPGRADE=--upgrade

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
