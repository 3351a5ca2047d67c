# Every target except `help` and `clean` first creates .venv if it is missing or older than its inputs.
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
# Selects tests of make soak; empty selects all.
ONLY ?=
KUBERNETES ?= 1.35.4
PARTS ?=
WORKLOADS ?= 20
UPGRADE ?=
ACCOUNT ?=
SUBSCRIPTION ?=
DOLLARS ?= 0
VERSION ?=
TAG ?=
IMAGE ?=
BASE ?=
SIGN ?=
DRAFT ?=
ADVISORIES ?=

# Compile modules once, and not in each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
READY := .venv/.ready
# Tools that only releases and audits need are not in .venv.
TOOLS := build/release-tools
WITH_TOOLS := PATH="$(CURDIR)/$(TOOLS)/bin:$(CURDIR)/$(BIN):$$PATH"

.PHONY: help setup demo picture test check lint format types layers packaging package conformance oracle kops charts manifest e2e aws-contract azure-contract release release-check base-image audit mutants soak properties interpreters full bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r name text; do printf '%-15s%s\n' "$$name" "$$text"; done

$(READY): requirements/dev.txt pyproject.toml tools/setup
	@tools/setup "$(PYTHON)"

$(TOOLS)/.ready: $(READY) requirements/release.txt
	@$(BIN)/uv --no-config venv --quiet --clear --python $(BIN)/python $(TOOLS)
	@$(BIN)/uv --no-config pip install --quiet --python $(TOOLS) --require-hashes --only-binary :all: --requirement requirements/release.txt
	@touch $@

setup: $(READY) ## create .venv with the locked packages and the program

demo: $(READY) ## watch gpuscaler scale a whole cluster in one process, for about a minute; the report is in build/demo
	@$(BIN)/gpuscaler demo --out build/demo

picture: $(READY) ## regenerate the README's picture
	@$(BIN)/gpuscaler demo --out build/demo >/dev/null
	@cp build/demo/screen.svg docs/images/demo.svg

test: $(READY) ## run the tests, except those that compile third-party programs, with few random cases
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not conformance and not kops and not charts and not e2e"
	@echo "Further checks: make check (ruff, mypy, rooms), oracle, charts and e2e (tests with kube-scheduler, kubectl, helm and a real control"
	@echo "plane), conformance, mutants, soak (10,000 random schedules, 50 here) and properties (30 times the examples). .ci/run runs some of each,"
	@echo "make full runs all of it, on every available interpreter and Kubernetes release, and kops (generated files and kOps' own code)."

check: lint types layers packaging ## run lint, types, layers and the packaging tests

lint: $(READY) ## run ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## fix and format the code with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY) ## run mypy --strict
	@$(BIN)/mypy

layers: $(READY) ## run import-linter: which room may import which
	@$(BIN)/lint-imports --no-logo

packaging: $(READY) ## run the tests of the lock files, the metadata and the rooms
	@$(BIN)/python -m pytest -q tests/packaging

package: $(READY) ## build wheel and sdist, and run the wheel in its own environment
	@tools/check_package

conformance: $(READY) ## compare CASES=20000 cases, PLANS=300 plans, AUTOSCALERS=3000 autoscalers of SEED=1 with Kubernetes' own code
	@$(BIN)/python -m tests.conformance --cases $(CASES) --seed $(SEED)
	@$(BIN)/python -m tests.conformance --plans $(PLANS) --seed $(SEED)
	@$(BIN)/python -m tests.conformance_hpa --cases $(AUTOSCALERS) --seed $(SEED)

oracle: $(READY) ## run the tests against third-party programs: kube-scheduler's filters, the HorizontalPodAutoscaler, kubectl, prometheus-adapter, and eksctl's schema
	@$(BIN)/python -m pytest -q -m conformance tests/conformance tests/conformance_hpa tests/embedded tests/metrics tests/generating

kops: $(READY) ## give the generated files of kOps to kOps' own code, which takes minutes to compile
	@$(BIN)/python -m pytest -q -m kops tests/generating

charts: $(READY) ## run the tests of the chart with the real helm, and of the image's build steps
	@$(BIN)/python -m pytest -q -m charts tests/charts

