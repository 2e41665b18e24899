"""What tests of spatial sharding on several devices share: tables on a sphere, operands in place, and the oracle."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from spatial_cases import sphere

import jax_knnconv as jkc
from jax_knnconv.spatial import knn_conv_sharded, partition_nodes

RNG = np.random.default_rng(0)
VERTICES, SPHERE = sphere(2)  # 162 vertices: shards of 21 and 20, so that some have padding
NODES = partition_nodes(8, points=VERTICES)
COARSE_POINTS = VERTICES[RNG.permutation(162)[:43]]
DOWN = jkc.knn_table(VERTICES, COARSE_POINTS, k=5)
UP = jkc.knn_table(COARSE_POINTS, VERTICES, k=3)
COARSE = NODES.follow(DOWN)
SLOTTED_INDICES = RNG.integers(-20, 182, (162, 4))
SLOTTED_INDICES[::9] = -1  # empty rows
SLOTTED_INDICES[:, 3] = 5  # a hub that everyone but the empty rows reads
SLOTTED_INDICES[::9, 3] = -1
SLOTTED = jkc.NeighborTable(SLOTTED_INDICES, RNG.integers(0, 3, (162, 4)), num_inputs=162, num_slots=3)
TABLES = {
    "sphere": (SPHERE, NODES, NODES),
    "slots, holes, a hub": (SLOTTED, NODES, NODES),
    "down": (DOWN, NODES, COARSE),
    "up": (UP, COARSE, NODES),
}


def mesh_of(kind=AxisType.Auto, shape=(8,), names=("space",)):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def case(name, batch=(2,), channels=(8, 5), dtype="float32"):
    """Operands of a table: whole x, weight, bias and cotangent, and the sharded table."""
    table, sources, outputs = TABLES[name]
    c, o = channels
    shapes = ((*batch, table.num_inputs, c), (table.num_slots, c, o), (o,), (*batch, table.num_outputs, o))
    arrays = [np.asarray(jnp.asarray(RNG.standard_normal(shape), dtype)) for shape in shapes]
    return table, sources, outputs, arrays


def exact(table, x, w, b, g, zero_empty_rows=False):
    """(y, dx, dw, db) in float64 by the oracle; batch dimensions are flattened."""
    indices = np.asarray(table.indices)
    slots = None if table.slots is None else np.asarray(table.slots)
    x, g = x.reshape(-1, *x.shape[-2:]), g.reshape(-1, *g.shape[-2:])
    y = oracle.knn_forward(x, w, indices, slots, b, zero_empty_rows=zero_empty_rows)
    dx = oracle.knn_dinput(g, w, indices, slots, num_inputs=x.shape[1])
    return y, dx, *oracle.knn_dweight(x, g, indices, slots, num_slots=len(w), zero_empty_rows=zero_empty_rows)


def check(got, table, sources, outputs, arrays, dtype, zero_empty_rows=False, slack=(1, 1, 1, 1)):
    """Padding is 0; the rest lies within a rounding of the oracle, each sum's slack as many times as `slack` says."""
    y, dx, dw, db = (np.asarray(value) for value in got)
    for value, partition in ((y, outputs), (dx, sources)):
        assert not value[..., ~partition.row_mask, :].any()
    restored = (outputs.unshard(y), sources.unshard(dx), dw, db)
    right = exact(table, *arrays, zero_empty_rows)
    bounds = exact(table, *map(np.abs, arrays), zero_empty_rows)
    for value, want, bound, more, what in zip(restored, right, bounds, slack, ("y", "dx", "dw", "db"), strict=True):
        oracle.assert_within_ulp(value.reshape(want.shape), want, more * bound, dtype, what)


def value_and_gradients(x, w, b, g, table, **options):
    y, pullback = jax.vjp(lambda x, w, b: knn_conv_sharded(x, w, table, b, **options), x, w, b)
    return y, *pullback(g)


ROWS = P(None, "space")


def on_mesh(mesh, sources, outputs, arrays, table, spec=ROWS):
    """The operands where they belong: (x, w, b, g, table); padding of x and g holds NaN and large values."""
    x, w, b, g = arrays
    x = np.where(sources.row_mask[:, None], sources.shard(x), np.array(np.nan, x.dtype))
    g = np.where(outputs.row_mask[:, None], outputs.shard(g), np.array(1000, g.dtype))
    rows = NamedSharding(mesh, spec)
    everywhere = NamedSharding(mesh, P())
    return (
        jax.device_put(x, rows),
        *jax.device_put((w, b), everywhere),
        jax.device_put(g, rows),
        jax.device_put(sources.shard_table(table, outputs), NamedSharding(mesh, P("space"))),
    )


def collectives(text):
    names = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    return {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in names}
