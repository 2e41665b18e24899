"""Convolution over a table of neighbours."""

from __future__ import annotations

from typing import Any

import jax

from jax_knnconv import _checks, _dtypes
from jax_knnconv._differentiable import Static, convolve_jit, evaluate_jit, prepare_cotangent
from jax_knnconv._knn import knn, table_operands
from jax_knnconv._knn_backward import knn_backward_call
from jax_knnconv._specs import KnnSpec
from jax_knnconv._varying import vary_together
from jax_knnconv.config import KernelConfig
from jax_knnconv.table import NeighborTable

_X, _WEIGHT, _G = "[..., N, C_in]", "[V, C_in, C_out]", "[..., M, C_out]"


def _spec(table: Any, empty_rows: Any, implementation: Any, config: Any) -> KnnSpec:
    _checks.table(table)
    if not isinstance(empty_rows, str) or empty_rows not in ("bias", "zero"):
        raise ValueError(f"empty_rows: got {empty_rows!r}, expected 'bias' or 'zero'")
    return KnnSpec(
        input_dims=(table.num_inputs,),
        output_dims=(table.num_outputs,),
        slot_dims=(table.num_slots,),
        zero_empty_rows=empty_rows == "zero",
        implementation=_checks.implementation(implementation),
        config=_checks.config(config),
    )


def _check_weight(weight: Any, table: NeighborTable) -> None:
    _checks.exact_rank("weight", weight, 3, _WEIGHT)
    _checks.same("weight's slots (its first dimension)", weight.shape[0], "the table's num_slots", table.num_slots)


def _grouped(value: Any, table: NeighborTable) -> Any:
    """A shared operand with the table's group dimensions, each of size 1."""
    return None if value is None else value.reshape(*(1,) * len(table.group_shape), *value.shape)


def knn_conv(
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    table: NeighborTable,
    bias: jax.typing.ArrayLike | None = None,
    *,
    empty_rows: str = "bias",
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
    forward_mode: bool = False,
) -> jax.Array:
    """y[b, m, :] = bias + sum over k of x[b, indices[m, k], :] @ weight[slots[m, k]].

    A tap whose index lies outside [0, N) is a hole: it reads nothing, and what sits in x cannot reach the output or a
    gradient through it. Each row sums slots in ascending order and channels in ascending order. The gathered matrix
    [B, M, K, C_in] is never written to memory, and dx is gathered through the table's source order: no scatter.

    Sums are float32 and rounded once to the output's dtype. ``weight`` is rounded to the compute dtype: that of ``x``,
    unless ``compute_dtype`` names one. The output has ``x``'s dtype unless ``preferred_element_type`` says otherwise;
    with float32 ``x`` and 16-bit ``compute_dtype`` it is float32. Integers, bool and float64 are rounded to float32
    first. Gradients have the dtypes of ``x``, ``weight``, ``bias``, each rounded once from float32; a float32 cotangent
    of a 16-bit product is clipped to the finite range of the compute dtype (`cast_operands`). The table has none.

    Args:
        x: [..., N, C_in]; any number of batch dimensions. With one table a sample they begin with the table's.
        weight: [V, C_in, C_out], one matrix a slot.
        table: the taps of every output row.
        bias: [C_out], added in float32.
        empty_rows: what a row with holes only gives: "bias", or "zero": exact 0, and no share in the bias gradient.
        compute_dtype: float16, bfloat16 or float32; None: the dtype of ``x``.
        preferred_element_type: dtype of the output.
        precision: accepted as in ``jax.lax``; sums are at least as precise as any setting asks.
        implementation: "auto", "xla", "cpu", "wmma" or "hopper". One that cannot run gives one warning and "xla".
        config: which tensor-core kernel runs and its tile; gradients follow it too.
        forward_mode: evaluate without the ``custom_vjp``, so that ``jax.jvp``, ``jacfwd``, ``linearize`` and
            ``linear_transpose`` work. Reverse mode works too, but rounds dw of a float32 weight with 16-bit products
            through the compute dtype.

    Returns:
        [..., M, C_out].

    Raises:
        ValueError: shapes or options that do not fit, at trace time.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    spec = _spec(table, empty_rows, implementation, config)
    x, weight = _dtypes.as_operand("x", x), _dtypes.as_operand("weight", weight)
    bias = None if bias is None else _dtypes.as_operand("bias", bias)
    _checks.rows("x", x, _X, table.num_inputs, "the table's num_inputs", table.group_shape)
    _check_weight(weight, table)
    _checks.same(
        "x's channels (its last dimension)", x.shape[-1], "weight's C_in (its second dimension)", weight.shape[1]
    )
    _checks.bias(bias, weight.shape[-1])
    dtypes = _dtypes.resolve({"x": x, "weight": weight}, compute_dtype, preferred_element_type, precision)
    nodes, kernel, offset, *operands = vary_together(x, weight, bias, *table_operands(table))
    static = Static(knn, spec, dtypes.compute, dtypes.out, len(table.group_shape))
    call = evaluate_jit if forward_mode else convolve_jit
    return call(static, nodes, _grouped(kernel, table), _grouped(offset, table), tuple(operands))


def knn_dinput(
    g: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    table: NeighborTable,
    *,
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
) -> jax.Array:
    """dx[b, n, :] = sum over the taps (m, slot) that read n of g[b, m, :] @ weight[slot].T.

    The gradient of `knn_conv` in x: a convolution over the transposed table, with no scatter and no atomics.

    Args:
        g: [..., M, C_out], the cotangent of y.
        weight: [V, C_in, C_out].
        table: the taps of every output row.
        compute_dtype: as in `knn_conv`, of ``g`` here; a float32 ``g`` is clipped to its finite range.
        preferred_element_type: dtype of dx; None: that of ``g``.
        precision: as in `knn_conv`.
        implementation: as in `knn_conv`.
        config: as in `knn_conv`.

    Returns:
        dx, [..., N, C_in].

    Raises:
        ValueError: shapes or options that do not fit.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    spec = _spec(table, "bias", implementation, config)
    g, weight = _dtypes.as_operand("g", g), _dtypes.as_operand("weight", weight)
    _checks.rows("g", g, _G, table.num_outputs, "the table's num_outputs", table.group_shape)
    _check_weight(weight, table)
    _checks.same(
        "g's channels (its last dimension)", g.shape[-1], "weight's C_out (its last dimension)", weight.shape[2]
    )
    dtypes = _dtypes.resolve({"g": g, "weight": weight}, compute_dtype, preferred_element_type, precision)
    cotangent, kernel, *operands = vary_together(g, weight, *table_operands(table))
    return knn.dinput(
        cotangent,
        _grouped(kernel.astype(dtypes.compute), table),
        operands,
        spec=spec,
        out_dtype=dtypes.out,
        group_rank=len(table.group_shape),
    )


