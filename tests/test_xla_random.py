"""The pure-JAX implementation against NumPy float64: random shapes, groups, symbolic batches, block boundaries."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import export

from jax_knnconv._xla import dense, knn, sums, taps

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]
FLOAT32 = {"out_dtype": jnp.float32, "bias_dtype": jnp.float32}
# Without shrinking, each step of which would compile four programs.
few_examples = settings(max_examples=4, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))


def normal(rng, *shape, dtype=jnp.float32):
    return np.asarray(rng.normal(size=shape), dtype)


def close(actual, function, first, second, dtype, pick=lambda result: result):
    """`actual` is function(first, second) within case 5's bound, its slack times the root of the number of products.

    A float32 sum of n products in a row rounds n times; the errors of a matrix product add up like a random walk.
    """
    pairs = [(first, second), (abs(first), abs(second)), (np.ones_like(first), np.ones_like(second))]
    exact, absolute, terms = (pick(function(*pair)) for pair in pairs)
    oracle.assert_within_ulp(actual, exact, absolute * np.sqrt(np.maximum(terms, 1)), dtype)


@st.composite
def windows(draw):
    pair = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(2))  # noqa: E731
    kernel, stride, dilation, size = pair(1, 5), pair(1, 3), pair(1, 3), pair(1, 20)
    padding = pair(-2, 4)
    # Any output size is a valid call: the high pads follow from it.
    return kernel, size, pair(1, 9), {"stride": stride, "padding": padding, "dilation": dilation}


@pytest.mark.parametrize("dtype", DTYPES)
@few_examples
@given(windows(), st.integers(1, 3), st.integers(1, 33), st.integers(1, 33), st.integers(0, 2**31))
def test_dense(dtype, window, batch, channels, outputs, seed):
    check_dense(dtype, *window, batch, channels, outputs, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_of_a_strided_dilated_row(dtype):  # case 5
    window = {"stride": (1, 2), "padding": (0, 1), "dilation": (1, 2)}
    check_dense(dtype, (1, 3), (1, 16), (1, 8), window, 2, 4, 16, 5)


def check_dense(dtype, kernel, size, out, window, batch, channels, outputs, seed):
    rng = np.random.default_rng(seed)
    x, g = normal(rng, batch, *size, channels, dtype=dtype), normal(rng, batch, *out, outputs, dtype=dtype)
    weight = normal(rng, *kernel, channels, outputs, dtype=dtype)
    options = {"kernel_size": kernel, "group_rank": 0, "with_bias": True, "out_dtype": dtype, "bias_dtype": jnp.float32}

    @jax.jit
    def passes(x, weight, g):
        y = dense.forward(x, weight, None, **window, output_size=out, out_dtype=dtype)
        dx = dense.dinput(g, weight, **window, input_size=size, out_dtype=dtype)
        return y, dx, *dense.dweight(x, g, **window, **options)

    y, dx, dw, db = passes(x, weight, g)
    dweight = functools.partial(oracle.dense_dweight, **window, kernel_size=kernel)
    close(y, functools.partial(oracle.dense_forward, **window, output_size=out), x, weight, dtype)
    close(dx, functools.partial(oracle.dense_dinput, **window, input_size=size), g, weight, dtype)
    close(dw, dweight, x, g, dtype, operator.itemgetter(0))
    close(db, dweight, x, g, jnp.float32, operator.itemgetter(1))


def random_table(rng, rows, columns, num_inputs, num_slots, with_slots):
    """indices with holes and repeats, and slots in ascending order or None."""
    indices = rng.integers(-2, num_inputs + 2, (rows, columns)).astype(np.int32)
    indices[:, columns // 2 :] = indices[:, : columns - columns // 2]
    slots = np.sort(rng.integers(0, num_slots, (rows, columns)), axis=1).astype(np.int32) if with_slots else None
    return indices, slots


def knn_functions(num_inputs, num_slots, zero, dtype, rank=0):
    options = {"num_slots": num_slots, "zero_empty_rows": zero, "with_bias": True, "group_rank": rank}

    def passes(x, weight, bias, g, indices, slots, orders):
        y = knn.forward(x, weight, bias, indices, slots, zero_empty_rows=zero, out_dtype=dtype)
        dx = knn.dinput(g, weight, *orders[:3], num_inputs=num_inputs, out_dtype=dtype)
        slot_order = (None, None, None) if slots is None else orders[3:]
        dtypes = {"out_dtype": dtype, "bias_dtype": jnp.float32}
        return y, dx, *knn.dweight(x, g, indices, slots, *slot_order, **options, **dtypes)

    return passes


def check_knn(dtype, batch, num_inputs, rows, columns, num_slots, channels, outputs, with_slots, zero, seed):
    rng = np.random.default_rng(seed)
    num_slots = num_slots if with_slots else columns
    indices, slots = random_table(rng, rows, columns, num_inputs, num_slots, with_slots)
    orders = oracle.table_orders(indices, slots, num_inputs, num_slots)
    x, g = normal(rng, batch, num_inputs, channels, dtype=dtype), normal(rng, batch, rows, outputs, dtype=dtype)
    weight, bias = normal(rng, num_slots, channels, outputs, dtype=dtype), abs(normal(rng, outputs))
    passes = jax.jit(knn_functions(num_inputs, num_slots, zero, dtype))
    y, dx, dw, db = passes(x, weight, bias, g, indices, slots, orders)

    forward = functools.partial(oracle.knn_forward, indices=indices, slots=slots, bias=bias, zero_empty_rows=zero)
    close(y, forward, x, weight, dtype)
    dinput = functools.partial(oracle.knn_dinput, indices=indices, slots=slots, num_inputs=num_inputs)
    close(dx, dinput, g, weight, dtype)
    dweight = functools.partial(
        oracle.knn_dweight, indices=indices, slots=slots, num_slots=num_slots, zero_empty_rows=zero
    )
    close(dw, dweight, x, g, dtype, operator.itemgetter(0))
    close(db, dweight, x, g, jnp.float32, operator.itemgetter(1))


@pytest.mark.parametrize("dtype", DTYPES)
@few_examples
@given(*[st.integers(1, high) for high in (3, 40, 40, 9, 9, 33, 33)], st.booleans(), st.booleans(), st.integers(0, 99))
def test_knn(dtype, batch, num_inputs, rows, columns, num_slots, channels, outputs, with_slots, zero, seed):
    check_knn(dtype, batch, num_inputs, rows, columns, num_slots, channels, outputs, with_slots, zero, seed)


@pytest.mark.parametrize("with_slots", [False, True])
def test_knn_in_many_blocks(monkeypatch, with_slots):
    monkeypatch.setattr(taps, "MAX_CHUNK", 64)
    monkeypatch.setattr(taps, "MIN_ROOM", 8)
    monkeypatch.setattr(sums, "BLOCK_ROWS", 64)
    monkeypatch.setattr(knn, "BLOCK_OUTPUTS", 50)
    check_knn(jnp.float32, 2, 90, 201, 6, 3, 3, 4, with_slots, True, 8)
    check_knn(jnp.float32, 1, 2, 201, 6, 3, 3, 4, with_slots, True, 9)  # hubs


def test_dense_dweight_in_many_blocks(monkeypatch):
    monkeypatch.setattr(sums, "BLOCK_ROWS", 64)
    window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    check_dense(jnp.float32, (3, 2), (9, 7), (5, 6), window, 7, 3, 4, 11)


def whole(rng, *shape, dtype):
    """Small whole numbers: their sums below are exact in every dtype."""
    return np.asarray(rng.integers(-2, 3, shape), dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("group_sizes", [(1, 1), (3, 1), (1, 3), (3, 3)])
def test_dense_groups(group_sizes, dtype):
    rng = np.random.default_rng(1)
    first, second = group_sizes
    x, weight = whole(rng, first, 2, 5, 6, 8, dtype=dtype), whole(rng, second, 3, 2, 8, 4, dtype=dtype)
    g, bias = whole(rng, second, 2, 3, 6, 4, dtype=dtype), whole(rng, 1, 4, dtype=jnp.float32)
    window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    dtypes = {"out_dtype": dtype, "bias_dtype": jnp.float32}
    y = dense.forward(x, weight, bias, **window, output_size=(3, 6), out_dtype=dtype)
    dx = dense.dinput(g, weight, **window, input_size=(5, 6), out_dtype=dtype)
    dw, db = dense.dweight(x, g, **window, kernel_size=(3, 2), group_rank=1, with_bias=True, **dtypes)
    groups = max(group_sizes)
    assert (len(y), len(dx), len(dw), len(db)) == (groups, second, groups, groups)
    for i in range(groups):
        xi, gi, wi = x[i % first], g[i % second], weight[i % second]
        expected = oracle.dense_dweight(xi, gi, **window, kernel_size=(3, 2))
        np.testing.assert_array_equal(y[i], oracle.dense_forward(xi, wi, bias[0], **window, output_size=(3, 6)))
        np.testing.assert_array_equal(dw[i], expected[0])
        np.testing.assert_array_equal(db[i], expected[1])
        np.testing.assert_array_equal(dx[i % second], oracle.dense_dinput(gi, wi, **window, input_size=(5, 6)))


@pytest.mark.parametrize(("g_groups", "dtype"), [(1, jnp.float32), (2, jnp.bfloat16)])
@pytest.mark.parametrize("with_slots", [False, True])
def test_knn_groups(with_slots, g_groups, dtype):
    """Two group dimensions: weights, and cotangents where so said, differ along the first, tables along the second."""
    rng = np.random.default_rng(2)
    tables = [random_table(rng, 7, 4, 5, 4, with_slots) for _ in range(3)]
    orders = [oracle.table_orders(*table, 5, 4) for table in tables]
    stack = lambda arrays: np.stack(arrays)[None]  # noqa: E731
    indices = stack([table[0] for table in tables])
    slots = stack([table[1] for table in tables]) if with_slots else None
    x, g = whole(rng, 1, 3, 2, 5, 8, dtype=dtype), whole(rng, g_groups, 3, 2, 7, 3, dtype=dtype)
    weight, bias = whole(rng, 2, 1, 4, 8, 3, dtype=dtype), whole(rng, 1, 1, 3, dtype=jnp.float32)
    passes = jax.jit(knn_functions(5, 4, False, dtype, rank=2))
    y, dx, dw, db = passes(x, weight, bias, g, indices, slots, [stack(order) for order in zip(*orders, strict=True)])
    assert (y.shape, dx.shape) == ((2, 3, 2, 7, 3), (2, 3, 2, 5, 8))
    assert (dw.shape, db.shape) == ((g_groups, 3, 4, 8, 3), (g_groups, 3, 3))
    for i, j in np.ndindex(2, 3):
        gi = g[i % g_groups, j]
        expected = oracle.knn_dweight(x[0, j], gi, *tables[j], num_slots=4)
        np.testing.assert_array_equal(
            y[i, j], oracle.knn_forward(x[0, j], weight[i, 0], *tables[j], bias=bias[0, 0]).astype(dtype)
        )
        np.testing.assert_array_equal(dx[i, j], oracle.knn_dinput(gi, weight[i, 0], *tables[j], num_inputs=5))
        np.testing.assert_array_equal(dw[i % g_groups, j], expected[0])
        np.testing.assert_array_equal(db[i % g_groups, j], expected[1])


def test_symbolic_batches():
    a, b, group = export.symbolic_shape("a, b, group")
    rng = np.random.default_rng(3)
    indices, slots = random_table(rng, 6, 4, 8, 3, True)
    orders = oracle.table_orders(indices, slots, 8, 3)
    window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)}

    def dense_passes(x, weight, g):
        y = dense.forward(x, weight, None, **window, output_size=(4, 7), out_dtype=jnp.float32)
        dx = dense.dinput(g, weight, **window, input_size=(7, 7), out_dtype=jnp.float32)
        return (
            y,
            dx,
            *dense.dweight(x, g, **window, kernel_size=(3, 3), group_rank=weight.ndim - 4, with_bias=True, **FLOAT32),
        )

    def knn_passes(x, weight, g):
        return knn_functions(8, 3, True, jnp.float32)(x, weight, None, g, indices, slots, orders)

    cases = [
        (dense_passes, (a, b), (2, 3), [(7, 7, 2), (3, 3, 2, 3), (4, 7, 3)], ()),
        (dense_passes, (group, b), (2, 3), [(7, 7, 2), (3, 3, 2, 3), (4, 7, 3)], (group,)),
        (knn_passes, (a, b), (2, 3), [(8, 2), (3, 2, 3), (6, 3)], ()),
    ]
    for function, symbols, sizes, fixed, weight_groups in cases:
        leading = [symbols, weight_groups, symbols]
        specs = [jax.ShapeDtypeStruct((*dims, *shape), jnp.float32) for dims, shape in zip(leading, fixed, strict=True)]
        exported = export.export(jax.jit(function))(*specs)
        operands = [normal(rng, *sizes[: len(dims)], *shape) for dims, shape in zip(leading, fixed, strict=True)]
        for got, expected in zip(exported.call(*operands), function(*operands), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_temporary_memory_of_knn():
    """Rule 3: nothing of size B * M * K * C."""
    batch, nodes, columns, channels = 4, 40_000, 27, 64
    gathered = batch * nodes * columns * channels * 4
    spec = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731
    entries = spec(nodes * columns, dtype=jnp.int32)
    offsets = [spec(n + 1, 2, dtype=jnp.int32) for n in (nodes, columns)]
    rows, weight = spec(batch, nodes, channels), spec(columns, channels, channels)
    table = spec(nodes, columns, dtype=jnp.int32)
    for slots in (None, table):
        functions = knn_functions(nodes, columns, False, jnp.float32)
        orders = [offsets[0], entries, entries, offsets[1], entries, entries]
        compiled = jax.jit(functions).lower(rows, weight, None, rows, table, slots, orders).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 0.1 * gathered


def test_oracle_bound_rejects_what_is_off():
    exact = np.array([1.0, 1e-9, 70000.0])
    oracle.assert_within_ulp(np.array([1, 0, np.inf], np.float16), exact, exact, np.float16)
    for wrong in ([1 + 2**-9, 0, np.inf], [1, 1e-6, np.inf], [1, 0, 65000], [np.nan, 0, np.inf], [1, 0, -np.inf]):
        with pytest.raises(AssertionError):
            oracle.assert_within_ulp(np.array(wrong, np.float16), exact, exact, np.float16)
