"""Pooling over a table of neighbours."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv import _checks, _dtypes, _pool
from jax_knnconv._knn import FORWARD_ORDER, SOURCE_ORDER, table_operands
from jax_knnconv._varying import vary_together
from jax_knnconv.table import NeighborTable

_KINDS = ("max", "mean", "sum")


def knn_pool(x: jax.typing.ArrayLike, table: NeighborTable, *, kind: str = "max") -> jax.Array:
    """y[b, m, c] = max (mean, sum) over k of x[b, indices[m, k], c].

    Holes take no part; a row with holes only gives 0. Slots do not matter but for ties: of equally great neighbours the
    first one takes the gradient, in the order in which the table has them, which is that of slots. A NaN is the
    greatest.

    Sums are float32 and rounded once to ``x``'s dtype, in the gradient too, which is gathered through the table's
    source order: no scatter, and the same shapes give the same bits. Nothing of the size of all neighbours,
    [B, M, K, C], is written. Pure JAX on every platform; every transformation applies.

    Args:
        x: [..., N, C]; any number of batch dimensions. With one table a sample they begin with the table's.
        table: the neighbours of every output row.
        kind: "max", "mean" (over the taps that are no holes) or "sum".

    Returns:
        [..., M, C].

    Raises:
        ValueError: shapes that do not fit, another kind.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    _checks.table(table)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind: got {kind!r}, expected one of {', '.join(map(repr, _KINDS))}")
    x = _dtypes.as_operand("x", x)
    _checks.rows("x", x, "[..., N, C]", table.num_inputs, "the table's num_inputs", table.group_shape)
    leaves = table_operands(table)
    values, *operands = vary_together(x, *(leaves[i] for i in FORWARD_ORDER + SOURCE_ORDER))
    return _pooled(values, tuple(operands), kind, table.num_inputs)


@functools.partial(jax.jit, static_argnames=("kind", "num_inputs"))
def _pooled(x: Any, table: tuple[Any, ...], kind: str, num_inputs: int) -> Any:
    indices = table[0]
    rank = indices.ndim - 2
    if kind == "max":
        return _pool.greatest(x, table, num_inputs=num_inputs, group_rank=rank)[0]
    if kind == "sum":
        return _pool.gather(x, None, table, num_inputs=num_inputs, out_dtype=x.dtype, group_rank=rank)
    total = _pool.gather(x, None, table, num_inputs=num_inputs, out_dtype=jnp.float32, group_rank=rank)
    counts = jnp.sum((indices >= 0) & (indices < num_inputs), axis=-1, dtype=jnp.float32)
    batch = tuple(range(rank, x.ndim - 2))
    counts = jnp.expand_dims(jnp.maximum(counts, 1)[..., None], batch)
    return (total / counts).astype(x.dtype)
