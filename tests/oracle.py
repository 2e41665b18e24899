"""Convolutions in NumPy float64, one tap at a time: what every implementation's results are compared with.

Nothing here comes from the package. Arrays have no group dimensions; one batch dimension stands in front where named B.
To get the bound of `assert_within_ulp`, call the same function on absolute values.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

EPS32 = 2.0**-23


def f64(*arrays):
    """The arrays in float64 (16-bit and jax ones too); a single one comes back bare."""
    out = tuple(np.asarray(a).astype(np.float64) for a in arrays)
    return out[0] if len(out) == 1 else out


# Dense -------------------------------------------------------------------------------------------------------------


def _dense_taps(in_hw, out_hw, kernel, stride, padding, dilation):
    """Yield (fh, fw, output rows and columns, input rows and columns); taps outside the image are left out."""
    for fh in range(kernel[0]):
        i = np.arange(out_hw[0])
        p = i * stride[0] + fh * dilation[0] - padding[0]
        i, p = i[(p >= 0) & (p < in_hw[0])], p[(p >= 0) & (p < in_hw[0])]
        for fw in range(kernel[1]):
            j = np.arange(out_hw[1])
            q = j * stride[1] + fw * dilation[1] - padding[1]
            j, q = j[(q >= 0) & (q < in_hw[1])], q[(q >= 0) & (q < in_hw[1])]
            yield fh, fw, i, j, p, q


def dense_forward(x, weight, bias=None, *, stride, padding, dilation, output_size):
    """y[b, i, j] = bias + sum: x[b, i*s + fh*d - pad, ...] @ weight[fh, fw]; x [B, H, W, C], `padding` the low pads."""
    x, weight = f64(x, weight)
    y = np.zeros((x.shape[0], *output_size, weight.shape[-1]))
    for fh, fw, i, j, p, q in _dense_taps(x.shape[1:3], output_size, weight.shape[:2], stride, padding, dilation):
        y[:, i[:, None], j] += x[:, p[:, None], q] @ weight[fh, fw]
    return y if bias is None else y + f64(bias)


def dense_dinput(g, weight, *, stride, padding, dilation, input_size):
    """dx [B, H, W, C] from g [B, H', W', O]."""
    g, weight = f64(g, weight)
    dx = np.zeros((g.shape[0], *input_size, weight.shape[2]))
    for fh, fw, i, j, p, q in _dense_taps(input_size, g.shape[1:3], weight.shape[:2], stride, padding, dilation):
        dx[:, p[:, None], q] += g[:, i[:, None], j] @ weight[fh, fw].T
    return dx


def dense_dweight(x, g, *, stride, padding, dilation, kernel_size):
    """(dw [F_H, F_W, C, O], db [O]) from x [B, H, W, C] and g [B, H', W', O]."""
    x, g = f64(x, g)
    dw = np.zeros((*kernel_size, x.shape[-1], g.shape[-1]))
    for fh, fw, i, j, p, q in _dense_taps(x.shape[1:3], g.shape[1:3], kernel_size, stride, padding, dilation):
        dw[fh, fw] = np.einsum("bijc,bijo->co", x[:, p[:, None], q], g[:, i[:, None], j])
    return dw, g.sum((0, 1, 2))


# KNN ---------------------------------------------------------------------------------------------------------------


def _knn_taps(indices, slots, num_inputs, num_slots):
    """Yield (row, source, slot) of every tap that is no hole, row by row."""
    indices = np.asarray(indices)
    slots = np.broadcast_to(np.arange(indices.shape[1]) if slots is None else np.asarray(slots), indices.shape)
    for m, k in np.ndindex(indices.shape):
        n, v = int(indices[m, k]), int(slots[m, k])
        if 0 <= n < num_inputs and 0 <= v < num_slots:
            yield m, n, v


def empty_rows(indices, slots, num_inputs, num_slots):
    """[M] booleans: which rows have no tap."""
    empty = np.ones(len(indices), bool)
    for m, _, _ in _knn_taps(indices, slots, num_inputs, num_slots):
        empty[m] = False
    return empty


def knn_forward(x, weight, indices, slots=None, bias=None, *, zero_empty_rows=False):
    """y[b, m] = bias + sum over k: x[b, indices[m, k]] @ weight[slots[m, k]]; x [B, N, C], weight [V, C, O]."""
    x, weight = f64(x, weight)
    y = np.zeros((x.shape[0], len(indices), weight.shape[-1]))
    for m, n, v in _knn_taps(indices, slots, x.shape[1], len(weight)):
        y[:, m] += x[:, n] @ weight[v]
    if bias is not None:
        y = y + f64(bias)
    if zero_empty_rows:
        y[:, empty_rows(indices, slots, x.shape[1], len(weight))] = 0
    return y


def knn_dinput(g, weight, indices, slots=None, *, num_inputs):
    """dx [B, N, C] from g [B, M, O]."""
    g, weight = f64(g, weight)
    dx = np.zeros((g.shape[0], num_inputs, weight.shape[1]))
    for m, n, v in _knn_taps(indices, slots, num_inputs, len(weight)):
        dx[:, n] += g[:, m] @ weight[v].T
    return dx


def knn_dweight(x, g, indices, slots=None, *, num_slots, zero_empty_rows=False):
    """(dw [V, C, O], db [O]) from x [B, N, C] and g [B, M, O]."""
    x, g = f64(x, g)
    dw = np.zeros((num_slots, x.shape[-1], g.shape[-1]))
    for m, n, v in _knn_taps(indices, slots, x.shape[1], num_slots):
        dw[v] += x[:, n].T @ g[:, m]
    kept = ~empty_rows(indices, slots, x.shape[1], num_slots) if zero_empty_rows else slice(None)
    return dw, g[:, kept].sum((0, 1))


def knn_pool(x, indices, kind, g=None):
    """y [B, M, C] of x [B, N, C], and dx of its cotangent g; "max" gives it to the first of equal neighbours."""
    x = f64(x)
    y, dx = np.zeros((x.shape[0], len(indices), x.shape[2])), np.zeros(x.shape)
    g = y if g is None else f64(g)
    for m, row in enumerate(np.asarray(indices)):
        live = [int(n) for n in row if 0 <= n < x.shape[1]]
        if not live:
            continue
        if kind == "max":
            y[:, m] = x[:, live].max(1)
            for b, c in np.ndindex(x.shape[0], x.shape[2]):
                dx[b, live[int(x[b, live, c].argmax())], c] += g[b, m, c]
            continue
        scale = 1 / len(live) if kind == "mean" else 1
        for n in live:
            y[:, m] += scale * x[:, n]
            dx[:, n] += scale * g[:, m]
    return y, dx


# The table's derived orders ----------------------------------------------------------------------------------------


class TableOrders(NamedTuple):
    """A table's derived operands as docs/handlers.md describes them, int32; entries past the last tap are -1."""

    source_offsets: np.ndarray
    source_rows: np.ndarray
    source_slots: np.ndarray
    slot_offsets: np.ndarray
    slot_rows: np.ndarray
    slot_sources: np.ndarray


