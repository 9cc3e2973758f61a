# Everything a contributor types. `make` alone prints this list.
#
#   PYTHON3=python3.12   the interpreter that .venv is made with (3.11 or newer)
#   PIP_ARGS=...         more options for pip, for example an index with CPU builds of torch
#   BENCH_ARGS=...       topics and options of the benchmarks, for example 'scale --rows 1e6,1e8'
#   SEED=1 COUNT=400     which mutations are drawn, and how many; ROOM=label_party/store: of which room
#   PYTEST_ARGS=...      options for pytest instead of running in parallel, for example '-k noise'

PYTHON3 ?= python3
PIP_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?= -n logical --maxprocesses 4 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
STAMP := $(VENV)/.installed

# The stub compiler is older than the runtime on purpose (protos/requirements.txt says why),
# so it lives by itself.
PROTOS_VENV := .venv-protos
PROTOS_STAMP := $(PROTOS_VENV)/.installed
PROTO_DIR := protos/labelveil/v1
PROTO_FILES := $(wildcard $(PROTO_DIR)/*.proto)
WIRE := common/wire
# The package that the stubs import each other from, through the link to common/.
WIRE_PACKAGE := labelveil/common/wire

# The tests start hundreds of Pythons, which otherwise compile our code and theirs every time.
unexport PYTHONDONTWRITEBYTECODE

PIP_QUIET := --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call make_venv,DIR): a virtual environment, or one line saying what is missing.
define make_venv
	@command -v $(PYTHON3) >/dev/null || \
	  { echo "error: no '$(PYTHON3)' on PATH; install Python 3.11 or newer, or name one: make PYTHON3=/path/to/python3" >&2; exit 1; }
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON3) is $$($(PYTHON3) -V 2>&1), labelveil needs 3.11 or newer; name one: make PYTHON3=python3.12" >&2; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON3) cannot make virtual environments (no ensurepip); on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@test -x $(1)/bin/pip || { echo "Creating $(1)"; $(PYTHON3) -m venv --clear $(1); }
endef

.PHONY: venv
venv: $(STAMP) ## Create .venv with the pinned packages (again only when the pins change)

# setuptools first and no build isolation: the editable install then builds with the pinned one.
$(STAMP): pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	@echo "Installing labelveil[dev] into $(VENV); the first time takes a few minutes"
	@$(PYTHON) -m pip install $(PIP_QUIET) $(PIP_ARGS) --constraint constraints.txt setuptools
	@PYTHONWARNINGS=ignore $(PYTHON) -m pip install $(PIP_QUIET) $(PIP_ARGS) --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

.PHONY: test
test: $(STAMP) ## Run the tests but for the slow ones (minutes)
	$(PYTHON) -m pytest -m "not slow" $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(STAMP) ## Run every test (some forty minutes on two cores)
	$(PYTHON) -m pytest $(PYTEST_ARGS)

# What users with older libraries have: the lowest versions that pyproject.toml admits, of what it
# names. The tests are those of the doors: commands, the face, what reads and writes other formats.
LOWEST := .venv-lowest
DOORS := tests/labelveil/test_face.py tests/labelveil/test_estimators.py tests/labelveil/simulation \
  tests/common/test_command_line.py tests/common/config tests/common/exact tests/common/randomizers \
  tests/common/mechanisms/central tests/label_party/commands tests/label_party/release \
  tests/label_party/server tests/feature_party/client tests/feature_party/commands \
  tests/feature_party/model tests/feature_party/training

.PHONY: lowest
lowest: ## Run the doors' tests with the lowest versions that pyproject.toml admits
	$(call make_venv,$(LOWEST))
	@$(LOWEST)/bin/pip install $(PIP_QUIET) $(PIP_ARGS) uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --editable '.[demo,export,central,pld,postgres,tracing]'
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python \
	  'pytest>=8,<10' pytest-timeout pytest-xdist 'hypothesis<7' psutil pyyaml jsonschema
	$(LOWEST)/bin/python -m pytest -m "not slow" $(PYTEST_ARGS) $(DOORS)

.PHONY: test-exhaustive
test-exhaustive: $(STAMP) ## Run every test, and where one tries a sample, try everything (hours)
	LABELVEIL_EXHAUSTIVE=1 LABELVEIL_TEST_SEED=fresh $(PYTHON) -m pytest $(PYTEST_ARGS)

SEED ?= 1
COUNT ?= 400
ROOM ?=

.PHONY: mutants
mutants: $(STAMP) ## Make small faults, and list those that no test notices (hours for 400)
	$(PYTHON) -m tests.mutants --seed $(SEED) --count $(COUNT) $(addprefix --room ,$(ROOM))

.PHONY: unvaried
unvaried: $(STAMP) ## Run the quick tests, and list operations whose outcomes they never vary
	$(PYTHON) -m tests.mutants.unvaried $(addprefix --room ,$(ROOM))

.PHONY: check
check: $(STAMP) check-wire ## Check format, lint, types and the generated stubs; advise on sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if command -v promtool >/dev/null; then cd deploy/label-party/prometheus && promtool check rules alerts.yaml && promtool test rules alerts_test.yaml; \
	  else echo "promtool is not installed: the tests evaluate the alerts by themselves"; fi
	@$(PYTHON) -m tests.sizes

.PHONY: format
format: $(STAMP) ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: demo
demo: $(STAMP) ## Run both parties on this machine on public data and write a report
	$(BIN)/labelveil demo

.PHONY: architecture
architecture: $(STAMP) ## Draw docs/architecture.md and its picture again from the imports
	$(PYTHON) -m tests.architecture

.PHONY: bench
bench: $(STAMP) ## Measure speed and memory (asserts nothing)
	$(PYTHON) -m benchmarks $(BENCH_ARGS)

.PHONY: compare
compare: $(STAMP) ## Compare randomizers and objectives on real data (up to two hours)
	$(PYTHON) -m benchmarks.comparison

.PHONY: coverage
coverage: $(STAMP) ## Measure how often intervals of evaluations contain the truth (hours)
	$(PYTHON) -m benchmarks.coverage fixed --rows 21000
	$(PYTHON) -m benchmarks.coverage trained --epsilon 1 --rows 8000
	$(PYTHON) -m benchmarks.coverage dealt --epsilon 1 --rows 4000
	$(PYTHON) -m benchmarks.coverage tails --rows 8000 --releases 40

.PHONY: published
published: $(STAMP) ## Rerun the published comparisons; what was found is kept (some hours)
	$(PYTHON) -m benchmarks.published

$(PROTOS_STAMP): protos/requirements.txt
	$(call make_venv,$(PROTOS_VENV))
	@$(PROTOS_VENV)/bin/python -m pip install $(PIP_QUIET) $(PIP_ARGS) --requirement protos/requirements.txt
	@touch $@

# $(call generate,DIR): write the stubs to DIR/labelveil/common/wire. The virtual path makes them
# import each other as `labelveil.common.wire`, while protos/ keeps the folder that its package name
# asks for.
generate = PATH="$(CURDIR)/$(PROTOS_VENV)/bin:$$PATH" $(PROTOS_VENV)/bin/python -m grpc_tools.protoc \
  -I$(WIRE_PACKAGE)=$(PROTO_DIR) --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) \
  --mypy_grpc_out=quiet:$(1) $(PROTO_FILES)

.PHONY: protos
protos: $(PROTOS_STAMP) ## Regenerate common/wire from protos/
	@rm -f $(WIRE)/*_pb2.py $(WIRE)/*_pb2.pyi $(WIRE)/*_pb2_grpc.py $(WIRE)/*_pb2_grpc.pyi
	@$(call generate,.)

.PHONY: check-wire
check-wire: $(PROTOS_STAMP)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && $(call generate,"$$tmp") && \
	diff -rq -x __init__.py -x __pycache__ "$$tmp/$(WIRE_PACKAGE)" $(WIRE) >/dev/null || \
	  { echo "error: $(WIRE) is not what protos/ generates; run 'make protos' and commit the result" >&2; exit 1; }

.PHONY: docs-reference
docs-reference: $(STAMP) ## Write docs/configuration.md and the README's picture again
	$(PYTHON) docs/write_configuration.py
	$(PYTHON) docs/write_overview.py

.PHONY: docs
docs: $(STAMP) ## Build the documentation as a site, into out/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: lock
lock: $(STAMP) ## Write what each party's machine installs, with the digest of every file
	$(PYTHON) deploy/lock.py

.PHONY: dist
dist: $(STAMP) ## Build source archive and wheel of what is committed (REPOSITORY=https://… for links)
	$(PYTHON) docs/write_dist.py

.PHONY: clean
clean: ## Remove caches and build outputs (the environment stays)
	rm -rf build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage htmlcov
	find common label_party feature_party labelveil tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## Remove the virtual environments too
	rm -rf $(VENV) $(PROTOS_VENV)
