"""Both gradients of the KNN convolution from one call.

    (dx, dw, db) = (D(g, w), W(x, g))

One primitive over the operands of dinput and dweight. Its derivative is theirs, so it needs no transpose of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_knnconv import _primitive
from jax_knnconv._dispatch import Handler, handler_primitive
from jax_knnconv._knn import (
    FORWARD_LABELS,
    FORWARD_ORDER,
    SLOT_LABELS,
    SLOT_ORDER,
    SOURCE_LABELS,
    SOURCE_ORDER,
    empty_rows,
    knn,
)
from jax_knnconv._knn_shards import of_shard
from jax_knnconv._partition import (
    Labels,
    Shards,
    add_over,
    label_operands,
    label_summed,
    lead_labels,
    partitioned,
)
from jax_knnconv._primitive import group_sizes, local_groups, zero_tangent
from jax_knnconv._rules import HandlerCall
from jax_knnconv._workspace import dinput_workspace, partial_sums
from jax_knnconv._xla import knn as xla
from jax_knnconv._xla.groups import sum_over_groups


def _results(g: Any, x: Any, w: Any, *table: Any, groups: Any, spec: Any, dx_dtype: Any, dw_dtype: Any) -> Any:
    rank = len(groups)
    sizes = group_sizes(rank, (g, x, w, *table))
    return [
        jax.ShapeDtypeStruct((*sizes, *x.shape[rank:]), dx_dtype),
        jax.ShapeDtypeStruct((*groups, *w.shape[rank:]), dw_dtype),
        jax.ShapeDtypeStruct((*groups, g.shape[-1]), jnp.float32),
    ]


def _workspace(
    g: Any, x: Any, w: Any, *table: Any, groups: Any, platform: str, partial_slices: int | None, **static: Any
) -> Any:
    rank = len(groups)
    size = w.shape[rank] * w.shape[-2] * w.shape[-1]
    source_order = (table[i] for i in SOURCE_ORDER)
    return [
        dinput_workspace(g, w, *source_order, rank=rank, platform=platform, fixed=2),
        partial_sums(size, w.shape[-1], groups, platform=platform, most=partial_slices),
    ]


def _fallback(g: Any, x: Any, w: Any, *table: Any, groups: Any, spec: Any, dx_dtype: Any, dw_dtype: Any) -> Any:
    dx = xla.dinput(g, w, *(table[i] for i in SOURCE_ORDER), num_inputs=spec.input_dims[0], out_dtype=dx_dtype)
    dweight = functools.partial(
        xla.dweight,
        num_slots=spec.slot_dims[0],
        zero_empty_rows=spec.zero_empty_rows,
        group_rank=len(groups),
        with_bias=True,
        out_dtype=jnp.float32,
        bias_dtype=jnp.float32,
    )
    dw, db = sum_over_groups(dweight, groups, x, g, *(table[i] for i in FORWARD_ORDER + SLOT_ORDER))
    return [dx, dw.astype(dw_dtype), db]


def _passes(g: Any, x: Any, w: Any, *table: Any, groups: Any, spec: Any, dx_dtype: Any, dw_dtype: Any, **_: Any) -> Any:
    source_order = [table[i] for i in SOURCE_ORDER]
    rest = [table[i] for i in FORWARD_ORDER + SLOT_ORDER]
    dinput = {"spec": spec, "out_dtype": dx_dtype, "group_rank": len(groups)}
    dweight = {"spec": spec, "out_dtype": dw_dtype, "groups": groups, "with_bias": True}
    return [
        HandlerCall("knn_dinput", (g, w, *source_order), dinput),
        HandlerCall("knn_dweight", (x, g, *rest), dweight),
    ]


_handler = handler_primitive(
    Handler(
        operation="knn_backward",
        results=_results,
        workspace=_workspace,
        attributes=lambda *operands, spec, **static: empty_rows(spec),
        fallback=_fallback,
        passes=_passes,
    )
)


def _call(g: Any, x: Any, w: Any, *table: Any, groups: Any, spec: Any, dx_dtype: Any, dw_dtype: Any) -> Sequence[Any]:
    rank = len(groups)
    batch = tuple(f"b{i}" for i in range(x.ndim - rank - 2))
    operands = (g, x, w, *table)
    after = [
        (*batch, "m", "o"),
        (*batch, "n", "c"),
        ("v", "c", "o"),
        *FORWARD_LABELS,
        *SOURCE_LABELS,
        *SLOT_LABELS,
    ]
    names = label_operands(rank, list(zip(operands, after, strict=True)))
    result_groups, shared = label_summed(groups, operands)
    results = (
        (*(f"g{i}" for i in range(rank)), *batch, "n", "c"),
        (*result_groups, "v", "c", "o"),
        (*result_groups, "o"),
    )
    of_weight = frozenset({"m", *shared, *batch})
    sharded = lead_labels(names) | {"m", "c", "o"}
    labels = Labels(names, results, sharded, summed=(frozenset("mo"), of_weight, of_weight))

    def local(g: Any, x: Any, w: Any, *table: Any, shards: Shards) -> Any:
        orders = (table[i] for i in SOURCE_ORDER + SLOT_ORDER)
        operands = (g, x, w, *(table[i] for i in FORWARD_ORDER), *of_shard(orders, rows=g.shape[-2], shards=shards))
        dtypes = [dx_dtype, dw_dtype, jnp.dtype(jnp.float32)]
        partial = [jnp.dtype(jnp.float32) if axes else d for axes, d in zip(shards.sums, dtypes, strict=True)]
        results = _handler.bind(
            *operands,
            groups=local_groups(groups, operands),
            spec=spec,
            dx_dtype=partial[0],
            dw_dtype=partial[1],
            implementation=spec.implementation,
        )
        return add_over(results, shards.sums, dtypes)

    return partitioned(local, labels, operands)


_backward = _primitive.define("knn_backward")


def knn_backward_call(
    g: Any, x: Any, w: Any, table: Sequence[Any], *, spec: Any, dx_dtype: Any, dw_dtype: Any, groups: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """(dx, dw, db); groups are the group dimensions of dw and db."""
    dx, dw, db = _primitive.bind(
        _backward,
        _call,
        (g, x, w, *table),
        groups=tuple(groups),
        spec=spec,
        dx_dtype=jnp.dtype(dx_dtype),
        dw_dtype=jnp.dtype(dw_dtype),
    )
    return dx, dw, db


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    g, x, w, *table = primals
    dg, dx, dw, *_ = tangents
    params = _primitive.without_call(params)
    outs = knn_backward_call(g, x, w, table, **params)
    spec, groups = params["spec"], params["groups"]
    dinput = functools.partial(knn.dinput, table=table, spec=spec, out_dtype=params["dx_dtype"], group_rank=len(groups))
    dweight = functools.partial(knn.dweight, table=table, spec=spec, out_dtype=params["dw_dtype"], groups=groups)
    none = [type(t) is ad.Zero for t in (dg, dx, dw)]
    dx_terms = ([] if none[0] else [dinput(dg, w)]) + ([] if none[2] else [dinput(g, dw)])
    dw_terms = [] if none[1] else [dweight(dx, g)[0]]
    db_terms = []
    if not none[0]:
        term, db_term = dweight(x, dg, with_bias=True)
        dw_terms.append(term)
        db_terms.append(db_term)
    sums = [functools.reduce(jnp.add, terms) if terms else None for terms in (dx_terms, dw_terms, db_terms)]
    return list(outs), [zero_tangent(o) if s is None else s for o, s in zip(outs, sums, strict=True)]


def _batch(args: Any, dims: Any, **params: Any) -> Any:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    g, x, w, *table = _primitive.add_group(args, dims)
    params = _primitive.without_call(params)
    params["groups"] = (size, *params["groups"])
    return list(knn_backward_call(g, x, w, table, **params)), [0, 0, 0]


ad.primitive_jvps[_backward] = _jvp
batching.primitive_batchers[_backward] = _batch
