# From a fresh clone, with Python >= 3.11, a C++17 compiler and make:
#   make train   environment, package, examples/train_digits.py        make test    environment, package, pytest
#   make bench   environment, package, benchmarks                      make lint    ruff and mypy
#   make dev     an incremental build of the CPU module next to the Python sources (PYTHON has the build tools)
#   make clean   removes build products and environments
#
# Variables: PYTHON=python3.13  the interpreter        JAX=0.10.0  a version of jax to pin; empty: what pip resolves
#            ARGS='--epochs 5'  to train and bench     PYTEST_ARGS='-n 2 -k knn'  to test

# The newest that runs: pyenv leaves commands on the path that do not.
ifndef PYTHON
PYTHON := $(firstword $(foreach name,python3.13 python3.12 python3.11 python3,$(shell $(name) -c '' 2>/dev/null && echo $(name))))
endif
JAX ?=
ARGS ?=
PYTEST_ARGS ?=

VERSION := $(shell $(PYTHON) -c 'import sys; sys.version_info < (3, 11) or print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv-$(VERSION)$(if $(JAX),-jax$(JAX))
IN_VENV := $(VENV)/bin/
PIP_INSTALL := $(IN_VENV)python -m pip install --quiet --disable-pip-version-check
SOURCES := CMakeLists.txt pyproject.toml $(shell find lib jax_knnconv -type f ! -name '*.so' ! -name '*.pyc')

.PHONY: train test bench lint dev clean python
.DELETE_ON_ERROR:

train: $(VENV)/.examples
	$(IN_VENV)python examples/train_digits.py $(ARGS)

# Safe path: the tests, and the processes they start, import the installed package, not the folder they run in; and the
# tests' own helpers.
test: $(VENV)/.test
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/tests JAX_KNNCONV_REQUIRE_INSTALLED=1 $(IN_VENV)pytest $(PYTEST_ARGS)

bench: $(VENV)/.benchmarks
	$(IN_VENV)python -m benchmarks.run $(ARGS)

lint: $(VENV)/.lint
	$(IN_VENV)ruff check .
	$(IN_VENV)ruff format --check .
	$(IN_VENV)mypy

# Each stamp stands for the package, as the sources are now, with one set of its optional dependencies.
$(VENV)/.examples $(VENV)/.test $(VENV)/.benchmarks: $(VENV)/.%: $(SOURCES) | $(VENV)/bin/python
	$(PIP_INSTALL) '.[$*]' $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))
	touch $@

# By name: the package is installed, and is not built again for two more tools.
$(VENV)/.lint: pyproject.toml $(VENV)/.test
	$(PIP_INSTALL) 'jax_knnconv[lint]'
	touch $@

$(VENV)/bin/python: | python
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade pip

python:
	@test -n '$(VERSION)' || { echo 'PYTHON="$(PYTHON)" must name a Python of at least 3.11 that runs' >&2; exit 1; }

dev:
	cmake -S . -B build/dev -G Ninja -DJAX_KNNCONV_CUDA=$(or $(JAX_KNNCONV_CUDA),off) -DPython_EXECUTABLE=$(shell command -v $(PYTHON)) -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/jax_knnconv
	cmake --build build/dev

clean:
	rm -rf build .venv-* jax_knnconv/*.so
