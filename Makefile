# Everything a developer does with think-celery. All of it lives in .venv; after `make venv` only tests/golden needs a network, once.
.DEFAULT_GOAL := help
.PHONY: help demo up test check bench fmt venv lock clean

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TEST_PROCESSES ?= 2
ARGS ?=

# Neither of these may reach into .venv from outside.
unexport PYTHONPATH PYTHONHOME

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-7s %s\n", $$1, $$2}' Makefile

demo: $(STAMP)  ## see it work: servers, worker and three agents, in under a minute
	@$(PY) -m think_celery.dev.demo $(ARGS)

up: $(STAMP)  ## run the local stack until Ctrl-C (ARGS=--reload restarts the worker on changes)
	@$(VENV)/bin/think-celery up $(ARGS)

test: check  ## everything: the checks, then all tests (ARGS='-k name' picks some)
	@$(PY) -m pytest -q -n $(TEST_PROCESSES) --dist loadscope --durations=10 $(ARGS)

check: $(STAMP)  ## format, lint, types, imports, limits, diagram, doctests
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) tests/project/limits.py
	@$(PY) docs/lifecycle.py --check
	@$(PY) -m pytest -q -p no:randomly --doctest-modules --ignore=think_celery/ledger/migrations think_celery

bench: $(STAMP)  ## measure against raw Celery and raw SQL, write bench/results/latest.json
	@$(PY) -m bench $(ARGS)

fmt: $(STAMP)  ## format the code and mend what lint can mend
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

venv: $(STAMP)  ## install the locked packages into .venv (every target does this by itself)

# Does not use $(STAMP): the old lock need not fit the new pyproject.toml.
COMPILE = $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--strip-extras --custom-compile-command "make lock" $(ARGS)
lock:  ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade takes newer versions)
	@test -x $(PY) || sh requirements/venv.sh
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/lock.txt
	@$(COMPILE) pyproject.toml --extra dev -o requirements/dev.txt
	@$(COMPILE) pyproject.toml --extra openai --extra anthropic --extra google -c requirements/dev.txt -o requirements/runtime.txt
	@$(COMPILE) --group pyproject.toml:build -c requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) --group pyproject.toml:lock -o requirements/lock.txt

clean:  ## remove .venv, caches and build results (a local stack's data in .think-celery stays)
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements/dev.txt requirements/venv.sh
	@sh requirements/venv.sh

ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
