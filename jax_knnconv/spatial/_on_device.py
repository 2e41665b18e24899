"""What one device does: extend its rows by the halo, convolve, and send cotangents back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_knnconv._differentiable import prepare_cotangent
from jax_knnconv._knn import knn, table_operands
from jax_knnconv._specs import KnnSpec
from jax_knnconv._varying import vary_together
from jax_knnconv.spatial._halo import extend, fold
from jax_knnconv.spatial.exchange import Exchange
from jax_knnconv.spatial.table import ShardedTable


class Static(NamedTuple):
    """What a call fixes besides its operands."""

    spec: KnnSpec
    exchange: Exchange
    axis_name: Any
    x_dtype: Any
    compute: Any
    out: Any
    forward_mode: bool


def convolve_on_device(static: Static, x: Any, weight: Any, bias: Any, table: ShardedTable) -> Any:
    """One device's rows of y from its rows of x."""
    local = jax.tree.map(lambda leaf: leaf[0], table)
    # Parameters are shared by all devices: in float32, so that their gradients are added over devices and only then
    # rounded.
    operands = (x, weight.astype(jnp.float32), None if bias is None else bias.astype(jnp.float32))
    lists = (local.send_rows, local.return_rows, local.return_places)
    x, weight, bias, *rest = vary_together(*operands, *lists, *table_operands(local.table))
    call = _evaluate if static.forward_mode else _convolve
    return _clear_padding(static, call(static, x, weight, bias, rest[:3], rest[3:]), local.row_counts)


def _clear_padding(static: Static, y: Any, num_rows: Any) -> Any:
    """Y with 0 in the rows that are padding, which only the last ones can be."""
    length = static.exchange.padded_rows
    if not length:
        return y
    first = static.exchange.output_size - length
    is_row = jnp.arange(first, static.exchange.output_size)[:, None] < num_rows
    return y.at[..., first:, :].set(jnp.where(is_row, y[..., first:, :], 0))


def _forward_extended(static: Static, extended: Any, weight: Any, bias: Any, table: Sequence[Any]) -> Any:
    return knn.forward(
        extended, weight.astype(static.compute), bias, table, spec=static.spec, out_dtype=static.out, group_rank=0
    )


def _evaluate(static: Static, x: Any, weight: Any, bias: Any, lists: Sequence[Any], table: Sequence[Any]) -> Any:
    """By the primitives alone. Float32 rows are exchanged, so that their cotangents come back in float32."""
    extended = extend(x.astype(jnp.float32), lists, exchange=static.exchange, axis_name=static.axis_name)
    return _forward_extended(static, extended, weight, bias, table)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(static: Static, x: Any, weight: Any, bias: Any, lists: Sequence[Any], table: Sequence[Any]) -> Any:
    return _forward(static, x, weight, bias, lists, table)[0]


def _forward(
    static: Static, x: Any, weight: Any, bias: Any, lists: Sequence[Any], table: Sequence[Any]
) -> tuple[Any, Any]:
    extended = extend(x.astype(static.compute), lists, exchange=static.exchange, axis_name=static.axis_name)
    y = _forward_extended(static, extended, weight, bias, table)
    return y, (extended, weight, bias, lists, table)


def _backward(static: Static, residuals: Any, g: Any) -> Any:
    extended, weight, bias, lists, table = residuals
    spec = static.spec
    g, extended = prepare_cotangent(g, extended, static.compute, spec.implementation)
    kernel = weight.astype(static.compute)
    dx = knn.dinput(g, kernel, table, spec=spec, out_dtype=jnp.float32, group_rank=0)
    dx = fold(dx, lists, exchange=static.exchange, axis_name=static.axis_name, out_dtype=static.x_dtype)
    dw, db = knn.dweight(extended, g, table, spec=spec, out_dtype=jnp.float32, groups=(), with_bias=bias is not None)
    return dx, dw, None if bias is None else db, None, None


_convolve.defvjp(_forward, _backward)
