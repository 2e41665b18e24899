"""Group dimensions: how an operation on single matrices is spread over the leading dimensions that vmap adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Of all groups' results, while their sum is taken: 32 MiB.
HELD_ELEMENTS = 1 << 23


def over_groups(
    function: Callable[..., Any], rank: int, *operands: jax.Array | None, loop_if_symbolic: bool = False
) -> Any:
    """`function` on every group: `rank` leading dimensions of each operand, of size 1 (shared) or the group's size.

    A shared operand is never copied. Results (any pytree of arrays) get leading dimensions of the broadcast sizes. None
    operands are handed on. `loop_if_symbolic` takes the groups of a symbolic number one by one: XLA's convolution does
    not batch its weights over one.
    """
    if rank == 0:
        return function(*(None if operand is None else jnp.asarray(operand) for operand in operands))

    def inner(*rows: jax.Array | None) -> Any:
        return over_groups(function, rank - 1, *rows, loop_if_symbolic=loop_if_symbolic)

    batched = [operand is not None and operand.shape[0] != 1 for operand in operands]
    rows = [o if b or o is None else o[0] for o, b in zip(operands, batched, strict=True)]
    if not any(batched):
        return jax.tree.map(lambda result: result[None], inner(*rows))
    stacked = [row for row, b in zip(rows, batched, strict=True) if b and row is not None]
    if loop_if_symbolic and not all(isinstance(row.shape[0], int) for row in stacked):

        def inner_of_stacked(group: list[jax.Array]) -> Any:
            position = iter(group)
            return inner(*(next(position) if b else row for row, b in zip(rows, batched, strict=True)))

        return lax.map(inner_of_stacked, stacked)
    return jax.vmap(inner, in_axes=tuple(0 if b else None for b in batched))(*rows)


def sum_over_groups(function: Callable[..., Any], groups: Sequence[Any], *operands: Any) -> Any:
    """`function` on the operands' groups, its results added over those dimensions that have size 1 in `groups`.

    `function` maps operands with group dimensions to float32 arrays (any pytree) with the broadcast ones. Where all
    groups' results together are large, they are computed and added one after the other.
    """
    sizes = jnp.broadcast_shapes(*(o.shape[: len(groups)] for o in operands if present(o) is not None))
    summed = tuple(i for i, (size, wanted) in enumerate(zip(sizes, groups, strict=True)) if wanted == 1 and size != 1)
    if not summed:
        return function(*operands)
    results = jax.eval_shape(function, *operands)
    held = sum(math.prod(result.shape) for result in jax.tree.leaves(results))
    if isinstance(held, int) and held <= HELD_ELEMENTS:
        add = lambda result: result if present(result) is None else jnp.sum(result, summed, keepdims=True)  # noqa: E731
        return jax.tree.map(add, function(*operands))

    def one(i: Any) -> Any:
        return sum_over_groups(function, groups, *(_slice(operand, i, summed[0]) for operand in operands))

    start = jax.tree.map(lambda result: jnp.zeros(result.shape, result.dtype), jax.eval_shape(one, 0))
    return lax.fori_loop(0, sizes[summed[0]], lambda i, total: jax.tree.map(jnp.add, total, one(i)), start)


def _slice(operand: Any, i: Any, axis: int) -> Any:
    """Group i of one group dimension, where the operand has groups there."""
    if present(operand) is None or operand.shape[axis] == 1:
        return operand
    return lax.dynamic_slice_in_dim(operand, i, 1, axis)


def present(operand: jax.Array | None) -> jax.Array | None:
    """None for an absent optional operand, which handlers spell as an array of shape [0]."""
    return None if operand is None or operand.shape == (0,) else operand