manifest: $(READY) ## generate deploy/gpuscaler.yaml, the schema of the chart's values and the tables of the run file's reference
	@$(BIN)/python tools/chart_schema.py
	@$(BIN)/python tools/reference_tables.py
	@$(BIN)/python -m tests.charts.manifest

e2e: $(READY) ## run the tests on a real control plane of KUBERNETES=1.35.4, which is compiled the first time (four minutes)
	@$(BIN)/python -m tests.e2e $(KUBERNETES)
	@KUBERNETES=$(KUBERNETES) $(BIN)/python -m pytest -q -s -n 2 --dist loadfile -m e2e tests/e2e

aws-contract: $(READY) ## make the same calls to your own AWS account (ACCOUNT=its number) and to our endpoint, and report every difference; DOLLARS=0 is the limit for machines
	@$(BIN)/python -m tests.embedded.aws.contract --account "$(ACCOUNT)" --dollars $(DOLLARS)

azure-contract: $(READY) ## make the same calls to your own Azure subscription (SUBSCRIPTION=its id) and to our endpoint, and report every difference; DOLLARS=0 is the limit for machines
	@$(BIN)/python -m tests.embedded.azure.contract --subscription "$(SUBSCRIPTION)" --dollars $(DOLLARS)

release: $(READY) $(TOOLS)/.ready ## build wheel, sdist, image, chart, manifest, bills of materials, checksums and signature in build/release: SIGN=keyless or a key file; or DRAFT=1
	@$(WITH_TOOLS) $(BIN)/python -m tools.release --version "$(VERSION)" --tag "$(TAG)" --image "$(IMAGE)" --base "$(BASE)" --sign "$(SIGN)" $(if $(DRAFT),--draft) $(PARTS)

release-check: $(READY) $(TOOLS)/.ready ## build a draft twice, the second time with another user's settings; every byte must be the same; PARTS="wheel sdist chart manifest sbom"
	@$(WITH_TOOLS) tools/check_release $(PARTS)

base-image: $(READY) ## write the current digest of the base image's tag into requirements/base-image.txt; needs skopeo
	@$(BIN)/python -m tools.release.base

audit: $(READY) $(TOOLS)/.ready ## find unsafe workflows, and locked packages that were withdrawn or have known vulnerabilities; ADVISORIES=no skips the vulnerabilities
	@$(WITH_TOOLS) $(BIN)/python -m tools.audit $(if $(filter no,$(ADVISORIES)),--no-advisories)

soak: $(READY) ## run RUNS=10000 random schedules of faults and restarts against the controller, and fewer of crashes, two leaders, groups changed by others, hostile workloads, Azure's operations, and whole AWS and Azure worlds; SEED=1; ONLY="test[7]" selects tests
	@SOAK_RUNS=$(RUNS) SOAK_SEED=$(SEED) $(BIN)/python -m pytest -q -n 2 --dist worksteal $(if $(ONLY),-k "$(ONLY)") tests/control/test_invariants.py tests/control/test_restarts.py tests/control/test_leadership.py tests/clouds/aws/buying/test_withdrawing.py tests/control/test_aws_random.py tests/control/test_aws_balance_random.py tests/clouds/azure/test_schedules.py tests/control/test_azure_random.py tests/hostile/test_random.py

properties: $(READY) ## try EXAMPLES=10 times as many random examples as each property declares
	@EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "hypothesis and not conformance and not kops and not charts and not e2e"

interpreters: $(READY) ## run the tests on every newer CPython that is installed here
	@tools/interpreters

full: $(READY) ## run everything that takes long, or PARTS="soak e2e"; when one part fails, the others still run; table in build/full.txt and build/full.json
	@$(BIN)/python tools/full.py $(PARTS)

mutants: $(READY) ## remove the code that handles each fault, one after the other: the test of that fault must fail
	@$(BIN)/python -m tests.faults

bench: $(READY) ## measure, print a table, write build/bench.json; WORKLOADS=20 is the number of random workloads on a real scheduler
	@WORKLOADS=$(WORKLOADS) $(BIN)/python -m benchmarks

lock: $(READY) ## generate the lock files; UPGRADE=--upgrade takes the newest versions
	@tools/lock $(UPGRADE)

clean: ## remove build outputs and caches; .venv stays
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
