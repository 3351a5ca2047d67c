# Every target but `help` and `clean` makes .venv first when it is missing or older than what it is made from.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CASES ?= 20000
PLANS ?= 300
AUTOSCALERS ?= 3000
RUNS ?= 10000
EXAMPLES ?= 10
SEED ?= 1
# Which of the tests of make soak: all of them where it is empty.
ONLY ?=
KUBERNETES ?= 1.35.4
PARTS ?=
WORKLOADS ?= 20
UPGRADE ?=
ACCOUNT ?=
DOLLARS ?= 0
VERSION ?=
TAG ?=
IMAGE ?=
BASE ?=
SIGN ?=
DRAFT ?=
ADVISORIES ?=

# Modules are compiled once, and not by each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
READY := .venv/.ready
# What only releases and audits need is not in .venv.
TOOLS := build/release-tools
WITH_TOOLS := PATH="$(CURDIR)/$(TOOLS)/bin:$(CURDIR)/$(BIN):$$PATH"

.PHONY: help setup demo picture test check lint format types layers packaging package conformance oracle charts manifest e2e aws-contract release release-check base-image audit mutants soak properties interpreters full bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r name text; do printf '%-15s%s\n' "$$name" "$$text"; done

$(READY): requirements/dev.txt pyproject.toml tools/setup
	@tools/setup "$(PYTHON)"

$(TOOLS)/.ready: $(READY) requirements/release.txt
	@$(BIN)/uv --no-config venv --quiet --clear --python $(BIN)/python $(TOOLS)
	@$(BIN)/uv --no-config pip install --quiet --python $(TOOLS) --require-hashes --only-binary :all: --requirement requirements/release.txt
	@touch $@

setup: $(READY) ## make .venv with the locked packages and the program

demo: $(READY) ## watch gpuscaler scale a whole cluster in one process, for about a minute; the report is in build/demo
	@$(BIN)/gpuscaler demo --out build/demo

picture: $(READY) ## draw the README's picture again
	@$(BIN)/gpuscaler demo --out build/demo >/dev/null
	@cp build/demo/screen.svg docs/images/demo.svg

test: $(READY) ## run the tests, all but those that compile programs of others, with few random draws
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not conformance and not charts and not e2e"
	@echo "Beyond this: make check (ruff, mypy, rooms), oracle, charts and e2e (tests that ask kube-scheduler, kubectl, helm and a real control"
	@echo "plane), conformance, mutants, soak (10,000 random schedules, 50 here) and properties (30 times the examples); .ci/run runs some of each,"
	@echo "make full all of it, on every interpreter and Kubernetes release that can be had."

check: lint types layers packaging ## lint, types, layers and the packaging tests

lint: $(READY) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY) ## mypy --strict
	@$(BIN)/mypy

layers: $(READY) ## import-linter: which room may import which
	@$(BIN)/lint-imports --no-logo

packaging: $(READY) ## the tests of the lock files, the metadata and the rooms
	@$(BIN)/python -m pytest -q tests/packaging

package: $(READY) ## build wheel and sdist, and run the wheel in an environment of its own
	@tools/check_package

conformance: $(READY) ## compare CASES=20000 cases, PLANS=300 plans, AUTOSCALERS=3000 autoscalers of SEED=1 with Kubernetes' own code
	@$(BIN)/python -m tests.conformance --cases $(CASES) --seed $(SEED)
	@$(BIN)/python -m tests.conformance --plans $(PLANS) --seed $(SEED)
	@$(BIN)/python -m tests.conformance_hpa --cases $(AUTOSCALERS) --seed $(SEED)

oracle: $(READY) ## the tests that ask programs of others: kube-scheduler's filters, the HorizontalPodAutoscaler, kubectl, prometheus-adapter
	@$(BIN)/python -m pytest -q -m conformance tests/conformance tests/conformance_hpa tests/embedded tests/metrics

