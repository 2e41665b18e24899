"""The bias gradient alone, where no dweight runs that could give it along.

    db[o] = sum over batch and output rows n of g[b, n, o]    (KNN with empty_rows="zero": rows with a tap only)

Sums are float32, in blocks, so that a count of 20,000,000 does not stop at 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_knnconv._primitive import Primitive, add_group, zero_tangent

_BLOCK = 4096  # rows summed before block sums are added


def _blocked_sum(rows: Any) -> Any:
    """[..., R, O] -> [..., O] in float32."""
    count = rows.shape[-2]
    blocks = -(-count // _BLOCK)
    if blocks > 1:
        pad = [(0, 0)] * (rows.ndim - 2) + [(0, blocks * _BLOCK - count), (0, 0)]
        rows = jnp.pad(rows, pad).reshape(*rows.shape[:-2], blocks, _BLOCK, rows.shape[-1])
        return _blocked_sum(jnp.sum(rows, -2, dtype=jnp.float32))
    return jnp.sum(rows, -2, dtype=jnp.float32)


def _evaluate(g: Any, *table: Any, spec: Any, groups: Sequence[Any]) -> Any:
    rank = len(groups)
    live = spec.live_rows(table)
    batch = g.ndim - rank - 1 - len(spec.output_dims)
    if live is not None:  # [groups..., M], not over the batch
        live = live.reshape(*live.shape[:rank], *(1,) * batch, *live.shape[rank:], 1)
        g = jnp.where(live, g, jnp.zeros((), g.dtype))
    db = _blocked_sum(g.reshape(*g.shape[:rank], math.prod(g.shape[rank:-1]), g.shape[-1]))
    shared = tuple(i for i in range(rank) if groups[i] == 1 and db.shape[i] != 1)
    db = jnp.sum(db, shared, keepdims=True) if shared else db
    return jnp.broadcast_to(db, (*groups, db.shape[-1]))


primitive = Primitive("bias_gradient")
primitive.multiple_results = True


def _evaluate_all(*operands: Any, **params: Any) -> list[Any]:
    return [_evaluate(*operands, **params)]


def bind_bias_gradient(g: Any, table: Sequence[Any], *, spec: Any, groups: Sequence[Any]) -> Any:
    """Db of a cotangent; groups are the group dimensions of the bias."""
    return primitive.bind(g, *table, spec=spec, groups=tuple(groups))[0]


primitive.def_impl(
    lambda *operands, **params: jax.jit(_evaluate_all, static_argnames=("spec", "groups"))(*operands, **params)
)
primitive.def_abstract_eval(lambda *avals, **params: [jax.typeof(v) for v in _shapes(avals, params)])
mlir.register_lowering(primitive, mlir.lower_fun(_evaluate_all, multiple_results=True))


def _shapes(avals: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    return list(jax.eval_shape(lambda *operands: _evaluate_all(*operands, **params), *avals))


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    table = primals[1:]
    outs = primitive.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return outs, [zero_tangent(outs[0])]
    return outs, primitive.bind(tangents[0], *table, **params)


def _transpose(cts: Any, g: Any, *table: Any, **params: Any) -> Any:
    if type(cts[0]) is ad.Zero:
        return [None] * (1 + len(table))
    aval = jax.ShapeDtypeStruct(g.aval.shape, g.aval.dtype)
    (ct,) = jax.linear_transpose(lambda value: _evaluate(value, *table, **params), aval)(cts[0])
    return [ct, *[None] * len(table)]


def _batch(args: Any, dims: Any, *, spec: Any, groups: Any) -> Any:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    g, *table = add_group(args, dims)
    return primitive.bind(g, *table, spec=spec, groups=(size, *groups)), [0]


ad.primitive_jvps[primitive] = _jvp
ad.primitive_transposes[primitive] = _transpose
batching.primitive_batchers[primitive] = _batch
