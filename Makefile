# Everything a person or CI runs. `make run` and `make test` set up whatever is missing.
VENV    := .venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.installed
PYTHON  ?= python3
# How many processes run the tests; 0 is one, for a debugger. Lab tests look at the whole machine,
# and run one by one.
JOBS    ?= 3
# Debian's packages that tests, the bench and namespaces use; see tools/system-packages.
.DEFAULT_GOAL := help
.PHONY: help setup run test check format bench interop lab proto clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Make the virtual environment and install system packages where possible

$(STAMP): pyproject.toml tools/system-packages
	bash tools/system-packages
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $@

run: setup ## Start a server, an agent and a demo target in this terminal
	$(VENV)/bin/isthmus up

test: setup ## Run the tests (not those of interop and lab)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not interop and not lab" $(ARGS)

check: setup ## Lint, format check, strict types, architecture
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/test_architecture.py

format: setup ## Format and fix what can be fixed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

interop: setup ## Test against foreign peers: kube-apiserver, konnectivity-client, h2spec, Go's yamux
	$(PY) tests/interop/kube/build.py
	$(PY) -m pytest -m interop $(ARGS)

lab: setup ## Run every topology of the lab, in network namespaces (needs root)
	$(PY) -m pytest -m lab $(ARGS)

bench: setup ## Measure direct, a haproxy pair and Isthmus in one run
	$(PY) bench/run.py $(ARGS)

proto: setup ## Regenerate the messages from their .proto files
	$(PY) -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/isthmus/wire/link.proto src/isthmus/wire/konnectivity.proto src/isthmus/wire/kep1281.proto src/isthmus/wire/pprof.proto

clean: ## Remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
