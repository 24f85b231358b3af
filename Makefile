# gymbox: `make demo` goes from nothing to scored rollouts; `make test` from nothing to passing tests.
.DEFAULT_GOAL := help
BENCHMARKS := rollouts sandboxes pools proxy models adoption runs datasets reports

.PHONY: help setup engine demo test lint format lock up down bench clean

help: ## Say what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 10

setup: ## Make .venv from the lock files (nothing to do the second time)
	@scripts/setup.sh

engine: setup ## Docker engine and base image, where they are missing and can be had
	@.venv/bin/python -m gymbox.setup_docker && .venv/bin/python -m gymbox.setup_base_image

demo: setup ## Run real tasks end to end with a small local model
	@scripts/demo.sh

test: setup ## Lint, types, every test, coverage, leak check
	@scripts/test.sh

lint: setup ## ruff and mypy
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

format: setup ## Let ruff rewrite
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

lock: ## Make the lock files anew
	@scripts/lock.sh --upgrade

up: engine ## Controller, proxy, model and agent servers in containers
	@scripts/compose.sh up --build --wait --detach

down: ## Take them down
	@scripts/compose.sh down --volumes

bench: setup ## Every benchmark, each against its baseline
	@missed=; for name in $(BENCHMARKS); do \
		echo "== benchmarks/$$name.py"; .venv/bin/python benchmarks/$$name.py || missed="$$missed $$name"; \
	done; [ -z "$$missed" ] || { echo "bars missed:$$missed"; exit 1; }

clean: ## Remove what make made (not runs/)
	@rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .coverage* htmlcov
