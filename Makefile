# Every target below `setup` first makes .venv ready; that is a no-op when it is.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/ready
SETUP := scripts/setup.sh scripts/debian-packages.txt

.PHONY: help setup demo test soak check format attacks bench clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*  ## /make \1\t/p' Makefile | expand -t 16

setup: $(READY)  ## make .venv with everything that demo and tests need

$(READY): pyproject.toml constraints.txt $(SETUP)
	@sh scripts/setup.sh "$(PYTHON)" && touch $@

demo: $(READY)  ## three parties train one model on this machine
	$(BIN)/sealift demo $(ARGS)

test: $(READY)  ## the default tests; no network, GPU or TEE (ARGS='-k record' for a part)
	$(BIN)/python scripts/offline.py $(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS)

soak: $(READY)  ## the long tests
	$(BIN)/pytest -m soak --timeout 7200 $(ARGS)

check: $(READY)  ## format, lint, types, import layers, sizes
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/sizes.py

format: $(READY)  ## put every file into the one format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

attacks: $(READY)  ## try the attacks and print how each is refused
	$(BIN)/sealift attacks $(ARGS)

bench: $(READY)  ## the measurements, quick (ARGS='stream --json FILE' for one)
	$(BIN)/sealift bench --quick $(ARGS)

clean:  ## remove what these targets made, .venv included
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
