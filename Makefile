.DEFAULT_GOAL := help
.PHONY: help venv setup check nightly test lint clean

PYTHON ?= python3
TARGET := vllm==0.32.0
BIN := .venv/bin
# What the mutants of vLLM came to; each night goes on where the last one stopped.
MUTANTS := mutants.jsonl
DONE := .venv/.tailproof-setup
# A changed pyproject.toml, another Python or a moved folder each ask for a new .venv.
WANTED = $(shell { $(PYTHON) --version; pwd; cat pyproject.toml; } | sha256sum | cut -c 1-64)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## create .venv and the environment of the real vLLM; a second run does nothing
	@$(PYTHON) -c "$$ALONE" $(MAKE) --no-print-directory venv
	@$(BIN)/python -m tailproof.targets.setup '$(TARGET)' > /dev/null

# One at a time: the lock ends with the last process that a killed run has left.
define ALONE
import fcntl, subprocess, sys
lock = open(".setup.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
sys.exit(subprocess.call(sys.argv[1:], pass_fds=[lock.fileno()]))
endef
export ALONE

venv:
	@if [ "$$(cat $(DONE) 2>/dev/null)" != "$(WANTED)" ] || ! [ -x $(BIN)/python ]; then \
	  rm -rf .venv && $(PYTHON) -m venv .venv \
	  && $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet -e '.[dev]' \
	  && printf '%s\n' "$(WANTED)" > $(DONE).new && mv $(DONE).new $(DONE); \
	fi

check: setup ## check every rule on the real vLLM (ARGS='...' passes options)
	$(BIN)/tailproof check $(ARGS)

nightly: setup ## fuzz the two newest versions for an hour each, half of it with a store; mutants for two hours
	for version in 0.32.0 0.33.0; do for tier in core store; do \
	  $(BIN)/tailproof fuzz --target vllm==$$version --tier $$tier --seconds 1800 --workers 2 || exit; \
	done; done
	$(BIN)/python bench/mutation.py --generated --seconds 20 --total 7200 --json $(MUTANTS)
	$(BIN)/python bench/mutation.py --semantic --seconds 20 --json $(MUTANTS)

test: lint ## run the linters, the type checker and all tests
	$(BIN)/python -m pytest -n 2

lint: setup ## run the linters, the type checker and the check of the import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

clean: ## remove .venv and all caches of this folder; built environments stay
	rm -rf .venv .setup.lock build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
