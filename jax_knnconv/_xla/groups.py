"""Group dimensions: how an operation on single matrices is spread over the leading dimensions that vmap adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


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


def present(operand: jax.Array | None) -> jax.Array | None:
    """None for an absent optional operand, which handlers spell as an array of shape [0]."""
    return None if operand is None or operand.shape == (0,) else operand