charts: $(READY) ## the tests that ask the real helm: what the chart makes of values, and the image's steps
	@$(BIN)/python -m pytest -q -m charts tests/charts

manifest: $(READY) ## generate deploy/gpuscaler.yaml, the schema of the chart's values and the tables of the run file's reference
	@$(BIN)/python tools/chart_schema.py
	@$(BIN)/python tools/reference_tables.py
	@$(BIN)/python -m tests.charts.manifest

e2e: $(READY) ## the tests on a real control plane of KUBERNETES=1.35.4, which is compiled the first time: four minutes
	@$(BIN)/python -m tests.e2e $(KUBERNETES)
	@KUBERNETES=$(KUBERNETES) $(BIN)/python -m pytest -q -s -n 2 --dist loadfile -m e2e tests/e2e

aws-contract: $(READY) ## the same calls to your own AWS account, ACCOUNT=its number, and to our endpoint; every difference; machines for DOLLARS=0
	@$(BIN)/python -m tests.embedded.aws.contract --account "$(ACCOUNT)" --dollars $(DOLLARS)

release: $(READY) $(TOOLS)/.ready ## wheel, sdist, image, chart, manifest, bills of materials, checksums, signature in build/release: SIGN=keyless or a key file; or DRAFT=1
	@$(WITH_TOOLS) $(BIN)/python -m tools.release --version "$(VERSION)" --tag "$(TAG)" --image "$(IMAGE)" --base "$(BASE)" --sign "$(SIGN)" $(if $(DRAFT),--draft) $(PARTS)

release-check: $(READY) $(TOOLS)/.ready ## build a draft twice, the second time by another user's settings; PARTS="wheel sdist chart manifest sbom": every byte must be the same
	@$(WITH_TOOLS) tools/check_release $(PARTS)

base-image: $(READY) ## write which base image the tag means today, by its digest, into requirements/base-image.txt; needs skopeo
	@$(BIN)/python -m tools.release.base

audit: $(READY) $(TOOLS)/.ready ## workflows that are unsafe, locked packages that were withdrawn or have known vulnerabilities; ADVISORIES=no: no vulnerabilities
	@$(WITH_TOOLS) $(BIN)/python -m tools.audit $(if $(filter no,$(ADVISORIES)),--no-advisories)

soak: $(READY) ## RUNS=10000 schedules of faults and restarts against the controller, a tenth as many deaths, an eighth as many of two leaders, and as many of others who change a group, a hundredth of hostile workloads, and a four hundredth of whole worlds of AWS; SEED=1; ONLY="test[7]" of them
	@SOAK_RUNS=$(RUNS) SOAK_SEED=$(SEED) $(BIN)/python -m pytest -q -n 2 --dist worksteal $(if $(ONLY),-k "$(ONLY)") tests/control/test_invariants.py tests/control/test_restarts.py tests/control/test_leadership.py tests/clouds/aws/buying/test_withdrawing.py tests/control/test_aws_random.py tests/control/test_aws_balance_random.py tests/hostile/test_random.py

properties: $(READY) ## try EXAMPLES=10 times as many random examples of each property as are written beside it
	@EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "hypothesis and not conformance and not charts and not e2e"

interpreters: $(READY) ## run the tests on every newer CPython that is installed here
	@tools/interpreters

full: $(READY) ## everything that takes long, PARTS="soak e2e" or all; a part goes on when another fails; table in build/full.txt and build/full.json
	@$(BIN)/python tools/full.py $(PARTS)

mutants: $(READY) ## take out of the program, one after the other, what handles each fault: the test of that fault must fail
	@$(BIN)/python -m tests.faults

bench: $(READY) ## measure, print a table, write build/bench.json; WORKLOADS=20 random ones on a real scheduler
	@WORKLOADS=$(WORKLOADS) $(BIN)/python -m benchmarks

lock: $(READY) ## generate the lock files (UPGRADE=--upgrade: with the newest versions)
	@tools/lock $(UPGRADE)

clean: ## remove what was built, and the caches; .venv stays
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
