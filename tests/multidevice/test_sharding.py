"""Batch sharding kept under jit on Auto and Explicit meshes and inside shard_map; one all-reduce for the parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_cases import all_reduces, close, collectives, mesh_of, normal

import jax_knnconv as jkc

RNG = np.random.default_rng(0)
TABLE = jkc.NeighborTable(RNG.integers(-1, 8, (5, 3)), num_inputs=7)
SLOTTED = jkc.NeighborTable(RNG.integers(-1, 8, (5, 3)), RNG.integers(0, 3, (5, 3)), num_inputs=7, num_slots=3)


IMAGES, KERNEL, NODES, WEIGHT, BIAS = normal((16, 6, 5, 3), (3, 3, 3, 4), (16, 7, 4), (3, 4, 8), (8,))
KERNEL_BIAS = BIAS[:4]


def dense_loss(params, x):
    return (jkc.conv2d(x, *params, stride=2) ** 2).mean()


def knn_loss(params, x, table):
    return (jkc.knn_conv(x, params[0], table, params[1]) ** 2).mean()


def half_loss(params, x):
    y = jkc.conv2d(x, *params, compute_dtype="bfloat16")
    return (y**2).mean()


CASES = {
    "conv2d": (dense_loss, (KERNEL, KERNEL_BIAS), IMAGES, ()),
    "conv2d bf16": (half_loss, (KERNEL, KERNEL_BIAS), IMAGES, ()),
    "knn_conv": (knn_loss, (WEIGHT, BIAS), NODES, (TABLE,)),
    "knn_conv slots": (knn_loss, (WEIGHT, BIAS), NODES, (SLOTTED,)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_batch_sharding(kind, name):
    """Case 12: no all-gather, one all-reduce for the loss and all gradients, values of one device."""
    loss, params, x, rest = CASES[name]
    step = jax.value_and_grad(loss)
    want = jax.jit(step)(params, x, *rest)
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        params, rest = jax.device_put((params, rest), NamedSharding(mesh, P()))
        compiled = jax.jit(step).lower(params, x, *rest).compile()
        assert collectives(compiled.as_text()) == all_reduces(1)
        close(jax.jit(step)(params, x, *rest), want, 1e-3 if "bf16" in name else 1e-5)
        close(step(params, x, *rest), want, 1e-3 if "bf16" in name else 1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_outputs_and_dx_keep_the_sharding(kind):
    mesh = mesh_of(kind)
    sharding = NamedSharding(mesh, P("data"))
    with jax.set_mesh(mesh):
        x = jax.device_put(NODES, sharding)
        weight, table = jax.device_put((WEIGHT, TABLE), NamedSharding(mesh, P()))
        y = jax.jit(jkc.knn_conv)(x, weight, table)
        dx = jax.jit(jax.grad(lambda x: (jkc.knn_conv(x, weight, table) ** 2).sum()))(x)
    for value in (y, dx):
        assert value.sharding.is_equivalent_to(sharding, value.ndim)
    close(y, jkc.knn_conv(NODES, WEIGHT, TABLE))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_output_channels_stay_sharded(kind):
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        weight = jax.device_put(WEIGHT, NamedSharding(mesh, P(None, None, "data")))
        x, table = jax.device_put((NODES, TABLE), NamedSharding(mesh, P()))
        compiled = jax.jit(jkc.knn_conv).lower(x, weight, table).compile()
        assert collectives(compiled.as_text()) == {}
        y = jax.jit(jkc.knn_conv)(x, weight, table)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P(None, None, "data")), y.ndim)
    close(y, jkc.knn_conv(NODES, WEIGHT, TABLE))


@pytest.mark.parametrize("which", ["bias", "nodes", "batch"])
def test_gradients_have_the_explicit_sharding_of_their_operands(which):
    """A gradient must have its operand's type: whatever of it is sharded, even what the call itself replicates."""
    mesh = mesh_of(AxisType.Explicit)
    specs = {"bias": (P(), P(), P("data")), "nodes": (P(None, "data"), P(), P()), "batch": (P("data"), P(), P())}
    x = jnp.concatenate([NODES, NODES[:, :1]], 1)
    table = jkc.NeighborTable(RNG.integers(-1, 9, (5, 3)), num_inputs=8)

    def total(x, weight, bias):
        return (jkc.knn_conv(x, weight, table, bias) ** 2).sum()

    want = jax.grad(total, (0, 1, 2))(x, WEIGHT, BIAS)
    with jax.set_mesh(mesh):
        args = [jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip((x, WEIGHT, BIAS), specs[which], strict=True)]
        got = jax.jit(jax.grad(total, (0, 1, 2)))(*args)
    for value, right, arg in zip(got, want, args, strict=True):
        assert value.sharding.is_equivalent_to(arg.sharding, value.ndim)
        close(value / 100, right / 100, 1e-4)


