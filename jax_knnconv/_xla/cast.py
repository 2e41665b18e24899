"""The fused cast in pure JAX: what an fp32 cotangent and its 16-bit operand go through before the gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv._xla.sums import round_to


def clip(value: jax.Array, dtype: Any) -> jax.Array:
    """A float32 value in the finite range of `dtype`, by comparisons: NaN passes."""
    largest = jnp.asarray(jnp.finfo(dtype).max, jnp.float32)
    return jnp.where(value > largest, largest, jnp.where(value < -largest, -largest, value))


def cast_operands(g: jax.Array, x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """g16 = round(clip(g)), x16 = round(x), each to the nearest value of `dtype`, ties to even.

    Args:
      g: the cotangent, float32 (float64 is rounded to float32 first), any shape. It is clipped to the finite range of
        `dtype` by comparisons, so that NaN passes and infinities become the largest finite values.
      x: the operand, likewise. It is not clipped: what is too large becomes infinite.
      dtype: float16 or bfloat16.

    Returns:
      (g16, x16) of the shapes given.
    """
    g, x = round_to(g, jnp.float32), round_to(x, jnp.float32)
    return round_to(clip(g, dtype), dtype), round_to(x, dtype)
