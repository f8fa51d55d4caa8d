# make train   installs what training needs, and trains the default model: make train ARGS="optimizer.lr=0.1"
# make         installs all optional packages too
# make test    the same, and runs the tests
# make quick   runs the tests that a new Python or machine would fail first
# make hydra   runs the tests of configurations and of commands with the next Hydra
# make slow    runs the tests that take a second or more
# make clusters runs the tests that start clusters of Slurm and of Ray on this machine
# make fuzz    looks for bytes of files and commands that are not refused in a line: make fuzz ARGS="table 600"
# make torture kills runs, mutates files and draws configurations, for two hours
PYTHON ?= python3
VENV := .venv
BASE := $(VENV)/.base
READY := $(VENV)/.ready
ENGINE := $(VENV)/.engine
ARGS ?=
# Empty, so that each module is compiled once, not in every process that imports it.
export PYTHONDONTWRITEBYTECODE :=
QUICK := tests/promises/test_environments.py tests/system/test_lean_imports.py \
	tests/sweeps/search/test_command.py tests/sweeps/search/test_study.py \
	tests/inference/test_evaluation.py
NEXT_HYDRA := hydra-core==1.4.0rc3 omegaconf==2.4.1rc1
OF_HYDRA := tests/config/test_compose.py tests/config/test_own_files.py tests/config/test_overrides.py \
	tests/sweeps/test_run_command.py tests/sweeps/test_zipped.py tests/sweeps/test_from_python.py

OF_CLUSTERS := tests/sweeps/executors/test_slurm.py tests/sweeps/executors/test_ray.py

.PHONY: setup train test quick hydra slow clusters torture fuzz gpu-check lint bench pictures constraints
.DEFAULT_GOAL := setup

setup: $(READY) $(ENGINE)

$(BASE): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make setup PYTHON=python3.11")'
	@echo "installing into $(VENV): some minutes, up to 6 GB"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $(BASE)

$(READY): $(BASE)
	@echo "installing the optional packages into $(VENV): 1 GB"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

# The engine for CPUs, by this machine's C compiler, else by the one that PyPI has. Without either,
# everything works more slowly, and python -m src.devices says why.
$(ENGINE): $(BASE) $(wildcard src/kindling/native/*.[ch]) src/kindling/native/compiler.py
	$(VENV)/bin/python -m src.build || { $(VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check -c constraints.txt ziglang && $(VENV)/bin/python -m src.build; } \
		|| echo "training goes on without the engine"
	touch $(ENGINE)

train: $(ENGINE)
	$(VENV)/bin/python -m src.train $(ARGS)

test: setup
	$(VENV)/bin/python -m pytest $(ARGS)

quick: setup
	$(VENV)/bin/python -m pytest -m "not torture" $(QUICK) $(ARGS)

# An environment with the packages of $(VENV), but with the next Hydra and its OmegaConf.
hydra: setup
	$(VENV)/bin/python -m venv --without-pip $(VENV)-hydra
	$(VENV)/bin/python -m pip --python $(VENV)-hydra/bin/python install --quiet --no-deps \
		--disable-pip-version-check $(NEXT_HYDRA)
	$(VENV)/bin/python -c 'from sysconfig import get_path; print("import site; site.addsitedir(%r)" % get_path("purelib"))' \
		> "$$($(VENV)-hydra/bin/python -c 'from sysconfig import get_path; print(get_path("purelib"))')/zz_$(VENV).pth"
	$(VENV)-hydra/bin/python -m pytest -m "not torture" $(OF_HYDRA) $(ARGS)

slow: setup
	$(VENV)/bin/python -m pytest -n3 -m slow $(OF_CLUSTERS:%=--ignore %) $(ARGS)

clusters: setup
	$(VENV)/bin/python -m pytest -n2 --dist loadfile -m slow $(OF_CLUSTERS) $(ARGS)

# Two hundred kills, power cuts, pairs of commands at once, a hundred thousand mutated files, a thousand
# random configurations, a rehearsal of the tests for GPUs.
torture: setup
	TORTURE=1 $(VENV)/bin/python -m pytest -n0 -m "torture or not torture" \
		tests/benchmarks/test_crashes.py tests/benchmarks/test_gpu_check.py tests/promises/test_hostile_files.py \
		tests/promises/test_kills.py tests/promises/test_power_cuts.py tests/promises/test_file_systems.py \
		tests/promises/test_properties.py \
		tests/promises/test_races.py \
		$(ARGS)

fuzz: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	$(VENV)/bin/python -m tests.fuzz $(ARGS)

# What needs a CUDA GPU: tests, benchmarks, a sweep; writes gpu_check.json and gpu_check.log into OUT.
# PACKAGES=python3 uses the packages of that interpreter and installs nothing.
gpu-check: $(if $(PACKAGES),,setup)
	$(or $(PACKAGES),$(VENV)/bin/python) -m src.benchmark suite=gpu_check out=$(or $(OUT),gpu_check) $(ARGS)

lint: $(READY)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

bench: setup
	$(VENV)/bin/python -m src.benchmark suite=loops $(ARGS)

# The pictures of a report in docs/pictures; needs MNIST and Chromium.
pictures: setup
	$(VENV)/bin/python -m tests.helpers.pictures

# After an upgrade that was tested: pins what the environment holds.
constraints: $(READY)
	$(VENV)/bin/python -m pip freeze --exclude-editable > constraints.txt
