"""Direct calls of the weight gradient's handlers, and NumPy float64 answers to hold them to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from handler_calls import ABSENT_INDEX

from jax_knnconv._ffi import target_name

DTYPES = {"float32": jnp.float32, "float16": jnp.float16, "bfloat16": jnp.bfloat16}


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
    x,
    g,
    kernel,
    *,
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    bias=True,
    dtype=None,
    slices=4,
    groups=0,
    result_groups=None,
):
    """`groups` dimensions of the operands; those of the result are the broadcast sizes unless `result_groups` says."""
    sizes = result_groups or tuple(np.broadcast_shapes(x.shape[:groups], g.shape[:groups]))
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
    if indices.ndim > 2 and len(indices) == 0:
        tail = indices.shape[1:-2]
        entries = np.zeros((0, *tail, indices.shape[-2] * indices.shape[-1]), np.int32)
        return np.zeros((0, *tail, num_slots + 1, 2), np.int32), entries, entries
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
    x,
    g,
    indices,
    slots=None,
    *,
    num_slots=None,
    zero_empty_rows=0,
    bias=True,
    dtype=None,
    slices=4,
    groups=0,
    result_groups=None,
):
    num_slots = indices.shape[-1] if num_slots is None else num_slots
    tables = [x.shape[:groups], g.shape[:groups], indices.shape[:groups]]
    sizes = result_groups or tuple(np.broadcast_shapes(*tables))
    order = (ABSENT_INDEX,) * 4 if slots is None else (slots, *slot_order(indices, slots, x.shape[-2], num_slots))
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
