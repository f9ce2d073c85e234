# The one door to this project. ARGS reaches the command behind a target: make test ARGS="-k sql -x"
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Commands and tests start hundreds of Python processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
# Four for two cores: tests of time-outs, and of processes that start, wait for a part of their time.
PYTEST := $(PYTHON) -m pytest --numprocesses 4 --dist loadfile
# Which third of the tests that take long `make test` runs: each commit another one, so that all come soon.
PART = $(shell commit=$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0); echo $$(( 0x$$commit % 3 + 1 ))/3)
UV = $(shell uv --version >/dev/null 2>&1 && echo uv || echo .tools/bin/uv)
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	--custom-compile-command "make requirements" $(ARGS)

.PHONY: help setup demo test-fast test versions prove prove-short lint bench servers docs docs-site requirements release

help:  ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:  ## make .venv with the ferryman command; installs uv and a Java runtime if they are missing and it may
	@scripts/setup

demo: setup  ## index the Python standard library of this machine, then search it
	@.venv/bin/ferryman demo $(ARGS)

test-fast: setup  ## run the tests without Spark and without servers, a sample of those that take long
	$(PYTEST) --numprocesses 3 -m "not slow and not spark and not server" --sample 1/60 $(ARGS)

test: setup  ## run the tests, of those that take long a third, in turns by commit (PART=1/1: all), but no slow ones
	$(PYTEST) -m "not slow" --sample $(PART) --each-rule $(ARGS)

versions: setup  ## run the fast tests with another Python and other packages: ARGS="3.14 highest" or ARGS="3.12 lowest-direct"
	@scripts/try-versions $(ARGS)

prove: setup  ## run all tests, then a long proof of the built-in plan; takes hours, and goes on after it was stopped
	$(PYTEST) --resume build/passed-$$(git rev-parse HEAD).txt $(ARGS) || [ $$? = 5 ]  # 5: all passed before
	.venv/bin/ferryman prove --rounds 1000 --html build/proof.html

prove-short: setup  ## a proof of the built-in plan with three kinds of faults; takes a minute
	.venv/bin/ferryman prove --no-spark --documents 4 --only half --only holes --only disk $(ARGS)

lint: setup  ## check style, format, types, layers, dead code and workflows
	@scripts/lint

bench: setup  ## measure how fast it is
	$(PYTHON) -m bench $(ARGS)

servers: setup  ## start the servers that the tests use, print their URLs; Ctrl-C stops them (ARGS: only these)
	$(PYTHON) -m tests.servers $(ARGS)

docs: setup  ## make the generated parts of docs/ anew
	$(PYTHON) -m scripts.docs
	$(PYTHON) scripts/cli_reference.py
	$(PYTHON) -m tests.model --write
	$(PYTHON) -m tests.model.jobs_pages --write > /dev/null

docs-site:  ## build the documentation site into build/site/; fails on any warning
	@scripts/setup site
	.venv-site/bin/zensical build --clean --strict $(ARGS)

requirements: setup  ## pin the dependencies anew after a change of pyproject.toml (ARGS=--upgrade: newest releases)
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --constraints requirements/dev.txt --output-file requirements/run.txt
	$(COMPILE) --group pyproject.toml:site --output-file requirements/site.txt
	$(COMPILE) --group pyproject.toml:bench --output-file requirements/bench.txt
	$(COMPILE) --group pyproject.toml:bench-text --output-file requirements/bench-text.txt
	$(COMPILE) --group pyproject.toml:bench-peers --output-file requirements/bench-peers.txt
	$(COMPILE) --group pyproject.toml:tools --output-file requirements/tools.txt

release: setup  ## check the last commit, build it into dist/ and tag it (ARGS=--dry-run: without the tag)
	@$(PYTHON) -m scripts.release $(ARGS)
