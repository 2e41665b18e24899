"""Direct calls of the CPU handlers, and NumPy float64 answers to hold them to."""

from __future__ import annotations

import os
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from jax_knnconv._ffi import load_backend, target_name

BF16 = ml_dtypes.bfloat16
DTYPES = (np.float32, np.float16, BF16)
CHANNELS = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 63, 65, 130])
UNIT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
# Of each random test; fewer where a test of another instruction set runs them again.
EXAMPLES = 15 if os.environ.get("JAX_KNNCONV_CPU_ISA") else 60
needs_memory = pytest.mark.skipif(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") < 10 * 2**30, reason="needs 10 GB of free memory"
)
ABSENT_BIAS = np.zeros([0], np.float32)
ABSENT_INDEX = np.zeros([0], np.int32)


def call(operation: str, results: list[tuple[tuple[int, ...], Any]], *operands: np.ndarray, **attributes: Any) -> list:
    """Run one target; results are (shape, dtype) pairs."""
    assert load_backend("cpu").reason is None
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    run = jax.jit(lambda *ops: jax.ffi.ffi_call(target_name(operation), types)(*ops, **attributes))
    return [np.asarray(r) for r in run(*operands)]


def packed_size(weight_shape: tuple[int, ...], fixed: int, reduced: int) -> int:
    """Floats of the packed workspace; `reduced` is the reduced channel axis, -2 or -1."""
    kept = weight_shape[-1 if reduced == -2 else -2]
    groups, slots = weight_shape[: len(weight_shape) - fixed], weight_shape[len(weight_shape) - fixed : -2]
    return int(np.prod(groups) * np.prod(slots) * weight_shape[reduced] * (-(-kept // 64) * 64))


def group_shape(rank: int, *operands: np.ndarray) -> tuple[int, ...]:
    return np.broadcast_shapes(*(operand.shape[:rank] for operand in operands))


def knn_forward(x, weight, indices, slots=None, bias=None, *, zero_empty_rows=0, dtype=None) -> np.ndarray:
    rank = weight.ndim - 3
    operands = [x, weight, indices] + [o for o in (slots, bias) if o is not None]
    shape = (*group_shape(rank, *operands), *x.shape[rank:-2], indices.shape[-2], weight.shape[-1])
    y, _ = call(
        "knn_forward",
        [(shape, dtype or x.dtype), ((packed_size(weight.shape, 3, -2),), np.float32)],
        x,
        weight,
        ABSENT_BIAS if bias is None else bias,
        indices,
        ABSENT_INDEX if slots is None else slots,
        zero_empty_rows=np.int64(zero_empty_rows),
    )
    return y


def source_order(indices: np.ndarray, slots: np.ndarray | None, num_inputs: int, num_slots: int):
    """The taps of one table that are no holes, sorted by (source, slot, row), behind 64-bit offsets of the sources."""
    rows = np.broadcast_to(np.arange(indices.shape[0])[:, None], indices.shape)
    slots = np.broadcast_to(np.arange(indices.shape[1]), indices.shape) if slots is None else slots
    taken = (indices >= 0) & (indices < num_inputs) & (slots >= 0) & (slots < num_slots)
    source, slot, row = indices[taken], slots[taken], rows[taken]
    order = np.lexsort((row, slot, source))
    offsets = np.searchsorted(source[order], np.arange(num_inputs + 1)).astype(np.int64)
    words = np.stack([offsets & 0xFFFFFFFF, offsets >> 32], -1).astype(np.uint32).view(np.int32)
    # Entries past the last tap are undefined: junk there must not matter.
    tail = np.full(indices.size - order.size, 2**31 - 1, np.int32)
    return words, *(np.concatenate([v[order].astype(np.int32), tail]) for v in (row, slot))


def grouped_source_order(indices, slots, num_inputs, num_slots):
    groups = indices.shape[:-2]
    if slots is not None:
        groups = np.broadcast_shapes(groups, slots.shape[:-2])
        slots = np.broadcast_to(slots, groups + slots.shape[-2:])
    indices = np.broadcast_to(indices, groups + indices.shape[-2:])
    orders = [
        source_order(indices[i], None if slots is None else slots[i], num_inputs, num_slots) for i in np.ndindex(groups)
    ]
    return [np.stack(part).reshape(groups + part[0].shape) for part in zip(*orders, strict=True)]


def knn_dinput(g, weight, indices, slots=None, *, num_inputs, dtype=None) -> np.ndarray:
    rank = weight.ndim - 3
    order = grouped_source_order(indices, slots, num_inputs, weight.shape[-3])
    shape = (*group_shape(rank, g, weight, order[0]), *g.shape[rank:-2], num_inputs, weight.shape[-2])
    dx, _ = call(
        "knn_dinput",
        [(shape, dtype or g.dtype), ((packed_size(weight.shape, 3, -1),), np.float32)],
        g,
        weight,
        *order,
    )
    return dx


def dense_forward(x, weight, out_size, bias=None, *, stride, padding, dilation, dtype=None) -> np.ndarray:
    rank = weight.ndim - 4
    operands = [x, weight] + ([] if bias is None else [bias])
    shape = (*group_shape(rank, *operands), *x.shape[rank:-3], *out_size, weight.shape[-1])
    y, _ = call(
        "dense_forward",
        [(shape, dtype or x.dtype), ((packed_size(weight.shape, 4, -2),), np.float32)],
        x,
        weight,
        ABSENT_BIAS if bias is None else bias,
        stride=np.array(stride, np.int64),
        padding=np.array(padding, np.int64),
        dilation=np.array(dilation, np.int64),
    )
    return y


def dense_dinput(g, weight, in_size, *, stride, padding, dilation, dtype=None) -> np.ndarray:
    rank = weight.ndim - 4
    shape = (*group_shape(rank, g, weight), *g.shape[rank:-3], *in_size, weight.shape[-2])
    dx, _ = call(
        "dense_dinput",
        [(shape, dtype or g.dtype), ((packed_size(weight.shape, 4, -1),), np.float32)],
        g,
        weight,
        stride=np.array(stride, np.int64),
        padding=np.array(padding, np.int64),
        dilation=np.array(dilation, np.int64),
    )
    return dx


# ---- float64 answers; each returns (value, sum of |products|) for operands without groups ----


def knn_forward_answer(x, weight, indices, slots=None, bias=None, zero_empty_rows=False):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    slots = np.broadcast_to(np.arange(indices.shape[1]), indices.shape) if slots is None else slots
    shape = (*x.shape[:-2], indices.shape[0], weight.shape[-1])
    value, size, used = np.zeros(shape), np.zeros(shape), np.zeros(indices.shape[0], bool)
    for m, k in np.ndindex(indices.shape):
        n, v = int(indices[m, k]), int(slots[m, k])
        if 0 <= n < x.shape[-2] and 0 <= v < weight.shape[0]:
            value[..., m, :] += x[..., n, :] @ weight[v]
            size[..., m, :] += np.abs(x[..., n, :]) @ np.abs(weight[v])
            used[m] = True
    if bias is not None:
        shown = np.where(used | (not zero_empty_rows), 1.0, 0.0)[:, None] * bias.astype(np.float64)
        value, size = value + shown, size + np.abs(shown)
    return value, size


def knn_dinput_answer(g, weight, indices, slots=None, *, num_inputs):
    g, weight = g.astype(np.float64), weight.astype(np.float64)
    slots = np.broadcast_to(np.arange(indices.shape[1]), indices.shape) if slots is None else slots
    shape = (*g.shape[:-2], num_inputs, weight.shape[-2])
    value, size = np.zeros(shape), np.zeros(shape)
    for m, k in np.ndindex(indices.shape):
        n, v = int(indices[m, k]), int(slots[m, k])
        if 0 <= n < num_inputs and 0 <= v < weight.shape[0]:
            value[..., n, :] += g[..., m, :] @ weight[v].T
            size[..., n, :] += np.abs(g[..., m, :]) @ np.abs(weight[v].T)
    return value, size


def window_table(in_size, out_size, kernel, *, stride, padding, dilation):
    """A dense window as a table: the source pixel of each tap, -1 outside."""
    indices = np.full((out_size[0], out_size[1], kernel[0] * kernel[1]), -1, np.int32)
    for i, j, fh, fw in np.ndindex(*out_size, *kernel):
        h = i * stride[0] + fh * dilation[0] - padding[0]
        w = j * stride[1] + fw * dilation[1] - padding[1]
        if 0 <= h < in_size[0] and 0 <= w < in_size[1]:
            indices[i, j, fh * kernel[1] + fw] = h * in_size[1] + w
    return indices.reshape(-1, kernel[0] * kernel[1])


def flat_pixels(image):
    return image.reshape(*image.shape[:-3], image.shape[-3] * image.shape[-2], image.shape[-1])


def flat_slots(weight):
    return weight.reshape(-1, *weight.shape[-2:])


def assert_close(got, answer, size):
    """Within one ulp of the output's dtype, plus the slack of an fp32 sum.

    A chain of n multiply-adds may err by n/2 eps * size; roundings cancel, so that 4 eps * size is not reached.
    """
    assert got.shape == answer.shape
    info = ml_dtypes.finfo(got.dtype)
    ulp = np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(answer), 1e-300))) * float(info.eps), float(info.tiny))
    error = np.abs(got.astype(np.float64) - answer)
    bound = ulp + 4 * np.finfo(np.float32).eps * size
    assert np.all(error <= bound), f"worst error {np.nanmax(error / bound)} of the bound"


def random(rng, shape, dtype):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def random_table(rng, rows, columns, num_inputs):
    """Indices with holes of every kind among them."""
    indices = rng.integers(0, max(num_inputs, 1), (rows, columns)).astype(np.int32)
    junk = np.array([-1, num_inputs, -(2**31), 2**31 - 1, -50_000_000], np.int32)
    holes = rng.random((rows, columns)) < 0.2
    return np.where(holes, junk[rng.integers(0, len(junk), (rows, columns))], indices)
