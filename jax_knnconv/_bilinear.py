"""Three bilinear primitives an operation, closed under differentiation.

    forward  F(x, w) = y        dinput  D(g, w) = dx        dweight  W(x, g) = (dw, db)

Each is linear in either operand, and the transpose of one is another: of F: D and W; of D: F and W; of W: D and F.
Derivatives of any order, forward or reverse, are therefore calls of the same three. F also adds a bias (float32, one
rounding with the sum), W also sums g into the bias gradient.

Operands are laid out as docs/handlers.md says: [groups..., batch..., fixed]. `vmap` adds a group dimension at the front
of every operand (size 1 where an operand is not mapped), so that any mapped subset is one call; where only x (or g) is
mapped it joins the batch instead. Every call is traced once, when the primitive is bound, with its partitioning inside
(`_partition.py`), and travels as the parameter `call`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_knnconv._bias_gradient import bias_gradient_equation, bind_bias_gradient
from jax_knnconv._cast import clip_cast
from jax_knnconv._partition import as_sharded
from jax_knnconv._primitive import (
    absent,
    add_group,
    bind,
    define,
    drop_unused_by,
    is_absent,
    sum_groups,
    without_call,
    zero_tangent,
)


class Calls(NamedTuple):
    """The three handler calls of an operation, as traceable functions of operands and keyword parameters."""

    forward: Any  # (x, w, bias, *table, spec, out_dtype, group_rank) -> [y]
    dinput: Any  # (g, w, *table, spec, out_dtype, group_rank) -> [dx]
    dweight: Any  # (x, g, *table, spec, out_dtype, groups, with_bias) -> [dw, db]


def _zero(value: Any) -> bool:
    return type(value) is ad.Zero


def _to(value: Any, dtype: Any) -> Any:
    """A cotangent or tangent in the compute dtype: clipped on the way, as in the fused cast."""
    return value if value.dtype == dtype else clip_cast(value, dtype)


class Family:
    """The three primitives of one operation, and the functions that bind them."""

    def __init__(self, name: str, calls: Calls):
        self._calls = calls
        self._forward, self._dinput, self._dweight = (define(f"{name}_{p}") for p in ("forward", "dinput", "dweight"))
        for primitive, jvp, transpose, batch in (
            (self._forward, self._forward_jvp, self._forward_transpose, self._forward_batch),
            (self._dinput, self._dinput_jvp, self._dinput_transpose, self._dinput_batch),
            (self._dweight, self._dweight_jvp, self._dweight_transpose, self._dweight_batch),
        ):
            ad.primitive_jvps[primitive] = jvp
            ad.primitive_transposes[primitive] = transpose
            batching.primitive_batchers[primitive] = batch
        drop_unused_by(self._dweight, self._dweight_dce)

    # ---- binding -------------------------------------------------------------------------------------------------

    def forward(
        self, x: Any, w: Any, bias: Any, table: Sequence[Any], *, spec: Any, out_dtype: Any, group_rank: int = 0
    ) -> Any:
        """Y = bias + F(x, w). x is of w's dtype, or float32 and then rounded to it as it is read."""
        if x.dtype not in (w.dtype, jnp.float32):
            x = _to(x, w.dtype)
        bias = absent() if bias is None else bias
        return bind(
            self._forward,
            self._calls.forward,
            (x, w, bias, *table),
            spec=spec,
            out_dtype=jnp.dtype(out_dtype),
            group_rank=group_rank,
        )[0]

    def dinput(self, g: Any, w: Any, table: Sequence[Any], *, spec: Any, out_dtype: Any, group_rank: int = 0) -> Any:
        """Dx = D(g, w)."""
        return bind(
            self._dinput,
            self._calls.dinput,
            (_to(g, w.dtype), w, *table),
            spec=spec,
            out_dtype=jnp.dtype(out_dtype),
            group_rank=group_rank,
        )[0]

    def dweight(
        self,
        x: Any,
        g: Any,
        table: Sequence[Any],
        *,
        spec: Any,
        out_dtype: Any,
        groups: Sequence[Any] = (),
        with_bias: bool = False,
    ) -> tuple[Any, Any]:
        """(dw, db) = W(x, g); groups are the result's group dimensions; db is float32, or absent without with_bias."""
        if x.dtype not in (g.dtype, jnp.float32):
            x, g = (x, _to(g, x.dtype)) if g.dtype == jnp.float32 else (_to(x, g.dtype), g)
        params = {"spec": spec, "out_dtype": jnp.dtype(out_dtype), "groups": tuple(groups), "with_bias": with_bias}
        dw, db = bind(self._dweight, self._calls.dweight, (x, g, *table), **params)
        return dw, db

    # ---- forward -------------------------------------------------------------------------------------------------

    def _forward_jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        x, w, bias, *table = primals
        dx, dw, dbias, *_ = tangents
        bind: Any = functools.partial(self.forward, table=table, **without_call(params))
        out = bind(x, w, bias)
        terms = []
        if not _zero(dx):
            terms.append(bind(dx, w, None))
        if not _zero(dw):
            terms.append(bind(x, dw, None))
        if not _zero(dbias) and not is_absent(bias):
            # A convolution of no channels: what is left is the bias, in the rows that get it.
            terms.append(bind(x[..., :0], w[..., :0, :], dbias))
        return [out], [functools.reduce(jnp.add, terms) if terms else zero_tangent(out)]

    def _forward_transpose(
        self, cts: Any, x: Any, w: Any, bias: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int, call: Any
    ) -> Any:
        del out_dtype, call
        (ct,) = cts
        nothing = [None] * len(table)
        if _zero(ct):
            return [None, None, None, *nothing]
        if ad.is_undefined_primal(x):
            dtype, groups = x.aval.dtype, x.aval.shape[:group_rank]
            dx = self.dinput(ct, w, table, spec=spec, out_dtype=_wide(groups, dtype), group_rank=group_rank)
            return [_like(sum_groups(dx, groups, dtype), x), None, None, *nothing]
        if ad.is_undefined_primal(w):
            g = _to(ct, w.aval.dtype)
            dw, _ = self.dweight(x, g, table, spec=spec, out_dtype=w.aval.dtype, groups=w.aval.shape[:group_rank])
            return [None, _like(dw, w), None, *nothing]
        db = bind_bias_gradient(ct, table, spec=spec, groups=bias.aval.shape[:group_rank])
        return [None, None, _like(db.astype(bias.aval.dtype), bias), *nothing]

    def _forward_batch(self, args: Any, dims: Any, **params: Any) -> Any:
        params = without_call(params)
        x, w, bias, *table = args
        if params["group_rank"] == 0 and all(d is None for d in dims[1:]):
            return [self.forward(jnp.moveaxis(x, dims[0], 0), w, bias, table, **params)], [0]
        x, w, bias, *table = add_group(args, dims)
        params["group_rank"] += 1
        return [self.forward(x, w, bias, table, **params)], [0]

    # ---- dinput --------------------------------------------------------------------------------------------------

    def _dinput_jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        g, w, *table = primals
        dg, dw, *_ = tangents
        bind: Any = functools.partial(self.dinput, table=table, **without_call(params))
        out = bind(g, w)
        terms = ([] if _zero(dg) else [bind(dg, w)]) + ([] if _zero(dw) else [bind(g, dw)])
        return [out], [functools.reduce(jnp.add, terms) if terms else zero_tangent(out)]

    def _dinput_transpose(
        self, cts: Any, g: Any, w: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int, call: Any
    ) -> Any:
        del out_dtype, call
        (ct,) = cts
        nothing = [None] * len(table)
        if _zero(ct):
            return [None, None, *nothing]
        if ad.is_undefined_primal(g):
            dtype, groups = g.aval.dtype, g.aval.shape[:group_rank]
            dg = self.forward(
                _to(ct, w.dtype), w, None, table, spec=spec, out_dtype=_wide(groups, dtype), group_rank=group_rank
            )
            return [_like(sum_groups(dg, groups, dtype), g), None, *nothing]
        dw, _ = self.dweight(
            _to(ct, g.dtype), g, table, spec=spec, out_dtype=w.aval.dtype, groups=w.aval.shape[:group_rank]
        )
        return [None, _like(dw, w), *nothing]

    def _dinput_batch(self, args: Any, dims: Any, **params: Any) -> Any:
        params = without_call(params)
        g, w, *table = args
        if params["group_rank"] == 0 and all(d is None for d in dims[1:]):
            return [self.dinput(jnp.moveaxis(g, dims[0], 0), w, table, **params)], [0]
        g, w, *table = add_group(args, dims)
        params["group_rank"] += 1
        return [self.dinput(g, w, table, **params)], [0]

    # ---- dweight -------------------------------------------------------------------------------------------------

    def _dweight_jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        x, g, *table = primals
        dx, dg, *_ = tangents
        params = without_call(params)
        bind: Any = functools.partial(self.dweight, table=table, **params)
        outs = bind(x, g)
        terms, db_tangent = [], zero_tangent(outs[1])
        if not _zero(dx):
            terms.append(self.dweight(dx, g, table, **{**params, "with_bias": False})[0])
        if not _zero(dg):
            term, db_of_dg = bind(x, dg)
            terms.append(term)
            if params["with_bias"]:
                db_tangent = db_of_dg
        dw_tangent = functools.reduce(jnp.add, terms) if terms else zero_tangent(outs[0])
        return list(outs), [dw_tangent, db_tangent]

    def _dweight_transpose(
        self, cts: Any, x: Any, g: Any, *table: Any, spec: Any, out_dtype: Any, groups: Any, with_bias: bool, call: Any
    ) -> Any:
        del out_dtype, call
        ct_dw, ct_db = cts
        nothing = [None] * len(table)
        rank = len(groups)
        if ad.is_undefined_primal(x):
            if _zero(ct_dw):
                return [None, None, *nothing]
            dtype, shared = x.aval.dtype, x.aval.shape[:rank]
            dx = self.dinput(g, _to(ct_dw, g.dtype), table, spec=spec, out_dtype=_wide(shared, dtype), group_rank=rank)
            return [_like(sum_groups(dx, shared, dtype), x), None, *nothing]
        if _zero(ct_dw) and (_zero(ct_db) or not with_bias):
            return [None, None, *nothing]
        dtype, shared = g.aval.dtype, g.aval.shape[:rank]
        w = jnp.zeros(ct_dw.aval.shape, dtype) if _zero(ct_dw) else _to(ct_dw, dtype)
        bias = None if _zero(ct_db) or not with_bias else ct_db
        dg = self.forward(x, w, bias, table, spec=spec, out_dtype=_wide(shared, dtype), group_rank=rank)
        return [None, _like(sum_groups(dg, shared, dtype), g), *nothing]

    def _dweight_batch(self, args: Any, dims: Any, **params: Any) -> Any:
        params = without_call(params)
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        x, g, *table = add_group(args, dims)
        params["groups"] = (size, *params["groups"])
        dw, db = self.dweight(x, g, table, **params)
        return [dw, db], [0, 0 if params["with_bias"] else None]

    def _dweight_dce(self, used: Sequence[bool], eqn: Any) -> Any:
        """Where only db is used, leave the product out."""
        if not any(used):
            return [False] * len(eqn.invars), None
        if not used[0]:
            _, g, *table = eqn.invars
            new = bias_gradient_equation(eqn, g, table, eqn.outvars[1])
            live = len(new.invars)
            return [False] + [True] * live + [False] * (len(table) + 1 - live), new
        return [True] * len(eqn.invars), eqn


def _like(value: Any, primal: Any) -> Any:
    """A cotangent with the Explicit sharding of the operand that it belongs to."""
    return as_sharded(value, primal.aval)


def _wide(groups: Sequence[Any], dtype: Any) -> Any:
    """float32 where shared groups will be added afterwards, so that their sum is rounded once."""
    return jnp.float32 if any(size == 1 for size in groups) else dtype
