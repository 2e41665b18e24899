"""The CPU targets dense_dweight and knn_dweight, called directly and held to NumPy float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_knnconv._ffi import load_backend, target_name

pytestmark = pytest.mark.skipif(load_backend("cpu").module is None, reason="the CPU module is not built")

DTYPES = {"float32": jnp.float32, "float16": jnp.float16, "bfloat16": jnp.bfloat16}
ABSENT = np.zeros(0, np.int32)
JUNK = np.array([-(2**31), -50_000_000, -1, 2**31 - 1])


def call(operation, operands, result_shape, *, bias_shape, dtype, slices, **attributes):
    """(dw, db) of a target, as NumPy arrays."""
    rank = len(result_shape) - (4 if operation == "dense_dweight" else 3)
    size = int(np.prod(result_shape[rank:])) + result_shape[-1]
    results = [
        jax.ShapeDtypeStruct(result_shape, dtype),
        jax.ShapeDtypeStruct(bias_shape, dtype),
        jax.ShapeDtypeStruct((slices, size), jnp.float32),
    ]
    function = jax.ffi.ffi_call(target_name(operation), results)
    dw, db, _ = function(*operands, **attributes)
    return np.asarray(dw), np.asarray(db)


def dense_dweight(
    x, g, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), bias=True, dtype=None, slices=4, groups=0
):
    sizes = tuple(np.broadcast_shapes(x.shape[:groups], g.shape[:groups]))
    shape = (*sizes, *kernel, x.shape[-1], g.shape[-1])
    return call(
        "dense_dweight",
        (x, g),
        shape,
        bias_shape=(*sizes, g.shape[-1]) if bias else (0,),
        dtype=dtype or g.dtype,
        slices=slices,
        stride=np.array(stride),
        padding=np.array(padding),
        dilation=np.array(dilation),
    )


def slot_order(indices, slots, num_inputs, num_slots):
    """(slot_offsets, slot_rows, slot_sources) of one table or of each of a stack of tables."""
    if indices.ndim > 2:
        parts = [slot_order(i, s, num_inputs, num_slots) for i, s in zip(indices, slots, strict=True)]
        return tuple(np.stack(part) for part in zip(*parts, strict=True))
    rows = np.broadcast_to(np.arange(indices.shape[0])[:, None], indices.shape)
    real = (indices >= 0) & (indices < num_inputs) & (slots >= 0) & (slots < num_slots)
    order = np.lexsort((indices[real], rows[real], slots[real]))
    offsets = np.searchsorted(slots[real][order], np.arange(num_slots + 1)).astype(np.int64)
    filler = np.full(indices.size - real.sum(), 12345)  # undefined by contract
    entries = [np.concatenate([part[real][order], filler]).astype(np.int32) for part in (rows, indices)]
    return np.ascontiguousarray(offsets).view(np.int32).reshape(-1, 2), *entries


def knn_dweight(
    x, g, indices, slots=None, *, num_slots=None, zero_empty_rows=0, bias=True, dtype=None, slices=4, groups=0
):
    num_slots = indices.shape[-1] if num_slots is None else num_slots
    tables = [x.shape[:groups], g.shape[:groups], indices.shape[:groups]]
    sizes = tuple(np.broadcast_shapes(*tables))
    if slots is None:
        order = (ABSENT, ABSENT, ABSENT, ABSENT)
    else:
        order = (slots, *slot_order(indices, slots, x.shape[-2], num_slots))
    return call(
        "knn_dweight",
        (x, g, indices.astype(np.int32), *(part.astype(np.int32) for part in order)),
        (*sizes, num_slots, x.shape[-1], g.shape[-1]),
        bias_shape=(*sizes, g.shape[-1]) if bias else (0,),
        dtype=dtype or g.dtype,
        slices=slices,
        zero_empty_rows=np.int64(zero_empty_rows),
    )


def float64(array):
    return np.asarray(array).astype(np.float64)


def knn_oracle(x, g, indices, slots, num_slots, zero_empty_rows=0):
    """(dw, sum of |products|, db, sum of |g|) in float64; x [B, N, C], g [B, M, O]."""
    x, g, indices = float64(x), float64(g), indices.astype(np.int64)
    real = (indices >= 0) & (indices < x.shape[1]) & (slots >= 0) & (slots < num_slots)
    dw = np.zeros((num_slots, x.shape[2], g.shape[2]))
    size = np.zeros_like(dw)
    for slot in range(num_slots):
        rows, columns = np.nonzero(real & (slots == slot))
        taps, cotangents = x[:, indices[rows, columns]], g[:, rows]
        dw[slot] = np.einsum("btc,bto->co", taps, cotangents)
        size[slot] = np.einsum("btc,bto->co", np.abs(taps), np.abs(cotangents))
    counted = g[:, real.any(1)] if zero_empty_rows else g
    return dw, size, counted.sum((0, 1)), np.abs(counted).sum((0, 1))


def dense_table(height, width, out_height, out_width, kernel, stride, padding, dilation):
    """The window as indices [H'*W', F_H*F_W]; -1 is a hole."""
    i, j, fh, fw = np.ix_(range(out_height), range(out_width), range(kernel[0]), range(kernel[1]))
    h = i * stride[0] + fh * dilation[0] - padding[0]
    w = j * stride[1] + fw * dilation[1] - padding[1]
    inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
    return np.where(inside, h * width + w, -1).reshape(out_height * out_width, kernel[0] * kernel[1])


def dense_oracle(x, g, kernel, stride, padding, dilation):
    _, height, width, channels = x.shape
    _, out_height, out_width, columns = g.shape
    table = dense_table(height, width, out_height, out_width, kernel, stride, padding, dilation)
    slots = np.broadcast_to(np.arange(table.shape[1]), table.shape)
    flat_x = float64(x).reshape(len(x), height * width, channels)
    flat_g = float64(g).reshape(len(g), out_height * out_width, columns)
    dw, size, db, bias_size = knn_oracle(flat_x, flat_g, table, slots, table.shape[1])
    shape = (*kernel, channels, columns)
    return dw.reshape(shape), size.reshape(shape), db, bias_size


def assert_close(got, want, size):
    """Within 1 ulp of the output dtype and the slack of an fp32 summation.

    One rounding of a sum of n terms is up to eps32/2 of the largest partial sum, so eps32 * sum |products| is what n
    roundings add up to typically, not at most: twice that is asked for.
    """
    assert got.shape == want.shape
    info = jnp.finfo(got.dtype)
    ulp = np.maximum(np.abs(want) * float(info.eps), float(info.smallest_subnormal))
    bound = ulp + 2 * 2.0**-23 * size
    error = np.abs(float64(got) - want)
    assert (error <= bound).all(), f"worst error {(error / np.maximum(bound, 1e-300)).max():.2f} of the bound"


def normal(rng, shape, dtype):
    return np.asarray(jnp.asarray(rng.normal(size=shape), dtype))


def random_indices(rng, rows, columns, num_inputs):
    """Valid indices with a sixth of junk."""
    indices = rng.integers(0, max(num_inputs, 1), (rows, columns))
    junk = rng.choice(np.append(JUNK, [num_inputs, num_inputs + 1]), (rows, columns))
    return np.where(rng.random((rows, columns)) < 1 / 6, junk, indices)


channel_counts = st.one_of(st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 14, 16, 17, 33, 63, 65]), st.integers(1, 40))
dtypes = st.sampled_from(sorted(DTYPES))


@settings(max_examples=150, deadline=None)
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
    x = normal(rng, (batch, *size, channels), DTYPES[dtype])
    g = normal(rng, (batch, *outputs, columns), DTYPES[dtype])
    dw, db = dense_dweight(x, g, kernel, stride=stride, padding=low, dilation=dilation, slices=slices)
    want_dw, size_dw, want_db, size_db = dense_oracle(x, g, kernel, stride, low, dilation)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)


@settings(max_examples=150, deadline=None)
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
    x = normal(rng, (batch, num_inputs, channels), DTYPES[dtype])
    g = normal(rng, (batch, rows, columns), DTYPES[dtype])
    indices = random_indices(rng, rows, taps, num_inputs)
    slots = None
    if num_slots is not None:
        slots = rng.integers(-1, num_slots + 1, indices.shape)
    options = {"zero_empty_rows": zero_empty_rows, "slices": slices}
    dw, db = knn_dweight(x, g, indices, slots, num_slots=num_slots, **options)
    full_slots = np.broadcast_to(np.arange(taps), indices.shape) if slots is None else slots
    want_dw, size_dw, want_db, size_db = knn_oracle(x, g, indices, full_slots, dw.shape[0], zero_empty_rows)
    assert_close(dw, want_dw, size_dw)
    assert_close(db, want_db, size_db)
