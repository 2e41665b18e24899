"""The cast at the entrance of a 16-bit backward pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv import _checks, _dtypes
from jax_knnconv._cast import fused_cast
from jax_knnconv._varying import vary_together


def cast_operands(
    g: jax.typing.ArrayLike, x: jax.typing.ArrayLike, dtype: Any, *, implementation: str = "auto"
) -> tuple[jax.Array, jax.Array]:
    """g16 = round(min(max(g, -largest), largest)), x16 = round(x): a cotangent and an input to 16 bits in one launch.

    ``largest`` is the largest finite number of ``dtype``. Clipping is by comparisons: NaN stays NaN, and in float16
    ±inf and ±70000 become ±65504. Inputs are not clipped: 70000 becomes inf in float16. Rounding is to nearest, ties
    to even; float64 rounds to float32 first.

    Args:
        g: cotangent, float32, any shape.
        x: input, float32, any shape. An operand that has ``dtype`` already comes back as it is.
        dtype: float16 or bfloat16.
        implementation: as in `conv2d`.

    Returns:
        (g16, x16).

    Raises:
        TypeError: ``dtype`` has not 16 bits, or an operand has the other 16-bit type.
    """
    found = _dtypes.check_dtype("dtype", dtype)
    if found == jnp.float32:
        raise TypeError("dtype: got float32, expected float16 or bfloat16")
    g, x = _dtypes.as_operand("g", g), _dtypes.as_operand("x", x)
    for name, value in (("g", g), ("x", x)):
        if value.dtype not in (found, jnp.float32):
            raise TypeError(f"{name}: got {value.dtype}, expected float32 or {found}")
    cotangent, values = vary_together(g, x)
    return fused_cast(cotangent, values, found, _checks.implementation(implementation))
