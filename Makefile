# `make smoke` trains for a few steps on this machine; `make test` runs what CI runs.
# Both set everything up from a fresh clone.

SHELL := /bin/sh
export LITELLM_LOCAL_MODEL_COST_MAP := True
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export APEX_HARBOR26_PYTHON := $(CURDIR)/.venv-harbor26/bin/python
export APEX_SKYRL04_PYTHON := $(CURDIR)/.venv-skyrl04/bin/python

VENV := .venv/.ready
HARBOR26 := .venv-harbor26/.ready
SKYRL04 := .venv-skyrl04/.ready
PYTEST := .venv/bin/python -m pytest

.PHONY: help smoke learn test test-full lint setup bubblewrap browser lock clean

help:
	@echo "make smoke      set up, then train the sample model for a few steps (no GPU needed)"
	@echo "make learn      set up, then train the sample model until it has learned (a quarter of an hour)"
	@echo "make test       set up, lint, and run the tests that CI runs"
	@echo "make test-full  everything: soaks, whole fault sweeps, benchmarks, SkyRL 0.4.0"
	@echo "make lint       ruff, mypy, import-linter"
	@echo "make setup      only set up"
	@echo "make lock       renew the pins in constraints/"

$(VENV): pyproject.toml constraints/skyrl-0.3.0.txt scripts/setup.sh
	scripts/setup.sh main

$(HARBOR26): pyproject.toml constraints/harbor-0.26.0.txt scripts/setup.sh
	scripts/setup.sh harbor26

$(SKYRL04): pyproject.toml constraints/skyrl-0.4.0.txt scripts/setup.sh
	scripts/setup.sh skyrl04

bubblewrap:
	@scripts/setup.sh bubblewrap

browser:
	@scripts/setup.sh browser

setup: bubblewrap browser $(VENV) $(HARBOR26)

smoke: bubblewrap $(VENV)
	.venv/bin/skyrl-apex train --preset smoke

# Training evaluates greedily before, during and after; sampled, before and after it.
LEARN := runs/learn-$(shell date +%Y%m%d-%H%M%S)
learn: bubblewrap $(VENV)
	.venv/bin/skyrl-apex eval --preset laptop-eval --run-dir $(LEARN)/sampled-before
	.venv/bin/skyrl-apex train --preset laptop --run-dir $(LEARN)/training
	.venv/bin/skyrl-apex eval --preset laptop-eval --run-dir $(LEARN)/sampled-after \
		--model $$(ls -d $(LEARN)/training/export/global_step_*/policy | tail -n 1)

# Tests that start whole runs or a Ray of their own have the cores to themselves. Benchmarks need a
# quiet machine, so they belong to test-full.
WHOLE_RUNS := tests/e2e tests/integration/embedded tests/integration/sandboxes \
	tests/integration/rollout/test_ray_runner.py tests/integration/training/test_running.py
test: setup lint
	$(PYTEST) -q -m "not full and not benchmark" -n 2 --dist worksteal $(WHOLE_RUNS:%=--ignore %)
	$(PYTEST) -q -m "not full and not benchmark" $(WHOLE_RUNS)

test-full: setup lint $(SKYRL04)
	$(PYTEST) -q --hypothesis-profile search

lint: $(VENV)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

lock: $(VENV)
	scripts/lock.sh --upgrade

clean:
	rm -rf .venv .venv-harbor26 .venv-skyrl04 .cache runs jobs dist build