def table_orders(indices, slots, num_inputs, num_slots) -> TableOrders:
    """Both orders of the taps of indices [M, K] and slots [M, K] or None (the column)."""
    size = np.asarray(indices).size
    taps = list(_knn_taps(indices, slots, num_inputs, num_slots))

    def order(key, group_count, group, *fields):
        ordered = sorted(taps, key=key)
        counts = np.bincount([t[group] for t in ordered], minlength=group_count) if ordered else np.zeros(group_count)
        low = np.concatenate([[0], np.cumsum(counts)])
        columns = [np.full(size, -1, np.int32) for _ in fields]
        for column, field in zip(columns, fields, strict=True):
            column[: len(ordered)] = [t[field] for t in ordered]
        return np.stack([low, np.zeros_like(low)], -1).astype(np.int32), *columns

    row, source, slot = 0, 1, 2
    by_source = order(lambda t: (t[source], t[slot], t[row]), num_inputs, source, row, slot)
    by_slot = order(lambda t: (t[slot], t[row]), num_slots, slot, row, source)
    return TableOrders(*by_source, *by_slot)


# Comparison --------------------------------------------------------------------------------------------------------


def ulp(value, dtype):
    """The distance of `dtype`'s numbers around each float64 value."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.frexp(np.maximum(np.abs(value), float(info.smallest_normal)))[1] - 1
    return np.ldexp(1.0, exponent - info.nmant)


def assert_within_ulp(actual, exact64, products_abs_sum, dtype, what="result"):
    """|actual - exact| <= 1 ulp of `dtype` at exact + eps32 * sum of |products| (case 5).

    The slack is fourfold for float32 results: there, rounding to the output hides nothing of a chain of float32
    additions, of which a long one with sums of one sign passes the single slack about once in 10,000 values.

    Args:
      actual: the result; its dtype must be `dtype`.
      exact64: the float64 answer. Where it is beyond the dtype's range, the infinity is right. Infinities and NaN in it
        must be met.
      products_abs_sum: the sums of absolute products, broadcastable to it.
      dtype: what the result was rounded to.
      what: a name for the message.
    """
    actual, dtype = np.asarray(actual), np.dtype(dtype)
    assert actual.dtype == dtype, f"{what}: dtype {actual.dtype}, expected {dtype}"
    exact = np.asarray(exact64, np.float64)
    assert actual.shape == exact.shape, f"{what}: shape {actual.shape}, expected {exact.shape}"
    value, finite = actual.astype(np.float64), np.isfinite(exact)
    np.testing.assert_array_equal(value[~finite], exact[~finite], err_msg=f"{what}: not finite in float64")
    top = float(ml_dtypes.finfo(dtype).max)
    beyond = top + ulp(top, dtype)  # what an infinity stands for: the first number out of range
    slack = (
        (4 if dtype == np.float32 else 1)
        * EPS32
        * np.broadcast_to(np.asarray(products_abs_sum, np.float64), exact.shape)[finite]
    )
    exact = exact[finite]
    error = np.abs(np.clip(value[finite], -beyond, beyond) - np.clip(exact, -beyond, beyond))
    bound = ulp(np.clip(exact, -top, top), dtype) + slack
    bad = ~(error <= bound)
    if bad.any():
        at = np.argmax(np.where(bad, np.nan_to_num(error / bound, nan=np.inf), 0))
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} values off; the worst is {value[finite][at]!r}, expected {exact[at]!r} "
            f"(error {error[at]:.3g}, bound {bound[at]:.3g})"
        )
