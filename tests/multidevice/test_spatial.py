"""One point set over 8 devices: values and gradients of NumPy in float64, rows exchanged in rounds, no all-gather."""

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
    RNG,
    ROWS,
    SPHERE,
    TABLES,
    VERTICES,
    case,
    check,
    collectives,
    mesh_of,
    on_mesh,
    value_and_gradients,
)

import jax_knnconv as jkc
from jax_knnconv.spatial import NodePartition, knn_conv_sharded, partition_nodes

# Values and gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_values_and_gradients(kind, name):
    table, sources, outputs, arrays = case(name)
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        operands = on_mesh(mesh, sources, outputs, arrays, table)
        step = jax.jit(functools.partial(value_and_gradients, axis_name="space"))
        got = step(*operands)
        counts = collectives(step.lower(*operands).compile().as_text())
    check(got, table, sources, outputs, arrays, "float32")
    for value in got[:2]:
        assert value.sharding.is_equivalent_to(operands[0].sharding, value.ndim)
    rounds = len(operands[-1].exchange.rounds)
    assert counts == {"all-gather": 0, "all-reduce": 1, "all-to-all": 0, "collective-permute": 2 * rounds}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    for name in ("sphere", "slots, holes, a hub"):
        table, sources, outputs, arrays = case(name, dtype=dtype)
        mesh = mesh_of()
        operands = on_mesh(mesh, sources, outputs, arrays, table)
        got = jax.jit(functools.partial(value_and_gradients, mesh=mesh, axis_name="space"))(*operands)
        check(got, table, sources, outputs, arrays, dtype)


def test_float32_with_sixteen_bit_products():
    """Rows travel forward in bfloat16, their cotangents in float32; parameters stay float32."""
    table, sources, outputs, arrays = case("sphere", dtype="bfloat16")
    wide = [array.astype(np.float32) for array in arrays]
    mesh = mesh_of()
    operands = on_mesh(mesh, sources, outputs, wide, table)
    step = jax.jit(functools.partial(value_and_gradients, mesh=mesh, axis_name="space", compute_dtype="bfloat16"))
    check(step(*operands), table, sources, outputs, arrays, "float32")
    lines = [line for line in step.lower(*operands).compiler_ir("hlo").as_hlo_text().splitlines() if "permute(" in line]
    rounds = len(operands[-1].exchange.rounds)
    assert [("bf16[" in line, "f32[" in line) for line in lines] == [(True, False)] * rounds + [(False, True)] * rounds


@pytest.mark.parametrize("empty_rows", ["bias", "zero"])
def test_empty_rows(empty_rows):
    table, sources, outputs, arrays = case("slots, holes, a hub")
    mesh = mesh_of()
    operands = on_mesh(mesh, sources, outputs, arrays, table)
    got = value_and_gradients(*operands, mesh=mesh, axis_name="space", empty_rows=empty_rows)  # eager
    check(got, table, sources, outputs, arrays, "float32", zero_empty_rows=empty_rows == "zero")


@pytest.mark.parametrize("batch", [(), (3, 2)])
def test_batch_dimensions_and_no_bias(batch):
    table, sources, outputs, arrays = case("down", batch)
    mesh = mesh_of()
    x, w, _, _, sharded = on_mesh(mesh, sources, outputs, arrays, table, P(*(None,) * len(batch), "space"))
    y = outputs.unshard(np.asarray(knn_conv_sharded(x, w, sharded, mesh=mesh, axis_name="space")))
    assert y.shape == (*batch, 43, 5)
    np.testing.assert_allclose(y, jkc.knn_conv(arrays[0], arrays[1], table), rtol=1e-6, atol=1e-6)


def test_sums_of_returning_cotangents_and_of_parameters_are_float32():
    """A row that 7 devices read 273 times each: 1911 ones are 1912 in bfloat16, or 1904 if partial sums are rounded."""
    sources = NodePartition(np.arange(8), num_shards=8)
    outputs = NodePartition(np.repeat(np.arange(8), 273), num_shards=8)
    indices = np.zeros((8 * 273, 1), int)
    indices[:273] = -1
    table = jkc.NeighborTable(indices, num_inputs=8)
    ones = [np.ones(shape, jnp.bfloat16) for shape in ((1, 8, 1), (1, 1, 1), (1,), (1, 8 * 273, 1))]
    mesh = mesh_of()
    operands = on_mesh(mesh, sources, outputs, ones, table)
    _, dx, dw, db = value_and_gradients(*operands, mesh=mesh, axis_name="space", empty_rows="zero")
    assert np.asarray(dx).ravel().tolist() == [1912] + [0] * 7
    assert [float(dw[0, 0, 0]), float(db[0])] == [1912, 1912]
    assert operands[-1].exchange.needed == (0,) + (1,) * 7


