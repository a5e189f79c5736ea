# The two main commands are `make benchmark` and `make test`. Both build .venv first if it is missing.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
NEMO   := .venv-nemo
# NeMo pins an older transformers, with which a plan must run the same products.
PLANS  := tests/test_recompute.py::test_a_compiled_layer_runs_and_keeps_what_its_plan_says
DOCS   := .venv-docs
# Without a GPU the torch engine is named, so that logs of an earlier run are not read instead.
ENGINE := $(if $(wildcard /dev/nvidiactl /dev/kfd /dev/dxg),,--engine torch)

.PHONY: benchmark test test-docs test-gpu test-ladder test-package test-pythons test-nemo test-slurm test-browser env nemo-env lint docs help clean test-faults

help:           ## show this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

benchmark: $(READY)   ## benchmark this machine (3 runs of every model), compare, and name the files to look at
	$(PY) benchmark.py --model all --runs 3 --budget-minutes $(or $(MINUTES),15) $(ENGINE)
	$(PY) compare_results.py

# Three processes for two cores: many tests wait for a program that they started.
test: $(READY)        ## run the test suite
	$(PY) -m pytest -n 3 --dist worksteal -m "not fuzz and not thorough and not walkthrough and not slurm"

test-docs: $(READY)    ## run the commands of the documentation's pages that train
	$(PY) -m pytest -n 2 -m walkthrough tests/test_docs_commands.py

test-gpu: $(READY)     ## check the torch engine on this machine's GPUs part by part, in at most 12 minutes
	$(PY) perf/mfu_ladder.py --minutes $(or $(MINUTES),12)

test-ladder: $(READY)  ## every part of test-gpu on the CPU, with tiny models; a part that is skipped fails
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 PYTHONPATH=tests/nvml_stand_in $(PY) perf/mfu_ladder.py --no-skips

test-faults: $(READY)  ## damaged inputs, kills and fuzzed readers: a sample in a few minutes, FULL=1 for all (docs/project/reliability.md)
	$(PY) perf/faults.py $(if $(FULL),--full)
	TENSORPRIMAT_TEST_EXAMPLES=4 $(PY) -m pytest -n 2 -m "fuzz or hypothesis or thorough"

test-browser: $(READY)  ## drive the HTML report in a real Chromium (part of `make test` where there is one)
	$(PY) -m pytest -m browser tests/test_browser.py

test-package: $(READY)  ## build the wheel, install it into an empty environment, and run every command from there
	TENSORPRIMAT_TEST_WHEEL=1 $(PY) -m pytest tests/test_wheel.py

test-pythons: $(READY)  ## the same in every other Python from 3.10 on that is installed here, or that apt can bring (as root)
	@tools/install_python.sh || [ $$? = 3 ]  # 3: it cannot be had here, and the script says why
	TENSORPRIMAT_TEST_WHEEL="$$(tools/pythons.sh)" $(PY) -m pytest tests/test_wheel.py

lint: $(READY)        ## ruff, mypy and shellcheck
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/shellcheck .ci/run $$(git ls-files '*.sh')

docs: $(DOCS)/.ready   ## build the documentation into build/docs; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet --strict

env: $(READY)         ## only build .venv

test-nemo: $(NEMO)/.ready   ## test against the real NeMo, in .venv-nemo
	$(NEMO)/bin/python -c 'import nemo'  # else every test would be skipped
	$(NEMO)/bin/python -m pytest -rs tests/nemo_env $(PLANS)

test-slurm: $(NEMO)/.ready  ## test against a real Slurm on this machine (installed by apt, as root; elsewhere skipped)
	$(NEMO)/bin/python -c 'import nemo_run'
	@tools/install_slurm.sh; case $$? in 0) $(NEMO)/bin/python -m pytest -rs tests/slurm;; 3) ;; *) exit 1;; esac

nemo-env: $(NEMO)/.ready    ## only build .venv-nemo (NeMo pins versions that .venv cannot have)

$(NEMO)/.ready: requirements-nemo.txt constraints-nemo.txt tools/make_env.py
	$(PYTHON) tools/make_env.py --nemo --venv $(NEMO)
	@touch $@

$(READY): requirements.txt requirements-dev.txt constraints.txt tools/make_env.py
	$(PYTHON) tools/make_env.py --venv $(VENV)
	@touch $@

$(DOCS)/.ready: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

clean:          ## remove the environments and caches; output/ stays
	rm -rf $(VENV) $(NEMO) $(DOCS) build/docs build/python3.14 .pytest_cache .mypy_cache .ruff_cache .hypothesis
