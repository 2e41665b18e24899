"""Networks, derivatives of higher order, vmap and errors of convolutions over one point set on 8 devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from spatial_devices import (
    NODES,
    ROWS,
    SPHERE,
    TABLES,
    VERTICES,
    case,
    collectives,
    mesh_of,
    on_mesh,
)

import jax_knnconv as jkc
from jax_knnconv.spatial import ShardedTable, knn_conv_sharded, partition_nodes

# Transformations -----------------------------------------------------------------------------------------------------


def small_network(x, weights, convolve):
    """Down, around and up again, with layers that share a partition."""
    first, second, third = weights
    y = jnp.tanh(convolve(x, first, "down"))
    return convolve(y, second, "up") + convolve(x, third, "sphere")


def network_case():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 162, 3)).astype("float32")
    weights = [rng.standard_normal(shape).astype("float32") / 4 for shape in ((5, 3, 4), (3, 4, 2), (7, 3, 2))]
    return x, weights


def sharded_network(x, weights, tables, **options):
    return small_network(x, weights, lambda x, w, name: knn_conv_sharded(x, w, tables[name], **options))


def whole_network(x, weights):
    return small_network(x, weights, lambda x, w, name: jkc.knn_conv(x, w, TABLES[name][0]))


def shard_tables(mesh):
    names = ("down", "up", "sphere")
    tables = {name: TABLES[name][1].shard_table(TABLES[name][0], TABLES[name][2]) for name in names}
    return jax.device_put(tables, NamedSharding(mesh, P("space")))


@pytest.mark.parametrize("forward_mode", [False, True])
def test_training_step_of_several_layers(forward_mode):
    """Layers onto other nodes and back, under checkpoint; the gradient of a loss over nodes."""
    x, weights = network_case()
    mesh = mesh_of()
    tables = shard_tables(mesh)

    @jax.jit
    @jax.value_and_grad
    def step(weights, x, tables):
        run = functools.partial(sharded_network, mesh=mesh, axis_name="space", forward_mode=forward_mode)
        y = jax.checkpoint(run)(x, weights, tables)
        return (NODES.row_mask[:, None] * y**2).sum()

    placed = jax.device_put(NODES.shard(x), NamedSharding(mesh, ROWS))
    got = step(weights, placed, tables)
    want = jax.value_and_grad(lambda weights: (whole_network(x, weights) ** 2).sum())(weights)
    for value, right in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5 * float(jnp.abs(right).max()))
    assert collectives(step.lower(weights, placed, tables).compile().as_text())["all-gather"] == 0


def test_second_derivatives_and_forward_mode():
    x, weights = network_case()
    mesh = mesh_of()
    tables = shard_tables(mesh)
    direction = np.ones_like(x)

    def sharded_loss(x, mode=False):
        y = sharded_network(x, weights, tables, mesh=mesh, axis_name="space", forward_mode=mode)
        return (y**3).sum()

    def whole_loss(x):
        return (whole_network(x, weights) ** 3).sum()

    placed, tangent = (jax.device_put(NODES.shard(v), NamedSharding(mesh, ROWS)) for v in (x, direction))
    want = jax.grad(lambda x: (jax.grad(whole_loss)(x) * direction).sum())(x)
    over_reverse = jax.jit(lambda x, t: jax.jvp(jax.grad(sharded_loss), (x,), (t,))[1])(placed, tangent)
    twice = jax.jit(jax.grad(lambda x, t: (jax.grad(sharded_loss)(x) * t).sum()))(placed, tangent)
    for value in (over_reverse, twice):
        value = NODES.unshard(np.asarray(value))
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max()))
    slope = jax.jit(lambda x, t: jax.jvp(lambda x: sharded_loss(x, True), (x,), (t,))[1])(placed, tangent)
    np.testing.assert_allclose(slope, (jax.grad(whole_loss)(x) * direction).sum(), rtol=1e-4)


def test_vmap_inside_shard_map():
    table, sources, outputs, arrays = case("sphere")
    mesh = mesh_of()
    x, w, _, _, sharded = on_mesh(mesh, sources, outputs, arrays, table)
    weights = jnp.stack([w, 2 * w, -w])

    def run(x, weights, sharded):
        each_x = jax.vmap(lambda x: knn_conv_sharded(x, weights[0], sharded, axis_name="space"))(x)
        each_w = jax.vmap(lambda w: knn_conv_sharded(x, w, sharded, axis_name="space"))(weights)
        return each_x, each_w

    mapped = jax.shard_map(run, mesh=mesh, in_specs=(ROWS, P(), P("space")), out_specs=(ROWS, P(None, None, "space")))
    each_x, each_w = jax.jit(mapped)(x, weights, sharded)
    right = np.asarray(jkc.knn_conv(arrays[0], arrays[1], table))
    np.testing.assert_allclose(outputs.unshard(np.asarray(each_x)), right, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        outputs.unshard(np.asarray(each_w)), right * np.array([1, 2, -1]).reshape(3, 1, 1, 1), rtol=1e-5, atol=1e-5
    )


def test_vmap_of_whole_arrays():
    """Over x, and over weights, outside shard_map, with gradients."""
    table, sources, outputs, (x, w, b, g) = case("down")
    mesh = mesh_of()
    sharded = jax.device_put(sources.shard_table(table, outputs), NamedSharding(mesh, P("space")))
    weights = np.stack([w, 2 * w, -w])

    def loss(x, w):
        return (knn_conv_sharded(x, w, sharded, b, mesh=mesh, axis_name="space") * outputs.shard(g[0])).sum()

    def right(x, w):
        return (jkc.knn_conv(x, w, table, b) * g[0]).sum()

    for axes in ((0, None), (None, 0)):
        given = (x if axes[0] == 0 else x[0], w if axes[0] == 0 else weights)
        placed = (sources.shard(given[0]), given[1])
        dx, dw = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), axes))(*placed)
        want = jax.vmap(jax.grad(right, (0, 1)), axes)(*given)
        for value, exact in zip((sources.unshard(np.asarray(dx)), dw), want, strict=True):
            np.testing.assert_allclose(value, exact, rtol=1e-5, atol=1e-5)


def test_only_what_is_used_runs():
    """Without a gradient in x, no cotangents travel."""
    table, sources, outputs, arrays = case("sphere")
    mesh = mesh_of()
    x, w, _, g, sharded = on_mesh(mesh, sources, outputs, arrays, table)
    loss = jax.grad(lambda w: (knn_conv_sharded(x, w, sharded, mesh=mesh, axis_name="space") * g).sum())
    text = jax.jit(loss).lower(w).compile().as_text()
    assert collectives(text)["collective-permute"] == len(sharded.exchange.rounds)


# Errors --------------------------------------------------------------------------------------------------------------


SHARDED = NODES.shard_table(SPHERE)
ON_FOUR = partition_nodes(4, points=VERTICES).shard_table(SPHERE)
X, W = np.ones((1, 168, 3), "float32"), np.ones((7, 3, 2), "float32")
OPTIONS = {"mesh": mesh_of(), "axis_name": "space"}


def inside_shard_map(spec):
    return jax.shard_map(
        lambda x, w, t: knn_conv_sharded(x, w, t, axis_name="space"),
        mesh=mesh_of(),
        in_specs=(ROWS, P(), spec),
        out_specs=ROWS,
    )(X, W, SHARDED)


ERRORS = {
    "table": (
        lambda: knn_conv_sharded(X, W, SPHERE, **OPTIONS),
        TypeError,
        "table: got NeighborTable, expected a ShardedTable",
    ),
    "no mesh": (lambda: knn_conv_sharded(X, W, SHARDED, axis_name="space"), ValueError, "mesh: got None outside"),
    "axis": (
        lambda: knn_conv_sharded(X, W, SHARDED, mesh=mesh_of(), axis_name="spce"),
        ValueError,
        r"axis_name: got \('spce',\), expected axes of the mesh, which has \('space',\)",
    ),
    "axis type": (
        lambda: knn_conv_sharded(X, W, SHARDED, mesh=mesh_of(), axis_name=0),
        TypeError,
        "axis_name: got 0, expected",
    ),
    "mesh size": (
        lambda: knn_conv_sharded(X, W, ON_FOUR, **OPTIONS),
        ValueError,
        r"mesh's size along axis_name \('space',\): got 8, expected 4, the table's num_shards",
    ),
    "rows": (
        lambda: knn_conv_sharded(X[:, :162], W, SHARDED, **OPTIONS),
        ValueError,
        "x's rows .*: got 162, expected 168, .*num_shards \\* source_size of its exchange",
    ),
    "slots": (
        lambda: knn_conv_sharded(X, W[:6], SHARDED, **OPTIONS),
        ValueError,
        "weight's slots .* got 6, expected 7",
    ),
    "channels": (
        lambda: knn_conv_sharded(X, W[:, :2], SHARDED, **OPTIONS),
        ValueError,
        "x's channels .* got 3, exp",
    ),
    "bias": (
        lambda: knn_conv_sharded(X, W, SHARDED, np.ones(3), **OPTIONS),
        ValueError,
        r"bias: got shape .*, expected \(2,",
    ),
    "weight rank": (lambda: knn_conv_sharded(X, W[0], SHARDED, **OPTIONS), ValueError, "weight: got shape"),
    "x rank": (lambda: knn_conv_sharded(X[0, 0], W, SHARDED, **OPTIONS), ValueError, "x: got shape"),
    "empty rows": (
        lambda: knn_conv_sharded(X, W, SHARDED, empty_rows="skip", **OPTIONS),
        ValueError,
        "empty_rows: got 'skip', expected",
    ),
    "dtypes": (
        lambda: knn_conv_sharded(X.astype("float16"), W.astype(jnp.bfloat16), SHARDED, **OPTIONS),
        TypeError,
        "weight: got .*expected float32 or float16",
    ),
    "batch axis": (
        lambda: knn_conv_sharded(X, W, SHARDED, batch_axis_name="space", **OPTIONS),
        ValueError,
        "batch_axis_name: got 'space', expected axes of the mesh .* besides axis_name",
    ),
    "no batch": (
        lambda: knn_conv_sharded(
            X[0, :164],
            W,
            ON_FOUR,
            mesh=mesh_of(AxisType.Auto, (2, 4), ("data", "space")),
            axis_name="space",
            batch_axis_name="data",
        ),
        ValueError,
        r"batch_axis_name: got 'data', expected None: x of shape \(164, 3\) has no batch",
    ),
    "whole table inside": (
        lambda: inside_shard_map(P()),
        ValueError,
        r"table: got parts of \(8,\) devices, expected \(1,\)",
    ),
    "implementation": (
        lambda: knn_conv_sharded(X, W, SHARDED, implementation="best", **OPTIONS),
        ValueError,
        "implementation: got .*expected one of",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call()


def test_a_part_outside_shard_map():
    part = jax.tree.map(lambda leaf: leaf[:1], SHARDED)
    assert isinstance(part, ShardedTable)
    with pytest.raises(ValueError, match=r"table: got parts of \(1,\) devices, expected \(8,\)"):
        knn_conv_sharded(jnp.ones((168, 3)), jnp.ones((7, 3, 2)), part, mesh=mesh_of(), axis_name="space")