def _gradient_operands(x: Any, g: Any, table: NeighborTable) -> tuple[jax.Array, jax.Array]:
    x, g = _dtypes.as_operand("x", x), _dtypes.as_operand("g", g)
    _checks.rows("x", x, _X, table.num_inputs, "the table's num_inputs", table.group_shape)
    _checks.rows("g", g, _G, table.num_outputs, "the table's num_outputs", table.group_shape)
    _checks.same("g's batch dimensions", tuple(g.shape[:-2]), "x's", tuple(x.shape[:-2]))
    return x, g


def knn_dweight(
    x: jax.typing.ArrayLike,
    g: jax.typing.ArrayLike,
    table: NeighborTable,
    *,
    empty_rows: str = "bias",
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
) -> tuple[jax.Array, jax.Array]:
    """dw[v] = sum over b and the taps (m, n) of slot v of x[b, n, :].T @ g[b, m, :]; db = sum over b and m of g[b, m].

    The gradients of `knn_conv` in weight and bias, from one pass over x and g.

    Args:
        x: [..., N, C_in].
        g: [..., M, C_out], the cotangent of y, same batch dimensions.
        table: the taps of every output row.
        empty_rows: "zero" leaves rows with holes only out of db.
        compute_dtype: as in `knn_conv`; a float32 ``g`` is clipped to its finite range.
        preferred_element_type: dtype of dw and db; None: that of ``x``.
        precision: as in `knn_conv`.
        implementation: as in `knn_conv`.
        config: as in `knn_conv`.

    Returns:
        (dw [V, C_in, C_out], db [C_out]).

    Raises:
        ValueError: shapes or options that do not fit.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    spec = _spec(table, empty_rows, implementation, config)
    x, g = _gradient_operands(x, g, table)
    dtypes = _dtypes.resolve({"x": x, "g": g}, compute_dtype, preferred_element_type, precision)
    nodes, cotangent, *operands = vary_together(x, g, *table_operands(table))
    cotangent, nodes = prepare_cotangent(cotangent, nodes, dtypes.compute, implementation)
    ones = (1,) * len(table.group_shape)
    dw, db = knn.dweight(nodes, cotangent, operands, spec=spec, out_dtype=dtypes.out, groups=ones, with_bias=True)
    return dw.reshape(dw.shape[len(ones) :]), db.reshape(db.shape[len(ones) :]).astype(dtypes.out)


def knn_backward(
    g: jax.typing.ArrayLike,
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    table: NeighborTable,
    *,
    empty_rows: str = "bias",
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(dx, dw, db) of `knn_conv` from one call: `knn_dinput` and `knn_dweight` side by side over one preparation.

    Args:
        g: [..., M, C_out], the cotangent of y.
        x: [..., N, C_in], same batch dimensions.
        weight: [V, C_in, C_out].
        table: the taps of every output row.
        empty_rows: "zero" leaves rows with holes only out of db.
        compute_dtype: as in `knn_conv`; a float32 ``g`` is clipped to its finite range.
        preferred_element_type: dtype of all three results; None: that of ``x`` for dx and db, of ``weight`` for dw.
        precision: as in `knn_conv`.
        implementation: as in `knn_conv`.
        config: as in `knn_conv`.

    Returns:
        (dx [..., N, C_in], dw [V, C_in, C_out], db [C_out]).

    Raises:
        ValueError: shapes or options that do not fit.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    spec = _spec(table, empty_rows, implementation, config)
    x, g = _gradient_operands(x, g, table)
    weight = _dtypes.as_operand("weight", weight)
    _check_weight(weight, table)
    channels = (x.shape[-1], g.shape[-1])
    _checks.same("weight's (C_in, C_out)", tuple(weight.shape[1:]), "the channels of x and g", channels)
    dtypes = _dtypes.resolve({"x": x, "weight": weight, "g": g}, compute_dtype, preferred_element_type, precision)
    dw_dtype = weight.dtype if preferred_element_type is None else dtypes.out
    nodes, kernel, cotangent, *operands = vary_together(x, weight, g, *table_operands(table))
    cotangent, nodes = prepare_cotangent(cotangent, nodes, dtypes.compute, implementation)
    rank = len(table.group_shape)
    dx, dw, db = knn_backward_call(
        cotangent,
        nodes,
        _grouped(kernel.astype(dtypes.compute), table),
        operands,
        spec=spec,
        dx_dtype=dtypes.out,
        dw_dtype=dw_dtype,
        groups=(1,) * rank,
    )
    return dx, dw.reshape(dw.shape[rank:]), db.reshape(db.shape[rank:]).astype(dtypes.out)
