"""The fused cast: a float32 cotangent and its float32 operand to 16 bits in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_knnconv import _dispatch, _primitive
from jax_knnconv._partition import Labels, partitioned
from jax_knnconv._xla import cast as xla_cast


def clip_cast(value: Any, dtype: Any) -> Any:
    """Clip to the finite range of a floating dtype by comparisons (NaN passes), then round to it."""
    if jnp.finfo(value.dtype).max <= jnp.finfo(dtype).max:
        return value.astype(dtype)
    return xla_cast.clip(value.astype(jnp.float32), dtype).astype(dtype)


def _results(g: Any, x: Any, *, dtype: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(g.shape, dtype), jax.ShapeDtypeStruct(x.shape, dtype)]


_handler = _dispatch.handler_primitive(
    _dispatch.Handler(
        operation="cast_operands",
        results=_results,
        workspace=lambda *operands, **static: [],
        attributes=lambda *operands, **static: {},
        fallback=lambda g, x, *, dtype: xla_cast.cast_operands(g, x, dtype),
    )
)


def _call(*operands: Any, present: tuple[bool, bool], dtype: Any, implementation: str) -> Sequence[Any]:
    """The handler takes both operands; one that is not there is a placeholder, and so is its result."""
    remaining = iter(operands)
    g, x = (next(remaining) if there else _primitive.absent() for there in present)
    g_dims, x_dims = (tuple(f"{name}{i}" for i in range(v.ndim)) for name, v in (("g", g), ("x", x)))
    nothing: frozenset[str] = frozenset()
    labels = Labels((g_dims, x_dims), (g_dims, x_dims), frozenset(g_dims + x_dims), summed=(nothing, nothing))
    results = partitioned(
        lambda g, x, shards: _handler.bind(g, x, dtype=dtype, implementation=implementation), labels, (g, x)
    )
    return [result for result, there in zip(results, present, strict=True) if there]


_cast = _primitive.define("cast_operands")


def _bind(operands: Sequence[Any], **params: Any) -> list[Any]:
    return _primitive.bind(_cast, _call, operands, **params)


def _jvp(primals: Any, tangents: Any, *, present: tuple[bool, bool], dtype: Any, implementation: str, call: Any) -> Any:
    del call
    outs = _bind(primals, present=present, dtype=dtype, implementation=implementation)
    found = []
    for name, value, tangent, out in zip(_which(present), primals, tangents, outs, strict=True):
        if type(tangent) is ad.Zero:
            found.append(_primitive.zero_tangent(out))
            continue
        if name == "g":  # constant where it is clipped
            tangent = jnp.where(jnp.abs(value) <= float(jnp.finfo(dtype).max), tangent, 0)
        found.append(tangent.astype(dtype))
    return outs, found


def _batch(args: Any, dims: Any, *, call: Any, **params: Any) -> Any:
    del call
    return _bind(args, **params), dims


def _drop_unused(used: Sequence[bool], eqn: Any) -> Any:
    """Cast only what is used."""
    if not any(used):
        return [False] * len(used), None
    if all(used):
        return [True] * len(used), eqn
    (kept,) = (i for i, flag in enumerate(used) if flag)
    params = {**_primitive.without_call(eqn.params), "present": (kept == 0, kept == 1)}
    call = _primitive.trace_avals(_call, [eqn.invars[kept].aval], params)
    new = eqn.replace(params={**params, "call": call}, invars=[eqn.invars[kept]], outvars=[eqn.outvars[kept]])
    return list(used), new


ad.primitive_jvps[_cast] = _jvp
batching.primitive_batchers[_cast] = _batch
_primitive.drop_unused_by(_cast, _drop_unused)


def _which(present: tuple[bool, bool]) -> list[str]:
    return [name for name, there in zip("gx", present, strict=True) if there]


def fused_cast(g: Any, x: Any, dtype: Any, implementation: str = "auto") -> tuple[Any, Any]:
    """(g, x) in a 16-bit dtype: g clipped to its finite range, x not; an operand that has the dtype already is kept."""
    dtype = jnp.dtype(dtype)
    present = (g.dtype != dtype, x.dtype != dtype)
    operands = [v.astype(jnp.float32) for v, there in zip((g, x), present, strict=True) if there]
    if not operands:
        return g, x
    cast = iter(_bind(operands, present=present, dtype=dtype, implementation=implementation))
    g, x = (next(cast) if there else v for v, there in zip((g, x), present, strict=True))
    return g, x
