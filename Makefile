# `make up` sets up this clone and serves its voices; `make test` sets up and runs all tests; `make help` lists the rest.
# Everything made at run time lies under var/.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# The parts share var/, one engine and its ports: one after the other, also under -j.
.NOTPARALLEL:
.DELETE_ON_ERROR:

ifneq ($(words $(CURDIR)),1)
$(error The clone's path '$(CURDIR)' contains white space, which breaks the programs installed below it: move the clone)
endif

ROOT := $(CURDIR)
# More arguments for ansible-playbook (up, check, down) or for uv (lock): make check ARGS='--tags voices'
ARGS ?=
# Molecule scenario: make molecule S=compose
S ?= default
# Interpreters for var/venv/*; empty: the best that runs (tools/interpreters.py).
PYTHON ?=
ENGINE_PYTHON ?=
export PYTHON ENGINE_PYTHON

# Nothing of the person's own Python or Ansible settings reaches a run, and nothing is written in the home directory.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE
# Ansible refuses to start in a locale that is not UTF-8, or that this machine does not have (an ssh client sends its own).
export LC_ALL := C.UTF-8
export ANSIBLE_CONFIG := $(ROOT)/ansible.cfg
export ANSIBLE_HOME := $(ROOT)/var/ansible
# Where modules unpack themselves on this machine; `make` only ever runs the local inventory.
export ANSIBLE_REMOTE_TMP := $(ROOT)/var/ansible/tmp
export HYPOTHESIS_STORAGE_DIRECTORY := $(ROOT)/var/cache/hypothesis

VENVS := tools/python.sh tools/venvs.py
CONTROLLER := PATH="$(ROOT)/var/venv/controller/bin:$$PATH"
DEV := PATH="$(ROOT)/var/venv/dev/bin:$$PATH"
SEAT_VENVS := controller host engine-cpu

.PHONY: help setup up check down clean test lint unit contract integration molecule compose docker engines kills bench-compose scale lock dev

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	    printf '%-20s %s\n' "$$target" "$$text"; done

setup: ## Make the environments and the tiny carrier under var/ (done already: nothing)
	@$(VENVS) $(SEAT_VENVS)
	@umask 022; var/venv/engine-cpu/bin/python -m tests.support.tiny_carrier var

up: setup ## Set up, then serve the local seat's voices: ansible-playbook site.yml --limit local
	@$(CONTROLLER) ansible-playbook site.yml --limit local $(ARGS)

check: setup ## Set up, then show what `make up` would change, and change nothing
	@$(CONTROLLER) ansible-playbook site.yml --limit local --check --diff $(ARGS)

# Without a seat nothing can be running, and nothing has to be installed to find that out.
down: ## Stop all that `make up` started
	@if [ -d var/seats ]; then \
	    $(VENVS) controller host && $(CONTROLLER) ansible-playbook playbooks/down.yml --limit local $(ARGS); \
	else echo 'down: no seat was made in this clone (no var/seats), nothing to stop'; fi

clean: down ## Stop all, then remove var/ (not while something could not be stopped)
	@tools/clean.sh

test: lint unit contract integration molecule compose ## Set up, then run the tests (without the long ones: docker, kills)

dev:
	@$(VENVS) dev

lint: dev ## ansible-lint, ruff, mypy, yamllint
	@$(DEV) tools/timed.sh lint tools/lint.sh

unit: dev ## Tests of the pure core
	@$(DEV) tools/timed.sh unit python -m pytest tests/unit

contract: dev ## Docs against argument specs, defaults against role specs, locks
	@$(DEV) tools/timed.sh contract python -m pytest tests/contract

integration: setup dev ## Tests against the real engine
	@$(DEV) tools/timed.sh integration python -m pytest tests/integration

molecule: setup dev ## One Molecule scenario, S=default
	@$(DEV) tools/molecule.sh $(S)

compose: setup dev ## Molecule compose, on a Docker engine that it brings up (root)
	@$(DEV) tools/docker_tests.sh scenario

docker: setup dev ## Molecule compose and tests/docker, on a Docker engine that it brings up (root)
	@$(DEV) tools/docker_tests.sh

engines: setup dev ## Support of LoRA as read from two other versions of vLLM, beside their own answers (fetches 0.7 GB once)
	@$(DEV) tools/timed.sh engines sh -c 'python tools/engines.py && python -m pytest tests/engines'

kills: setup dev ## The long form of tests/docker/test_play_kills.py: twelve killed plays (root, a running Docker engine)
	@$(DEV) VOICES_ALL_KILLS=1 tools/timed.sh kills python -m pytest tests/docker/test_play_kills.py

bench-compose: setup dev ## A run that finds nothing to do, beside the public docker_compose_v2 (root, a running Docker engine)
	@$(DEV) tools/timed.sh bench-compose python -m tests.bench.second_run $(ARGS)

scale: dev ## How long a plan of 10 to 50 hosts takes, with simulated facts; ARGS=--module for the real module
	@$(DEV) tools/timed.sh scale python -m tests.bench.plan_scale $(ARGS)

lock: ## Resolve requirements/*.in into the locks; ARGS=--upgrade for newer versions
	@$(VENVS) resolver
	@tools/lock.sh "$(ROOT)/var/venv/resolver/bin/uv" $(ARGS)
