"""Meshes, collectives and a KNN case for the tests on several devices."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_knnconv as jkc

KINDS = (AxisType.Auto, AxisType.Explicit)

RNG = np.random.default_rng(0)
BATCH, N, M, C_IN, C_OUT = 8, 24, 16, 8, 8  # each a multiple of 8 devices
COLUMNS = jkc.NeighborTable(RNG.integers(-1, N + 1, (M, 3)), num_inputs=N)
SLOTS = jkc.NeighborTable(RNG.integers(-1, N + 1, (M, 3)), RNG.integers(0, 5, (M, 3)), num_inputs=N, num_slots=5)

# How x, weight, bias and the table's rows are sharded, and over which mesh; "d" has 8 devices, or 4 beside 2 of "e".
SHARDINGS = {
    "batch": (P("d"), P(), P(), None),
    "C_in": (P(None, None, "d"), P(None, "d"), P(), None),
    "C_out": (P(), P(None, None, "d"), P("d"), None),
    "rows": (P(), P(), P(), "d"),
    "rows over two axes": (P(), P(), P(), ("e", "d")),
    "batch, rows": (P("d"), P(), P(), "e"),
    "C_in, rows": (P(None, None, "d"), P(None, "d"), P(), "e"),
    "batch, C_out": (P("d"), P(None, None, "e"), P("e"), None),
    "C_in, C_out": (P(None, None, "d"), P(None, "d", "e"), P("e"), None),
}


def mesh_of(kind, shape=(8,), names=("data",)):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def mesh_for(kind, name):
    """The mesh of a case of SHARDINGS."""
    return mesh_of(kind, (4, 2) if "," in name or "two" in name else (8, 1), ("d", "e"))


def normal(*shapes):
    return [jnp.asarray(RNG.standard_normal(shape), "float32") for shape in shapes]


def place(mesh, *pairs):
    """Each (array, spec) on the mesh."""
    return [jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in pairs]


def close(got, want, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


def collectives(text):
    """How many of each stand in compiled text, less those that do not."""
    names = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in names}
    return {name: count for name, count in counts.items() if count}


def all_reduces(count):
    return {"all-reduce": count} if count else {}
