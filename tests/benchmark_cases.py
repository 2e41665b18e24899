"""What the tests of the benchmarks share: the way to import them, and shapes small enough for NumPy."""

import dataclasses
import pathlib
import sys

import pytest

for extra in ("rich", "psutil"):
    pytest.importorskip(extra, reason="the benchmarks extra is not installed")

ROOT = pathlib.Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: an installed jax_knnconv goes before the source folder's

from benchmarks import compare, shapes  # noqa: E402

SHORT = compare.Settings(rounds=2, budget_s=0, sample_s=0)
ALL_SHAPES = [shape for size in ("cpu", "gpu") for shape in (*shapes.dense_shapes(size), *shapes.knn_shapes(size))]


def tiny(shape):
    """The same kind of shape with a few rows and channels, which NumPy can do tap by tap."""
    fewer = {"batch": min(shape.batch, 2), "channels": min(shape.channels, 4), "outputs": 5}
    if isinstance(shape, shapes.Dense):
        return dataclasses.replace(shape, height=7, width=9, **fewer)
    rows = 8 if shape.rows == shape.sources else 6
    return dataclasses.replace(shape, sources=8, rows=rows, neighbours=min(shape.neighbours, 5), **fewer)


TINY_SHAPES = sorted({tiny(shape) for shape in ALL_SHAPES}, key=lambda shape: shape.name)


class Ticks:
    """A clock that moves only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now