def test_vmap_over_an_explicit_axis():
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(NODES, NamedSharding(mesh, P("data")))
        y = jax.jit(jax.vmap(lambda x: jkc.knn_conv(x, WEIGHT, TABLE)))(x)
    close(y, jkc.knn_conv(NODES, WEIGHT, TABLE))


def test_two_mesh_axes():
    """Batch over one axis, output channels over the other."""
    mesh = mesh_of(AxisType.Auto, (4, 2), ("data", "model"))
    want = jax.grad(knn_loss)((WEIGHT, BIAS), NODES, TABLE)
    x = jax.device_put(NODES, NamedSharding(mesh, P("data")))
    weight = jax.device_put(WEIGHT, NamedSharding(mesh, P(None, None, "model")))
    bias = jax.device_put(BIAS, NamedSharding(mesh, P("model")))
    table = jax.device_put(TABLE, NamedSharding(mesh, P()))
    step = jax.jit(jax.grad(knn_loss))
    assert set(collectives(step.lower((weight, bias), x, table).compile().as_text())) == {"all-reduce"}
    close(step((weight, bias), x, table), want)


@pytest.mark.parametrize("name", CASES)
def test_inside_shard_map(name):
    """Replicated parameters, sharded batch, replication checks on: autodiff adds the sum over devices."""
    loss, params, x, rest = CASES[name]
    want = jax.jit(jax.value_and_grad(loss))(params, x, *rest)

    def step(params, x, *rest):
        return jax.value_and_grad(lambda p: jax.lax.pmean(loss(p, x, *rest), "data"))(params)

    specs = (P(), P("data"), *(P() for _ in rest))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=(P(), P())))
    close(mapped(params, x, *rest), want, 1e-3 if "bf16" in name else 1e-5)


@pytest.mark.parametrize("count", [2, 8])
def test_table_rows_sharded_under_shard_map(count):
    """Case 13: idx sharded on M, x and w replicated, loss psum(sum(y²))."""
    n, k, c, o = 64, 4, 8, 5
    idx = jnp.asarray(RNG.integers(0, n, (n, k)), "int32")
    x, w = normal((n, c), (k, c, o))

    def loss(x, w, idx):
        return (jkc.knn_conv(x, w, jkc.NeighborTable(idx, num_inputs=n)) ** 2).sum()

    def step(x, w, idx):
        return jax.grad(lambda x, w: jax.lax.psum(loss(x, w, idx), "data"), (0, 1))(x, w)

    mesh = jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=(P(), P())))
    want = jax.grad(loss, (0, 1))(x, w, idx)
    for got, right in zip(mapped(x, w, idx), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * float(jnp.abs(right).max()))


def test_batch_that_does_not_divide_is_replicated():
    x = jax.device_put(NODES[:3], NamedSharding(mesh_of(AxisType.Auto), P()))
    close(jax.jit(jkc.knn_conv)(x, WEIGHT, TABLE), jkc.knn_conv(NODES[:3], WEIGHT, TABLE))


def test_vmapped_axis_sharded():
    mesh = mesh_of(AxisType.Auto)
    weights = jnp.stack([WEIGHT * i for i in range(8)])
    sharded = jax.device_put(weights, NamedSharding(mesh, P("data")))
    run = jax.jit(jax.vmap(lambda w: jkc.knn_conv(NODES, w, TABLE)))
    assert collectives(run.lower(sharded).compile().as_text()) == {}
    close(run(sharded), jax.vmap(lambda w: jkc.knn_conv(NODES, w, TABLE))(weights))


@pytest.mark.parametrize("per_example", [False, True])
def test_tables_of_samples_sharded(per_example):
    """One table a sample, samples over the devices: gradients of each, or their sum over samples and devices."""
    tables = [jkc.NeighborTable(RNG.integers(-1, 8, (5, 3)), num_inputs=7) for _ in NODES]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    each = [jax.grad(knn_loss)((WEIGHT, BIAS), x[None], t) for x, t in zip(NODES, tables, strict=True)]
    want = jax.tree.map(lambda *leaves: jnp.stack(leaves) if per_example else sum(leaves), *each)

    def gradient(x, table):
        def loss(params, x, table):
            return knn_loss(params, x[None], table)

        if per_example:
            return jax.vmap(jax.grad(loss), (None, 0, 0))((WEIGHT, BIAS), x, table)
        return jax.grad(lambda params: jax.vmap(loss, (None, 0, 0))(params, x, table).sum())((WEIGHT, BIAS))

    x, table = jax.device_put((NODES, stacked), NamedSharding(mesh_of(AxisType.Auto), P("data")))
    text = jax.jit(gradient).lower(x, table).compile().as_text()
    assert collectives(text) == all_reduces(0 if per_example else 1)
    close(jax.jit(gradient)(x, table), want)
