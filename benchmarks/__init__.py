"""Benchmarks of jax_knnconv against what people write today. `python -m benchmarks.run --help` tells the choices."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# An installed jax_knnconv goes before the source folder here, which has compiled modules only if they were built there.
sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry).resolve() != ROOT] + [str(ROOT)]
