"""knn_conv and its gradients: random tables against NumPy float64, and cases with known answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_knnconv as jkc

DTYPES = ("float32", "bfloat16", "float16")
JUNK = (-(2**31), -50_000_000, -1, 2**31 - 1)


def column(*values, dtype="float32"):
    """Values as one-channel rows."""
    return jnp.asarray(values, dtype).reshape(-1, 1)


def slots_of(*values, dtype="float32"):
    """Values as weights of one channel in and out, one a slot."""
    return jnp.asarray(values, dtype).reshape(-1, 1, 1)


def passes(x, weight, table, bias=None, g=None, **options):
    """(y, dx, dw, db or None) through the public op and its vjp, g ones unless given."""
    if bias is None:
        y, back = jax.vjp(lambda x, w: jkc.knn_conv(x, w, table, **options), x, weight)
        return (y, *back(jnp.ones_like(y) if g is None else g), None)
    y, back = jax.vjp(lambda x, w, b: jkc.knn_conv(x, w, table, b, **options), x, weight, bias)
    return (y, *back(jnp.ones_like(y) if g is None else g))


def flat(*values):
    return [None if v is None else np.asarray(v, np.float64).ravel().tolist() for v in values]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_random_tables(dtype, data):
    """All three passes and the one-call backward: holes, junk, repeated slots, V above K, any batch."""
    b, n, m, k = (data.draw(st.integers(low, high)) for low, high in ((0, 17), (0, 30), (0, 30), (0, 9)))
    c, o = data.draw(st.integers(1, 33)), data.draw(st.integers(1, 33))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    indices = rng.integers(0, max(n, 1), (m, k))
    junk = rng.random((m, k)) < data.draw(st.sampled_from([0.0, 0.2, 0.9]))
    indices[junk] = rng.choice([*JUNK, n, n + 1], junk.sum())
    with_slots = data.draw(st.booleans())
    v = data.draw(st.integers(1, 12)) if with_slots else k
    slots = rng.integers(0, v, (m, k)) if with_slots else None
    zero = data.draw(st.booleans())
    options = {"empty_rows": "zero" if zero else "bias"}
    x, weight, g = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((b, n, c), (v, c, o), (b, m, o)))
    bias = jnp.asarray(rng.standard_normal(o), "float32")
    table = jkc.NeighborTable(indices, slots, num_inputs=n, num_slots=v if with_slots else None)

    @jax.jit
    def run(x, weight, g, bias, table):
        y = jkc.knn_conv(x, weight, table, bias, **options)
        return (
            y,
            (jkc.knn_dinput(g, weight, table), *jkc.knn_dweight(x, g, table, **options)),
            jkc.knn_backward(g, x, weight, table, **options),
        )

    y, separate, together = run(x, weight, g, bias, table)
    x64, w64, g64 = oracle.f64(x, weight, g)
    rows = {"zero_empty_rows": zero}
    want = oracle.knn_forward(x64, w64, indices, slots, bias, **rows)
    slack = oracle.knn_forward(abs(x64), abs(w64), indices, slots, abs(bias), **rows)
    oracle.assert_within_ulp(y, want, slack, dtype, "y")
    want = (
        oracle.knn_dinput(g64, w64, indices, slots, num_inputs=n),
        *oracle.knn_dweight(x64, g64, indices, slots, num_slots=v, zero_empty_rows=zero),
    )
    slack = (
        oracle.knn_dinput(abs(g64), abs(w64), indices, slots, num_inputs=n),
        *oracle.knn_dweight(abs(x64), abs(g64), indices, slots, num_slots=v, zero_empty_rows=zero),
    )
    for name, one, both, exact, sums in zip(("dx", "dw", "db"), separate, together, want, slack, strict=True):
        oracle.assert_within_ulp(one, exact, sums, dtype, name)
        oracle.assert_within_ulp(both, exact, sums, dtype, f"{name} of knn_backward")


@pytest.mark.parametrize(("dtype", "want"), [("float32", 40000), ("float16", 40000), ("bfloat16", 39936)])
def test_shared_points(dtype, want):
    """Case 2: ten points read by 400,000 rows; sums are float32, rounded once."""
    table = jkc.NeighborTable(np.arange(400_000)[:, None] % 10, num_inputs=10)
    x, weight = jnp.ones((10, 8), dtype), jnp.ones((1, 8, 1), dtype)
    _, dx, dw, _ = passes(x, weight, table)
    assert (np.asarray(dx, np.float64) == want).all()
    whole = {"float32": 400_000, "bfloat16": 399_360, "float16": np.inf}[dtype]
    assert (np.asarray(dw, np.float64) == whole).all()


def test_one_point_read_twenty_million_times():
    """Case 2: float32 sums that would stop at 2^24 if they were one chain."""
    count = 20_000_000
    table = jkc.NeighborTable(np.zeros((count, 1), np.int32), num_inputs=1)
    g = jnp.ones((count, 1))
    assert jkc.knn_dinput(g, jnp.ones((1, 1, 1)), table).item() == count
    dw, db = jkc.knn_dweight(jnp.ones((1, 1)), g, table)
    assert (dw.item(), db.item()) == (count, count)


def test_holes():
    """Case 8, and no leak into the next batch row."""
    table = jkc.NeighborTable([[0, 3], [2, -1]], num_inputs=3)
    assert flat(*passes(column(1, 2, 3), slots_of(1, 1), table)) == [[1, 3], [1, 0, 1], [4, 0], None]
    x = jnp.stack([column(1, 2, 3), column(100, 200, 300)])
    assert flat(*passes(x, slots_of(1, 1), table)) == [[1, 3, 100, 300], [1, 0, 1, 1, 0, 1], [404, 0], None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (40,)])
def test_nan_under_a_hole(dtype, batch):
    """Case 9."""
    table = jkc.NeighborTable([[-1, -1], [1, 2]], num_inputs=3)
    x = jnp.broadcast_to(column(np.nan, 2, 3, dtype=dtype), (*batch, 3, 1))
    y, dx, dw, _ = passes(x, slots_of(1, 1, dtype=dtype), table)
    count = max(1, *batch, 1)
    assert flat(y, dx, dw) == [[0, 5] * count, [0, 1, 1] * count, [2 * count, 3 * count]]


def test_fewer_neighbours_than_columns():
    """Case 20."""
    table = jkc.NeighborTable([[0, 1, 2, -1, -1, -1, -1, -1]], num_inputs=3)
    assert jkc.knn_conv(column(3, 6, 9), slots_of(*[1] * 8), table).item() == 18


@pytest.mark.parametrize(("dtype", "top"), [("float16", 512), ("bfloat16", 256), ("float32", 512)])
def test_identity_is_bitwise(dtype, top):
    """Case 21; bfloat16 holds whole numbers to 256 exactly and the cast of the others is x itself."""
    x = jnp.asarray(np.arange(8 * 513).reshape(8, 513).T % (top + 1), dtype)
    y = jkc.knn_conv(x, jnp.eye(8, dtype=dtype)[None], jkc.NeighborTable(np.arange(513)[:, None], num_inputs=513))
    assert y.dtype == x.dtype
    assert np.asarray(y).tobytes() == np.asarray(x).tobytes()


def test_shared_slots():
    """Case 23: the gradient of a slot adds all taps that use it."""
    table = jkc.NeighborTable([[0, 1, 2]], [[0, 0, 1]], num_inputs=3, num_slots=2)
    y, _, dw, _ = passes(column(1, 10, 100), slots_of(2, 3), table)
    assert flat(y, dw) == [[322], [11, 100]]


def test_rows_of_holes():
    """Case 24."""
    table = jkc.NeighborTable([[-1, -1], [0, 1]], num_inputs=2)
    x, weight, bias = column(1, 1), slots_of(1, 1), jnp.array([5.0])
    y, *_, db = passes(x, weight, table, bias)
    assert flat(y, db) == [[5, 7], [2]]
    y, *_, db = passes(x, weight, table, bias, empty_rows="zero")
    assert flat(y, db) == [[0, 7], [1]]


def test_duplicate_neighbours():
    """Case 25."""
    table = jkc.NeighborTable([[1, 1, 1]], num_inputs=2)
    y, dx, *_ = passes(column(1, 5), slots_of(1, 10, 100), table)
    assert flat(y, dx) == [[555], [0, 111]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_image_as_table_equals_conv2d(dtype):
    """Case 26, all passes, bit for bit: both sum slots and channels in the same order."""
    rng = np.random.default_rng(0)
    x, weight, g = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((2, 6, 6, 5), (3, 3, 5, 4), (2, 6, 6, 4)))
    table = jkc.grid_table((6, 6), (3, 3))
    y, dx, dw, _ = passes(x.reshape(2, 36, 5), weight.reshape(9, 5, 4), table, g=g.reshape(2, 36, 4))
    dense, back = jax.vjp(jkc.conv2d, x, weight)
    for name, got, want in zip(("y", "dx", "dw"), (y, dx, dw), (dense, *back(g)), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64).reshape(got.shape)
        if name == "y":
            np.testing.assert_array_equal(got, want)
        else:
            scale = 2.0 ** -{"float32": 21, "bfloat16": 7, "float16": 10}[dtype]
            np.testing.assert_allclose(got, want, rtol=scale, atol=scale, err_msg=name)


def test_junk_indices_over_a_thousand_steps():
    """Case 10: N is no tile multiple; every junk index is a hole, at every step."""
    n, steps = 77, 1000
    rng = np.random.default_rng(5)
    indices = rng.integers(0, n, (n, 6))
    junk = rng.random(indices.shape) < 0.3
    indices[junk] = rng.choice([*JUNK, n, n + 1], junk.sum())
    clean = np.where((indices >= 0) & (indices < n), indices, -1)
    x, weight = jnp.asarray(rng.standard_normal((2, n, 9)), "float32"), jnp.asarray(rng.standard_normal((6, 9, 9)) / 9)
    weight = weight.astype("float32")

    def run(indices):
        table = jkc.NeighborTable(indices, num_inputs=n)
        step = jax.jit(lambda c, w: jnp.tanh(jkc.knn_conv(c, w, table) + jkc.knn_dinput(c, w, table)))
        carry = x
        for _ in range(steps):
            carry = step(carry, weight)
        return np.asarray(carry)

    result = run(indices)
    assert np.isfinite(result).all()
    assert result.tobytes() == run(clean).tobytes()


def test_submanifold():
    """Case 28: active cells of a 4x4 map see only each other."""
    cells = np.array([(0, 0), (0, 2), (1, 1), (2, 0), (3, 3)])
    y = jkc.knn_conv(jnp.ones((5, 1)), slots_of(*[1] * 9), jkc.submanifold_table(cells, (3, 3)))
    assert flat(y) == [[2, 2, 4, 2, 1]]


@pytest.mark.parametrize("sizes", [(0, 4, 5, 3), (2, 4, 0, 3), (2, 0, 5, 3), (2, 4, 5, 0)])
def test_empty(sizes):
    """Case 18: batch 0, M = 0, N = 0, K = 0."""
    b, n, m, k = sizes
    table = jkc.NeighborTable(np.zeros((m, k), np.int32), num_inputs=n)
    x, weight, bias = jnp.ones((b, n, 3)), jnp.ones((k, 3, 2)), jnp.full(2, 7.0)
    y, dx, dw, db = passes(x, weight, table, bias)
    assert (y.shape, dx.shape, dw.shape, db.shape) == ((b, m, 2), x.shape, weight.shape, (2,))
    assert (np.asarray(y) == 7).all()
    assert (np.asarray(dx) == 0).all()
    assert (np.asarray(dw) == 0).all()
    assert (np.asarray(db) == b * m).all()


def test_promotion_and_index_dtypes():
    """Case 22."""
    table = jkc.NeighborTable(np.array([[200]], np.uint8), num_inputs=300)
    x = jnp.arange(300.0)[:, None]
    assert jkc.knn_conv(x, slots_of(1), table).item() == 200
    assert jkc.knn_conv(np.arange(300)[:, None], slots_of(1), table).dtype == jnp.float32
    assert jkc.knn_conv(np.ones((300, 1), bool), slots_of(1), table).item() == 1
    with jax.enable_x64(True):
        y, back = jax.vjp(lambda x: jkc.knn_conv(x, slots_of(1), table), jnp.arange(300.0, dtype="float64")[:, None])
        assert y.dtype == jnp.float32
        assert back(jnp.ones_like(y))[0].dtype == jnp.float64
    wide = np.full((300, 1), 2**40)  # more than int32 holds: rounded to float32, not wrapped
    assert jkc.knn_conv(wide, slots_of(1), table).item() == 2.0**40
    for kind in (np.int8, np.int64):
        assert jkc.knn_conv(x, slots_of(1), jkc.NeighborTable(np.array([[7]], kind), num_inputs=300)).item() == 7
    with pytest.raises(TypeError, match="indices"):
        jkc.NeighborTable(np.array([[1.0]]), num_inputs=300)


def test_rows_have_the_same_bits_in_any_batch():
    rng = np.random.default_rng(2)
    table = jkc.NeighborTable(rng.integers(-1, 41, (33, 7)), rng.integers(0, 9, (33, 7)), num_inputs=40, num_slots=9)
    x, weight = jnp.asarray(rng.standard_normal((70, 40, 19)), "float32"), jnp.asarray(rng.standard_normal((9, 19, 21)))
    weight = weight.astype("float32")
    whole = np.asarray(jkc.knn_conv(x, weight, table))
    g = jnp.asarray(whole)
    whole_dx = np.asarray(jkc.knn_dinput(g, weight, table))
    for size in (1, 3, 17):
        assert np.asarray(jkc.knn_conv(x[:size], weight, table)).tobytes() == whole[:size].tobytes()
        assert np.asarray(jkc.knn_dinput(g[:size], weight, table)).tobytes() == whole_dx[:size].tobytes()


def test_one_table_a_sample():
    rng = np.random.default_rng(4)
    indices = rng.integers(-1, 12, (3, 8, 4))
    x, weight, bias = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((3, 2, 11, 5), (4, 5, 6), (6,)))
    stacked = passes(x, weight, jkc.NeighborTable(indices, num_inputs=11), bias)
    single = [passes(x[i], weight, jkc.NeighborTable(indices[i], num_inputs=11), bias) for i in range(3)]
    for position, combine in enumerate((np.stack, np.stack, sum, sum)):
        want = combine([np.asarray(s[position]) for s in single])
        np.testing.assert_allclose(stacked[position], want, rtol=1e-5, atol=1e-5)
