# make setup   .venv with the gradmatrix command and everything that developing needs
# make demo    real DeepSpeed releases on real torch versions: the main job, from nothing
# make test    everything that CI checks
# make test-gpu  what fits on the GPUs of this machine, in minutes
# make soak    parts of a fleet killed 300 times, long histories of the store, 200 seeds of the scheduler: half an hour
# make lint    the checks without the tests
# make locks   requirements/*.txt anew from pyproject.toml

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python-version 3.11

.PHONY: setup demo test test-gpu soak lint locks

setup: $(READY)
	@echo "$(BIN)/gradmatrix is ready."

# The mark is written last. An environment without it was interrupted half-way, and is made anew.
$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "gradmatrix needs Python 3.11, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make setup PYTHON=/path/to/python3.11"; exit 1; }
	@[ -e $(READY) ] || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(READY)
	@echo "Installing what requirements/dev.txt locks into $(VENV) …"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY)
	@$(BIN)/gradmatrix run deepspeed==0.18.3 deepspeed==0.19.8 --torch 2.9.1 --torch 2.11.0 --world-size 2 --case 'exchange/*'; status=$$?; \
	case $$status in \
	  0) echo "demo: every gradient agrees." ;; \
	  1) echo "demo: done. Exit status 1 means that gradmatrix found the fault that this demo is known for." ;; \
	  *) echo "demo: failed with exit status $$status: the run is incomplete. \`$(BIN)/gradmatrix doctor\` says what is missing."; \
	     exit $$status ;; \
	esac

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m "not gpu and not slow"

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu tests/gpu

soak: $(READY)
	$(BIN)/python -m pytest -s -m slow tests/campaign tests/service/store/test_machine.py tests/workers/test_schedule.py

locks: $(READY)
	$(COMPILE) pyproject.toml --output-file requirements/main.txt
	$(COMPILE) pyproject.toml --group dev --output-file requirements/dev.txt
	$(COMPILE) --group build --constraint requirements/dev.txt --output-file requirements/build.txt
