# Meshwright: set up, plan, test. Every target works on a clean checkout; only Python 3.11+ is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup plan test browser chromium lint docs accuracy experts hybrids guide bandwidth acceptance tenth clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "error: no '$(PYTHON)' on the PATH; install Python 3.11 or newer, or run: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(0 if sys.version_info[:2] >= (3, 11) else \
		"error: Meshwright needs Python 3.11 or newer and $(PYTHON) is " + v + "; run: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

# The stamps say what was installed: editable, so that only a change of pyproject.toml makes them stale.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

setup: $(VENV)/.run  ## install Meshwright in .venv (no torch)

plan: setup  ## plan Llama 3.1 405B on 16,384 H100s into plan.yaml, with a report in plan.html
	$(BIN)/meshwright plan llama-3.1-405b --on 16384xh100 --seq-len 8192 --tokens-per-step 16M -o plan.yaml --report plan.html

test: lint  ## lint, types, import rules and every test
	$(BIN)/python -m pytest -n auto

browser: $(VENV)/.dev chromium  ## open reports in headless Chromium
	$(BIN)/python -m pytest -n 0 tests/browser.py

chromium:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	else \
		echo "error: the browser tests need Chromium, and only root can install it here: sudo apt-get install chromium" >&2; \
		exit 1; \
	fi

lint: $(VENV)/.dev  ## ruff, mypy and the import rules
	$(BIN)/ruff check src tests docs
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## run the commands shown in the README and paste what they print
	$(BIN)/python docs/regenerate.py

accuracy: $(VENV)/.dev  ## validate, predict sources left out, and write docs/accuracy.md (minutes)
	$(BIN)/python docs/accuracy.py

experts: $(VENV)/.dev  ## search beside ten published layouts and write docs/experts.md (a minute)
	$(BIN)/python docs/experts.py

hybrids: $(VENV)/.dev  ## plan a Transformer, a Mamba and a hybrid by length and write docs/hybrids.md (half a minute)
	$(BIN)/python docs/hybrids.py

guide: $(VENV)/.dev  ## search the jobs of the golden rule, fit its tree and write docs/guide.md (minutes)
	$(BIN)/python docs/guide.py

bandwidth: $(VENV)/.dev  ## search along bandwidths and write docs/bandwidth-buys-simplicity.md (minutes)
	$(BIN)/python docs/bandwidth.py

acceptance: $(VENV)/.dev  ## see every count that is promised at full size and write docs/acceptance.md (many minutes)
	$(BIN)/python docs/acceptance.py

tenth: $(VENV)/.dev  ## see a tenth of what make acceptance sees
	$(BIN)/python docs/acceptance.py --share 0.1

clean:  ## remove the environment and every cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
