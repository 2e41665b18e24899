"""The custom_vjp that links forward, fused cast, dinput and dweight of an operation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_knnconv._bilinear import Family
from jax_knnconv._cast import clip_cast, fused_cast
from jax_knnconv._partition import as_sharded


class Static(NamedTuple):
    """What a call fixes besides its operands."""

    family: Family
    spec: Any
    compute: Any
    out: Any
    group_rank: int


def evaluate(static: Static, x: Any, weight: Any, bias: Any, table: Sequence[Any]) -> Any:
    """Y = bias + F(x, weight) by the primitives alone: differentiable forward and backward, without the fused cast."""
    if x.dtype != static.compute and x.dtype != jnp.float32:
        x = x.astype(static.compute)
    return static.family.forward(
        x,
        weight.astype(static.compute),
        None if bias is None else bias.astype(jnp.float32),
        table,
        spec=static.spec,
        out_dtype=static.out,
        group_rank=static.group_rank,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve(static: Static, x: Any, weight: Any, bias: Any, table: Sequence[Any]) -> Any:
    """Y = bias + F(x, weight), with the backward that a training step wants."""
    return evaluate(static, x, weight, bias, table)


def _forward(static: Static, x: Any, weight: Any, bias: Any, table: Sequence[Any]) -> Any:
    return evaluate(static, x, weight, bias, table), (x, weight, bias, table)


def prepare_cotangent(g: Any, x: Any, compute: Any, implementation: str) -> tuple[Any, Any]:
    """(g, x) in the compute dtype: through the fused cast where that has 16 bits and g 32.

    A float32 x beside a 16-bit g stays as it is: dweight rounds it, as forward did.
    """
    if compute == jnp.float32:
        return g.astype(jnp.float32), x.astype(jnp.float32)
    if g.dtype == jnp.float32:
        return fused_cast(g, x, compute, implementation)
    return clip_cast(g, compute), x if x.dtype == jnp.float32 else x.astype(compute)


def _backward(static: Static, residuals: Any, g: Any) -> Any:
    x, weight, bias, table = residuals
    family, spec, rank = static.family, static.spec, static.group_rank
    g, x_cast = prepare_cotangent(g, x, static.compute, spec.implementation)
    dx = family.dinput(g, weight.astype(static.compute), table, spec=spec, out_dtype=x.dtype, group_rank=rank)
    dw, db = family.dweight(
        x_cast, g, table, spec=spec, out_dtype=weight.dtype, groups=weight.shape[:rank], with_bias=bias is not None
    )
    dx, dw = as_sharded(dx, x), as_sharded(dw, weight)
    return dx, dw, None if bias is None else as_sharded(db.astype(bias.dtype), bias), None


convolve.defvjp(_forward, _backward)
# Jitted, an eager call costs tens of microseconds instead of milliseconds; inside a traced program it changes nothing.
convolve_jit = jax.jit(convolve, static_argnums=0)
evaluate_jit = jax.jit(evaluate, static_argnums=0)