def test_rows_are_bitwise_those_of_one_device_on_cpu():
    """Each row sums its taps in their order, wherever they come from."""
    table, sources, outputs, (x, w, b, _) = case("slots, holes, a hub")
    mesh = mesh_of()
    operands = on_mesh(mesh, sources, outputs, (x, w, b, x), table)
    runs = [knn_conv_sharded(operands[0], w, operands[-1], b, mesh=mesh, axis_name="space") for _ in range(3)]
    for y in runs:
        assert outputs.unshard(np.asarray(y)).tobytes() == np.asarray(jkc.knn_conv(x, w, table, b)).tobytes()


def test_gradients_are_the_same_bits_every_time():
    table, sources, outputs, arrays = case("slots, holes, a hub", dtype="bfloat16")
    mesh = mesh_of()
    operands = on_mesh(mesh, sources, outputs, arrays, table)
    step = jax.jit(functools.partial(value_and_gradients, mesh=mesh, axis_name="space"))
    runs = [[np.asarray(value).tobytes() for value in step(*operands)] for _ in range(10)]
    assert all(run == runs[0] for run in runs)


# Meshes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_batch_and_space(kind):
    """Batch over one axis, space over the other: rows are exchanged within a batch shard."""
    partition = partition_nodes(4, points=VERTICES)
    arrays = case("sphere")[3]
    mesh = mesh_of(kind, (2, 4), ("data", "space"))
    with jax.set_mesh(mesh):
        operands = on_mesh(mesh, partition, partition, arrays, SPHERE, P("data", "space"))
        options = {"batch_axis_name": "data"} if kind == AxisType.Auto else {}
        step = jax.jit(functools.partial(value_and_gradients, axis_name="space", **options))
        got = step(*operands)
        assert collectives(step.lower(*operands).compile().as_text())["all-gather"] == 0
    check(got, SPHERE, partition, partition, arrays, "float32")
    assert got[0].sharding.is_equivalent_to(operands[0].sharding, 3)


def test_space_over_two_axes():
    arrays = case("sphere")[3]
    mesh = mesh_of(AxisType.Auto, (4, 2), ("rows", "columns"))
    axes = ("rows", "columns")
    x, w, b, g = arrays
    sharded = jax.device_put(NODES.shard_table(SPHERE), NamedSharding(mesh, P(axes)))
    x, g = (jax.device_put(NODES.shard(value), NamedSharding(mesh, P(None, axes))) for value in (x, g))
    got = jax.jit(functools.partial(value_and_gradients, mesh=mesh, axis_name=axes))(x, w, b, g, sharded)
    check(got, SPHERE, NODES, NODES, arrays, "float32")


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma):
    """A user's own shard_map, with a loss summed over devices: autodiff adds the parameters' gradients."""
    table, sources, outputs, arrays = case("down")
    mesh = mesh_of()
    x, w, b, g, sharded = on_mesh(mesh, sources, outputs, arrays, table)

    def loss(x, w, b, g, sharded):
        y = knn_conv_sharded(x, w, sharded, b, axis_name="space")
        return (y * g).sum(), y

    def step(x, w, b, g, sharded):
        (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, w, b, g, sharded)
        if not check_vma:
            gradients = (gradients[0], *jax.lax.psum(gradients[1:], "space"))
        return y, *gradients

    mapped = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(ROWS, P(), P(), ROWS, P("space")),
            out_specs=(ROWS, ROWS, P(), P()),
            check_vma=check_vma,
        )
    )
    check(mapped(x, w, b, g, sharded), table, sources, outputs, arrays, "float32")


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_sharded_values_are_restored_and_sharded_again(kind):
    values = RNG.standard_normal((2, 162, 3)).astype("float32")
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        placed = jax.device_put(NODES.shard(values), NamedSharding(mesh, ROWS))
        for restore in (NODES.unshard, jax.jit(NODES.unshard)):
            np.testing.assert_array_equal(restore(placed), values)
        np.testing.assert_array_equal(jax.jit(lambda v: NODES.shard(NODES.unshard(v)))(placed), placed)
