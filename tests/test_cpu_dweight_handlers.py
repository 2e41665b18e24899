"""The CPU targets dense_dweight and knn_dweight, called directly and held to NumPy float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dweight_calls import DTYPES, call, dense_dweight, dense_oracle, knn_dweight, knn_oracle, slot_order
from handler_calls import ABSENT_INDEX, assert_close, knn_dinput_answer, packed_size, random, random_table, source_order
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_knnconv._ffi import load_backend, target_name

pytestmark = pytest.mark.skipif(load_backend("cpu").module is None, reason="the CPU module is not built")

channel_counts = st.one_of(st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 14, 16, 17, 33, 63, 65]), st.integers(1, 40))
dtypes = st.sampled_from(sorted(DTYPES))


@settings(max_examples=80, deadline=None)
@given(
    dtype=dtypes,
    channels=channel_counts,
    columns=channel_counts,
    batch=st.integers(0, 3),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    low=st.tuples(st.integers(-2, 4), st.integers(-2, 4)),
    high=st.tuples(st.integers(-2, 4), st.integers(-2, 4)),
    slices=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_dense_random(dtype, channels, columns, batch, size, kernel, stride, dilation, low, high, slices, seed):
    rng = np.random.default_rng(seed)
    outputs = [
        max(0, (size[d] + low[d] + high[d] - (kernel[d] - 1) * dilation[d] - 1) // stride[d] + 1) for d in range(2)
    ]
    x = random(rng, (batch, *size, channels), DTYPES[dtype])
    g = random(rng, (batch, *outputs, columns), DTYPES[dtype])
    dw, db = dense_dweight(x, g, kernel, stride=stride, padding=low, dilation=dilation, slices=slices)
    want_dw, size_dw, want_db, size_db = dense_oracle(x, g, kernel, stride, low, dilation)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


@settings(max_examples=80, deadline=None)
@given(
    dtype=dtypes,
    channels=channel_counts,
    columns=channel_counts,
    batch=st.integers(0, 4),
    num_inputs=st.integers(0, 60),
    rows=st.one_of(st.integers(0, 70), st.integers(100, 700)),
    taps=st.integers(0, 12),
    num_slots=st.one_of(st.none(), st.integers(1, 40)),
    zero_empty_rows=st.integers(0, 1),
    slices=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_knn_random(dtype, channels, columns, batch, num_inputs, rows, taps, num_slots, zero_empty_rows, slices, seed):
    rng = np.random.default_rng(seed)
    x = random(rng, (batch, num_inputs, channels), DTYPES[dtype])
    g = random(rng, (batch, rows, columns), DTYPES[dtype])
    indices = random_table(rng, rows, taps, num_inputs)
    slots = None
    if num_slots is not None:
        slots = rng.integers(-1, num_slots + 1, indices.shape)
    options = {"zero_empty_rows": zero_empty_rows, "slices": slices}
    dw, db = knn_dweight(x, g, indices, slots, num_slots=num_slots, **options)
    full_slots = np.broadcast_to(np.arange(taps), indices.shape) if slots is None else slots
    want_dw, size_dw, want_db, size_db = knn_oracle(x, g, indices, full_slots, dw.shape[0], zero_empty_rows)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_backward_is_dinput_and_dweight(has_slots, bias):
    rng = np.random.default_rng(3)
    batch, num_inputs, rows, taps, channels, columns = 2, 30, 90, 5, 9, 18
    num_slots = 7 if has_slots else taps
    x, g = random(rng, (batch, num_inputs, channels), jnp.bfloat16), random(rng, (batch, rows, columns), jnp.bfloat16)
    weight = random(rng, (num_slots, channels, columns), jnp.bfloat16)
    indices = random_table(rng, rows, taps, num_inputs)
    indices[4] = -1
    slots = rng.integers(-1, num_slots + 1, indices.shape).astype(np.int32) if has_slots else None
    order = slot_order(indices, slots, num_inputs, num_slots) if has_slots else (ABSENT_INDEX,) * 3
    results = [
        jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
        jax.ShapeDtypeStruct(weight.shape, jnp.float32),
        jax.ShapeDtypeStruct((columns,) if bias else (0,), jnp.float32),
        jax.ShapeDtypeStruct((packed_size(weight.shape, 3, -1),), jnp.float32),
        jax.ShapeDtypeStruct((2, weight.size + columns), jnp.float32),
    ]
    dx, dw, db, _, _ = jax.ffi.ffi_call(target_name("knn_backward"), results)(
        g,
        x,
        weight,
        indices,
        ABSENT_INDEX if slots is None else slots,
        *source_order(indices, slots, num_inputs, num_slots),
        *order,
        zero_empty_rows=np.int64(1),
    )
    assert_close(np.asarray(dx), *knn_dinput_answer(g, weight, indices, slots, num_inputs=num_inputs))
    full_slots = np.broadcast_to(np.arange(taps), indices.shape) if slots is None else slots
    want_dw, size_dw, want_db, size_db = knn_oracle(x, g, indices, full_slots, num_slots, zero_empty_rows=1)
    assert_close(np.asarray(dw), want_dw, size_dw)
    if bias:
        assert_close(np.asarray(db), want_db, size_db)


@pytest.mark.parametrize("slices", [1, 3, 16])
@pytest.mark.parametrize("has_slots", [False, True])
def test_twenty_million_taps_of_one_weight(slices, has_slots):
    rows = 20_000_000
    x, g = np.ones((1, 1, 1), np.float32), np.ones((1, rows, 1), np.float32)
    indices = np.zeros((rows, 1), np.int32)
    slots = (np.zeros_like(indices),) if has_slots else (ABSENT_INDEX,)
    order = (np.array([[0, 0], [rows, 0]], np.int32), np.arange(rows, dtype=np.int32), indices[:, 0])
    operands = (x, g, indices, *slots, *(order if has_slots else (ABSENT_INDEX,) * 3))
    options = {"bias_shape": (1,), "dtype": jnp.float32, "slices": slices, "zero_empty_rows": np.int64(0)}
    dw, db = call("knn_dweight", operands, (1, 1, 1), **options)
    assert dw.item() == rows
    assert db.item() == rows


def test_taps_of_one_slot_in_one_row():
    """More taps of a (row, slot) cell than a tile holds."""
    rng = np.random.default_rng(0)
    x, g = random(rng, (1, 50, 3), np.float32), random(rng, (1, 5, 4), np.float32)
    indices = random_table(rng, 5, 300, 50)
    slots = np.where(rng.random(indices.shape) < 0.9, 1, 0).astype(np.int32)
    dw, db = knn_dweight(x, g, indices, slots, num_slots=3)
    want_dw, size_dw, want_db, size_db = knn_oracle(x, g, indices, slots, 3)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


def test_holes_read_nothing():
    x = np.array([np.nan, 2, 3], np.float32).reshape(1, 3, 1)
    g = np.ones((1, 2, 1), np.float32)
    indices = np.array([[-1, -1], [1, 2]])
    for slots in (None, np.array([[0, 1], [0, 1]])):
        dw, db = knn_dweight(x, g, indices, slots, num_slots=2)
        assert dw.ravel().tolist() == [2, 3]
        assert db.tolist() == [2]
        assert knn_dweight(x, g, indices, slots, num_slots=2, zero_empty_rows=1)[1].tolist() == [1]


def test_table_with_holes_of_the_cases():
    x, g = np.array([1, 2, 3], np.float32).reshape(1, 3, 1), np.ones((1, 2, 1), np.float32)
    assert knn_dweight(x, g, np.array([[0, 3], [2, -1]]))[0].ravel().tolist() == [4, 0]
    x = np.array([1, 10, 100], np.float32).reshape(1, 3, 1)
    dw, _ = knn_dweight(x, g[:, :1], np.array([[0, 1, 2]]), np.array([[0, 0, 1]]), num_slots=2)
    assert dw.ravel().tolist() == [11, 100]


@pytest.mark.parametrize("channels", [1, 20])
def test_padding_reads_nothing(channels):
    """NaN pixels that only a window cut by the rim could reach do not spoil the slots that miss them."""
    x = np.ones((1, 3, 3, channels), np.float32)
    x[0, 2, 2] = np.nan
    g = np.zeros((1, 3, 3, 2), np.float32)
    g[0, 0, 0] = 1  # reads pixels (0..1, 0..1) only
    dw, _ = dense_dweight(x[:, :2, :2], g[:, :2, :2], (3, 3), padding=(1, 1))
    want = np.zeros((3, 3))
    want[1:, 1:] = 1
    np.testing.assert_array_equal(dw, np.broadcast_to(want[:, :, None, None], dw.shape))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_ones(dtype):
    """64 * 64 ones: a plain bf16 sum would stop at 256."""
    x, g = np.ones((1, 64, 64, 4), DTYPES[dtype]), np.ones((1, 64, 64, 3), DTYPES[dtype])
    dw, db = dense_dweight(x, g, (1, 1))
    np.testing.assert_array_equal(dw.astype(np.float64), 4096)
    np.testing.assert_array_equal(db.astype(np.float64), 4096)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", ["dense", "knn"])
@pytest.mark.parametrize("channels", [2, 21])
def test_float32_x_is_rounded_as_it_is_read(dtype, operation, channels):
    rng = np.random.default_rng(1)
    x = random(rng, (2, 9, 7, channels), np.float32) * 300
    x[0, 0, 0, 0] = 3e38  # infinity in float16, finite in bfloat16
    g = random(rng, (2, 9, 7, 5), DTYPES[dtype])
    with np.errstate(over="ignore"):
        rounded = x.astype(DTYPES[dtype])
    if operation == "dense":
        results = [dense_dweight(a, g, (3, 3), padding=(1, 1), dtype=jnp.float32) for a in (x, rounded)]
    else:
        indices = random_table(rng, 63, 6, 63)
        flat = g.reshape(2, 63, 5)
        results = [knn_dweight(a.reshape(2, 63, channels), flat, indices, dtype=jnp.float32) for a in (x, rounded)]
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("bias", [False, True])
def test_results_of_other_types(dtype, bias):
    rng = np.random.default_rng(2)
    x, g = random(rng, (40, 5, 5, 6), jnp.bfloat16), random(rng, (40, 5, 5, 7), jnp.bfloat16)
    dw, db = dense_dweight(x, g, (3, 3), padding=(1, 1), dtype=DTYPES[dtype], bias=bias)
    want_dw, size_dw, want_db, size_db = dense_oracle(x, g, (3, 3), (1, 1), (1, 1), (1, 1))
    assert dw.dtype == DTYPES[dtype]
    assert_close(dw, want_dw, size_dw)
    assert db.shape == ((7,) if bias else (0,))
    if bias:
        assert_close(db, want_db, size_db)


@pytest.mark.parametrize("shape", [(0, 8, 8, 3), (2, 0, 8, 3), (2, 8, 8, 0)])
def test_dense_empty(shape):
    out = (shape[0], 6 if shape[1] else 0, 6, 4)
    dw, db = dense_dweight(np.ones(shape, np.float32), np.ones(out, np.float32), (3, 3))
    assert dw.shape == (3, 3, shape[3], 4)
    assert (dw == 0).all() or shape[3] == 0
    np.testing.assert_array_equal(db, np.prod(out[:3]))


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize(
    ("batch", "num_inputs", "rows", "taps", "columns"),
    [(0, 5, 6, 3, 4), (2, 0, 6, 3, 4), (2, 5, 0, 3, 4), (2, 5, 6, 0, 4), (2, 5, 6, 3, 0)],
)
@pytest.mark.parametrize("zero_empty_rows", [0, 1])
def test_knn_empty(has_slots, batch, num_inputs, rows, taps, columns, zero_empty_rows):
    x, g = np.ones((batch, num_inputs, 3), np.float32), np.ones((batch, rows, columns), np.float32)
    indices = np.zeros((rows, taps), np.int32)
    slots = np.zeros_like(indices) if has_slots else None
    dw, db = knn_dweight(x, g, indices, slots, num_slots=2 if has_slots else None, zero_empty_rows=zero_empty_rows)
    has_taps = num_inputs > 0 and taps > 0
    if not (has_taps and batch and rows):
        np.testing.assert_array_equal(dw, 0)
    np.testing.assert_array_equal(db, batch * rows if has_taps or not zero_empty_rows else 0)


@pytest.mark.parametrize("operation", ["dense", "knn"])
def test_bits_do_not_change(operation):
    rng = np.random.default_rng(7)
    x, g = random(rng, (8, 30, 20, 13), np.float32), random(rng, (8, 30, 20, 37), np.float32)
    indices = random_table(rng, 600, 9, 600)

    def run():
        if operation == "dense":
            return dense_dweight(x, g, (3, 3), padding=(1, 1), slices=8)
        return knn_dweight(x.reshape(8, 600, 13), g.reshape(8, 600, 37), indices, slices=8)

    first = run()
    for _ in range(5):
        for got, want in zip(run(), first, strict=True):
            np.testing.assert_array_equal(got, want)
