"""Products and sums that are fp32 from the first term to the last.

A running fp32 sum of ones stops at 2**24. Long sums over rows are therefore taken in blocks, in loops that XLA cannot
merge back into one sum. No sum is scattered, so that a GPU gives the same bits every time.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Rows of one block: long enough for a matrix product to run at full speed, short enough to be summed in fp32.
BLOCK_ROWS = 16384
# Lengths of blocks are multiples of it, so that their sums of ones add up exactly to 2**24 * 64.
BLOCK_UNIT = 64


def round_up(number: int, unit: int) -> int:
    """The smallest multiple of `unit` that is no less than `number`."""
    return -(-number // unit) * unit


def precision_for(dtype: Any) -> lax.Precision:
    """True fp32 for fp32 operands; the products of 16-bit operands are exact in fp32 as they are.

    The default is spelled out, since None would take up the user's `jax_default_matmul_precision`.
    """
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def matmul(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """rows [..., D] @ matrix [D, P] -> [..., P] in fp32."""
    return lax.dot_general(
        rows,
        matrix,
        (((rows.ndim - 1,), (0,)), ((), ())),
        precision=precision_for(rows.dtype),
        preferred_element_type=jnp.float32,
    )


def round_to(x: jax.Array, dtype: Any) -> jax.Array:
    """x in `dtype`, really rounded: without the barrier XLA may drop a conversion that it sees widened again."""
    x = jnp.asarray(x)
    return x if x.dtype == dtype else lax.optimization_barrier(x.astype(dtype))


def flatten_batch(x: jax.Array, fixed: int) -> jax.Array:
    """[batch..., fixed dimensions] -> [B, fixed dimensions]."""
    batch = x.ndim - fixed
    return x.reshape(math.prod(x.shape[:batch]), *x.shape[batch:])


def row_blocks(rows: jax.Array) -> jax.Array:
    """rows [..., C] -> [blocks, block, C], at least one; zeros fill up the last where the number does not divide."""
    channels = rows.shape[-1]
    count = math.prod(rows.shape[:-1])
    rows = rows.reshape(count, channels)
    block = _block_length(count)
    blocks = -(-count // block) if not isinstance(count, int) else max(1, -(-count // block))
    if not isinstance(count, int) or blocks * block != count:
        rows = jnp.pad(rows, ((0, blocks * block - count), (0, 0)))
    return rows.reshape(blocks, block, channels)


def _block_length(count: Any) -> int:
    """BLOCK_ROWS, or less where that divides the number of rows, so that no padded copy is made."""
    if not isinstance(count, int):  # a symbolic number of rows
        return BLOCK_ROWS
    if count <= BLOCK_ROWS:
        return max(count, 1)
    divisors = (length for length in range(BLOCK_ROWS, BLOCK_ROWS // 4, -BLOCK_UNIT) if count % length == 0)
    return next(divisors, round_up(-(-count // -(-count // BLOCK_ROWS)), BLOCK_UNIT))


def outer_sum(x_blocks: jax.Array, g_blocks: jax.Array) -> jax.Array:
    """Sum over rows r: x[r, c] * g[r, o] -> [C, O] in fp32, from blocks of equally many rows."""

    def product(x: jax.Array, g: jax.Array) -> jax.Array:
        # A batch of one: where vmap maps g alone, XLA's CPU backend has no product of bfloat16 without it.
        return lax.dot_general(
            x[None],
            g[None],
            (((1,), (1,)), ((0,), (0,))),
            precision=precision_for(x.dtype),
            preferred_element_type=jnp.float32,
        )[0]

    return _sum_over_blocks(product, (x_blocks.shape[-1], g_blocks.shape[-1]), x_blocks, g_blocks)


def row_sum(blocks: jax.Array) -> jax.Array:
    """Sum over rows r: g[r, o] -> [O] in fp32, from blocks of rows."""
    return _sum_over_blocks(lambda g: jnp.sum(g.astype(jnp.float32), axis=0), blocks.shape[-1:], blocks)


def _sum_over_blocks(function: Any, shape: tuple[int, ...], *blocks: jax.Array) -> jax.Array:
    count = blocks[0].shape[0]
    if isinstance(count, int) and count == 1:
        return function(*(b[0] for b in blocks))

    def step(i: jax.Array, total: jax.Array) -> jax.Array:
        return total + function(*(lax.dynamic_index_in_dim(b, i, keepdims=False) for b in blocks))

    return lax.fori_loop(0, count, step, jnp.zeros(shape, jnp.float32))
