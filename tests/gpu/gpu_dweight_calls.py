"""Direct calls of the GPU's dweight, backward and cast targets."""

import gpu_calls as calls
import numpy as np
import oracle
from gpu_calls import F32, NO_SLOTS

from jax_knnconv import _calls

NO_ORDER = (NO_SLOTS, NO_SLOTS, NO_SLOTS)


def _results(shape, rank, out_dtype, bias, slices):
    """dw, db and partials; `slices` instead of what the shape rule gives."""
    size, columns, groups = int(np.prod(shape[rank:])), shape[-1], shape[:rank]
    partials = _calls.partial_sums(size, columns, groups, platform="cuda")
    if slices is not None:
        partials = calls.struct((slices, size + columns))
    return [calls.struct(shape, out_dtype), calls.struct((*groups, columns) if bias else (0,)), partials]


def dense_dweight(x, g, *, kernel_size, out_dtype, bias=True, tile=None, kernel=None, lead=(), slices=None, **window):
    """(dw, db); `lead` are the result's group dimensions."""
    results = _results((*lead, *kernel_size, x.shape[-1], g.shape[-1]), len(lead), out_dtype, bias, slices)
    attributes = calls.window_attributes(**window) | calls.choice(tile, kernel)
    return calls.call("dense_dweight", [x, g], results, **attributes)[:2]


def slot_order(indices, slots, num_inputs, num_slots):
    """(slot_offsets, slot_rows, slot_sources) of one table or of a stack of tables."""
    if indices.ndim > 2:
        parts = [slot_order(i, s, num_inputs, num_slots) for i, s in zip(indices, slots, strict=True)]
        return tuple(np.stack(part) for part in zip(*parts, strict=True))
    orders = oracle.table_orders(indices, slots, num_inputs, num_slots)
    return orders.slot_offsets, orders.slot_rows, orders.slot_sources


def knn_dweight(
    x,
    g,
    indices,
    slots=None,
    *,
    num_slots,
    out_dtype,
    zero_empty_rows=False,
    bias=True,
    tile=None,
    kernel=None,
    lead=(),
    slices=None,
):
    """(dw, db); `lead` are the result's group dimensions."""
    order = NO_ORDER if slots is None else slot_order(indices, slots, x.shape[-2], num_slots)
    operands = [x, g, indices, NO_SLOTS if slots is None else slots, *order]
    results = _results((*lead, num_slots, x.shape[-1], g.shape[-1]), len(lead), out_dtype, bias, slices)
    attributes = {"zero_empty_rows": np.int64(zero_empty_rows)}
    attributes |= calls.choice(tile, kernel)
    return calls.call("knn_dweight", operands, results, **attributes)[:2]


def knn_backward(g, x, weight, indices, slots=None, *, dx_dtype, dw_dtype, zero_empty_rows=False):
    """(dx, dw, db) of operands without groups."""
    sources = calls.source_order(indices, slots, x.shape[-2], len(weight))
    order = NO_ORDER if slots is None else slot_order(indices, slots, x.shape[-2], len(weight))
    operands = [g, x, weight, indices, NO_SLOTS if slots is None else slots, *sources, *order]
    dw, db, partials = _results(weight.shape, 0, dw_dtype, True, None)
    packed = _calls.dinput_workspace(g, weight, *sources, rank=0, platform="cuda", fixed=2)
    results = [calls.struct(x.shape, dx_dtype), dw, db, packed, partials]
    return calls.call("knn_backward", operands, results, zero_empty_rows=np.int64(zero_empty_rows))[:3]


def cast_operands(g, x, dtype):
    return calls.call("cast_operands", [g, x], [calls.struct(g.shape, dtype), calls.struct(x.shape, dtype)])


def check(found, exact, bound, out_dtype):
    """Both gradients within an ulp and the slack of their fp32 sums; db is float32."""
    oracle.assert_within_ulp(found[0], exact[0], 2 * bound[0], out_dtype, "dw")
    oracle.assert_within_ulp(found[1], exact[1], 2 * bound[1], F32, "db")
