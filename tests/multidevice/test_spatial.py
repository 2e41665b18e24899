"""One point set over 8 devices: values and gradients of NumPy in float64, rows exchanged in rounds, no all-gather."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from spatial_cases import sphere

import jax_knnconv as jkc
from jax_knnconv.spatial import NodePartition, ShardedTable, knn_conv_sharded, partition_nodes

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


def check(got, table, sources, outputs, arrays, dtype, zero_empty_rows=False):
    y, dx, dw, db = (np.asarray(value) for value in got)
    for value, partition in ((y, outputs), (dx, sources)):
        assert not value[..., ~partition.row_mask, :].any()
    restored = (outputs.unshard(y), sources.unshard(dx), dw, db)
    right = exact(table, *arrays, zero_empty_rows)
    bounds = exact(table, *map(np.abs, arrays), zero_empty_rows)
    for value, want, bound, what in zip(restored, right, bounds, ("y", "dx", "dw", "db"), strict=True):
        oracle.assert_within_ulp(value.reshape(want.shape), want, bound, dtype, what)


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
        "table must be a ShardedTable.*Neighbor",
    ),
    "no mesh": (lambda: knn_conv_sharded(X, W, SHARDED, axis_name="space"), ValueError, "mesh: got None outside"),
    "axis": (
        lambda: knn_conv_sharded(X, W, SHARDED, mesh=mesh_of(), axis_name="spce"),
        ValueError,
        r"axis_name: got \('spce',\), expected axes of the mesh, which has \('space',\)",
    ),
    "axis type": (lambda: knn_conv_sharded(X, W, SHARDED, mesh=mesh_of(), axis_name=0), TypeError, "axis_name must be"),
    "mesh size": (
        lambda: knn_conv_sharded(X, W, ON_FOUR, **OPTIONS),
        ValueError,
        r"mesh's size along axis_name \('space',\) must equal the table's num_shards: got 8, expected 4",
    ),
    "rows": (
        lambda: knn_conv_sharded(X[:, :162], W, SHARDED, **OPTIONS),
        ValueError,
        "x's rows .* num_shards \\* source_size of its exchange: got 162, expected 168",
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
        r"bias must have shape \(2,",
    ),
    "weight rank": (lambda: knn_conv_sharded(X, W[0], SHARDED, **OPTIONS), ValueError, "weight must be"),
    "x rank": (lambda: knn_conv_sharded(X[0, 0], W, SHARDED, **OPTIONS), ValueError, "x must be"),
    "empty rows": (
        lambda: knn_conv_sharded(X, W, SHARDED, empty_rows="skip", **OPTIONS),
        ValueError,
        "empty_rows must be .* got 'skip'",
    ),
    "dtypes": (
        lambda: knn_conv_sharded(X.astype("float16"), W.astype(jnp.bfloat16), SHARDED, **OPTIONS),
        TypeError,
        "weight must be float32 or float16",
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
        r"batch_axis_name: got 'data' for x of shape \(164, 3\) without batch",
    ),
    "whole table inside": (
        lambda: inside_shard_map(P()),
        ValueError,
        r"table: got parts of \(8,\) devices, expected \(1,\)",
    ),
    "implementation": (
        lambda: knn_conv_sharded(X, W, SHARDED, implementation="best", **OPTIONS),
        ValueError,
        "implementation must be one of",
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
