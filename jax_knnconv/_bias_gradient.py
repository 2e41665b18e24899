"""The bias gradient alone, where no dweight runs that could give it along.

    db[o] = sum over batch and output rows n of g[b, n, o]    (KNN with empty_rows="zero": rows with a tap only)

Sums are float32, in blocks, so that a count of 20,000,000 does not stop at 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_knnconv._partition import (
    Labels,
    Shards,
    add_over,
    as_sharded,
    label_operands,
    label_summed,
    lead_labels,
    partitioned,
)
from jax_knnconv._primitive import add_group, bind, define, group_sizes, local_groups, trace_avals, zero_tangent

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


def _local(g: Any, *table: Any, spec: Any, groups: Sequence[Any]) -> Any:
    rank = len(groups)
    g = _live(g, table, spec=spec, rank=rank)
    db = _blocked_sum(g.reshape(*g.shape[:rank], math.prod(g.shape[rank:-1]), g.shape[-1]))
    shared = tuple(i for i in range(rank) if groups[i] == 1 and db.shape[i] != 1)
    return jnp.sum(db, shared, keepdims=True) if shared else db


def _live(g: Any, table: Sequence[Any], *, spec: Any, rank: int) -> Any:
    """G [groups..., batch..., rows..., O] with zeros in the rows that do not take the bias."""
    live = spec.live_rows(table)
    if live is None:
        return g
    # [groups..., M], not over the batch
    live = jnp.expand_dims(live, (*range(rank, g.ndim - 2), live.ndim + g.ndim - 2 - rank))
    return jnp.where(as_sharded(jnp.broadcast_to(live, g.shape), g), g, jnp.zeros((), g.dtype))


def _call(g: Any, *table: Any, spec: Any, groups: Sequence[Any]) -> Sequence[Any]:
    rank = len(groups)
    rows = tuple(f"row{i}" for i in range(len(spec.output_dims)))
    batch = tuple(f"b{i}" for i in range(g.ndim - rank - len(rows) - 1))
    operands = (g, *table)
    names = label_operands(rank, [(g, (*batch, *rows, "o")), *((leaf, (*rows, "k")) for leaf in table)])
    # Where only operands of dweight that db does not read are mapped, each of the group has the same db.
    summed_groups = tuple(
        1 if size == 1 else want for size, want in zip(group_sizes(rank, operands), groups, strict=True)
    )
    result_groups, shared = label_summed(summed_groups, operands)
    summed = shared.union(batch, rows)
    labels = Labels(names, ((*result_groups, "o"),), lead_labels(names) | summed | {"o"}, summed=(summed,))

    def local(g: Any, *table: Any, shards: Shards) -> Any:
        db = _local(g, *table, spec=spec, groups=local_groups(summed_groups, (g, *table)))
        return add_over([db], shards.sums, [jnp.float32])

    (db,) = partitioned(local, labels, operands)
    return [jnp.broadcast_to(db, (*groups, db.shape[-1]))]


_primitive = define("bias_gradient")


def bind_bias_gradient(g: Any, table: Sequence[Any], *, spec: Any, groups: Sequence[Any]) -> Any:
    """Db of a cotangent; groups are the group dimensions of the bias."""
    return bind(_primitive, _call, (g, *spec.bias_table(table)), spec=spec, groups=tuple(groups))[0]


def bias_gradient_equation(eqn: Any, g: Any, table: Sequence[Any], db: Any) -> Any:
    """An equation of another primitive, with the same `spec` and `groups`, turned into db of the variable g alone."""
    params = {"spec": eqn.params["spec"], "groups": eqn.params["groups"]}
    invars = [g, *params["spec"].bias_table(table)]
    call = trace_avals(_call, [var.aval for var in invars], params)
    return eqn.replace(primitive=_primitive, params={**params, "call": call}, invars=invars, outvars=[db])


def _jvp(primals: Any, tangents: Any, *, spec: Any, groups: Any, call: Any) -> Any:
    del call
    g, *table = primals
    db = bind_bias_gradient(g, table, spec=spec, groups=groups)
    if type(tangents[0]) is ad.Zero:
        return [db], [zero_tangent(db)]
    return [db], [bind_bias_gradient(tangents[0], table, spec=spec, groups=groups)]


def _transpose(cts: Any, g: Any, *table: Any, spec: Any, groups: Any, call: Any) -> Any:
    del call
    nothing = [None] * len(table)
    if type(cts[0]) is ad.Zero:
        return [None, *nothing]
    rank, aval = len(groups), g.aval
    ct = jnp.expand_dims(cts[0], tuple(range(rank, aval.ndim - 1))).astype(aval.dtype)
    dg = as_sharded(jnp.broadcast_to(ct, aval.shape), aval)
    return [_live(dg, table, spec=spec, rank=rank), *nothing]


def _batch(args: Any, dims: Any, *, spec: Any, groups: Any, call: Any) -> Any:
    del call
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    g, *table = add_group(args, dims)
    return [bind_bias_gradient(g, table, spec=spec, groups=(size, *groups))], [0]


ad.primitive_jvps[_primitive] = _jvp
ad.primitive_transposes[_primitive] = _transpose
batching.primitive_batchers[_primitive] = _batch
