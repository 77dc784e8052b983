# Everything a person or CI runs. `make run` and `make test` set up whatever is missing.
VENV    := .venv
PY      := $(VENV)/bin/python
RUNS    := $(VENV)/.runs
STAMP   := $(VENV)/.installed
PYTHON  ?= python3
# How many processes run the tests; 0 is one, for a debugger.
JOBS    ?= 4
# Tests that look at the whole machine: each process has its own, as far as it can see.
APART   := $(if $(filter-out 0,$(JOBS)),--tx '$(JOBS)*popen//python=tests/apart' --dist loadscope)
# Where those tests are, unless ARGS says it: who looks elsewhere collects ten thousand others.
WHERE    = $(if $(filter tests/%,$(ARGS)),,$(1))
# Debian's packages that tests, the bench and namespaces use; see tools/system-packages.
.DEFAULT_GOAL := help
.PHONY: help dev run test check docs format bench fuzz hold conformance interop lab nightly reference pictures proto dist image lock changelog release clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(RUNS) ## Start a server, an agent and a demo target in this terminal
	$(VENV)/bin/isthmus up

# What running needs, and nothing else: no test tools, no system packages.
$(RUNS): pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable .
	touch $@

dev: $(STAMP) ## Install all that tests and checks need: tools, and system packages where root and apt are

$(STAMP): $(RUNS) tools/system-packages
	bash tools/system-packages
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --group dev
	touch $@

test: dev ## Run the tests (not those of interop, lab and nightly)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not interop and not lab and not nightly" --ignore=tests/lab $(ARGS)

check: dev docs ## Lint, format check, strict types, architecture, links of the documents
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/test_architecture.py

docs: export NO_MKDOCS_2_WARNING = 1
docs: dev ## Build the documents as a site, in build/docs; a dead link is an error
	$(VENV)/bin/mkdocs build --strict

format: dev ## Format and fix what can be fixed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

interop: dev ## Test against foreign peers: kube-apiserver, konnectivity-client, h2spec, Go's yamux
	$(PY) tests/interop/kube/build.py
	$(PY) tests/interop/gobuild.py
	$(PY) -m pytest $(APART) -m "interop and not nightly" $(call WHERE,tests/interop) $(ARGS)

lab: dev ## Run every topology of the lab, in network namespaces (needs root)
	-$(PY) -m conformance.run --build
	$(PY) -m pytest $(APART) -m "lab and not nightly" $(call WHERE,tests/lab tests/docs) $(ARGS)

nightly: export ISTHMUS_NIGHTLY = 1
nightly: dev ## Run what only a release needs: long tests, all pairs of ends, many examples, make hold
	$(PY) tests/interop/kube/build.py
	$(PY) -m pytest -m nightly $(ARGS)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "hypothesis and not interop and not lab and not nightly" $(ARGS)
	$(PY) -m hold.run --quick
	$(PY) -m conformance.run --mode nftables --mode iptables

bench: dev ## Measure direct, a haproxy pair and Isthmus in one run
	$(PY) bench/run.py $(ARGS)

fuzz: dev ## Fuzz parsers and sessions; ARGS="mux_session --seconds 60", all of them without a name
	$(PY) tests/fuzz/run.py $(ARGS)

hold: dev ## Break things under load and count what was lost; ARGS="--only A,C --quick"
	$(PY) -m hold.run $(ARGS)

reference: dev ## Write the reference pages and the doctor's tables from the declarations
	$(PY) -m isthmus.cli.flagdocs docs/reference
	$(PY) -m isthmus.tools.metrics_reference > docs/reference/metrics.md
	$(PY) tools/reference_docs.py
	$(PY) -m isthmus.tools.doctor.reference docs/how-to/doctor.md

pictures: dev ## Take the pictures of the dashboard in docs/pictures, with Chromium
	$(PY) tests/browser/take_pictures.py

proto: dev ## Regenerate the messages from their .proto files
	$(PY) -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/isthmus/wire/link.proto src/isthmus/wire/konnectivity.proto src/isthmus/wire/kep1281.proto src/isthmus/wire/pprof.proto

# The time that files in dist/ have: of the last commit, so that building again gives the same bytes.
dist image release: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),315532800)
dist: dev ## Build the wheel and the source distribution, in dist/
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist .

conformance: dev ## Run Kubernetes' own tests against the lab's cluster; ARGS="--only short"
	$(PY) -m conformance.run $(ARGS)

image: dist ## Build the container image: by podman, buildah or docker, or as an OCI archive in dist/
	PYTHONPATH=tools $(PY) -m container $(ARGS)

lock: dev ## Write the packages of the image with their hashes, from pyproject.toml
	$(PY) tools/lock-requirements

changelog: dev ## Show what is new since the last release; VERSION=1.2.3 makes it that version's
	$(if $(VERSION),$(PY) tools/set-version $(VERSION))
	$(VENV)/bin/towncrier build $(if $(VERSION),--version $(VERSION) --yes,--version next --draft)

release: dev ## Check what a release needs and fill dist/; ARGS=--rehearsal before all is committed, ARGS=--tag tags it
	PYTHONPATH=tools:tests/interop $(PY) -m release $(ARGS)

clean: ## Remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build/docs
