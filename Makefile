# dev: an incremental build of the CPU module next to the Python sources.
PYTHON ?= python3
.PHONY: dev
dev:
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE=$(shell command -v $(PYTHON)) -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/jax_knnconv
	cmake --build build/dev
