"""The primitives of pooling over a table.

    gather  F(x) = y: the sum of neighbours, or the picked ones     spread  Q(g) = dx, the transpose of F
    max     (y, winner), whose derivative is F with that winner

F and Q are linear, and the transpose of each other. Operands are [groups..., batch..., rows, channels], as everywhere
(`_bilinear.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_knnconv._dispatch import jax_primitive
from jax_knnconv._knn import FORWARD_LABELS, SOURCE_LABELS
from jax_knnconv._partition import Labels, Shards, as_sharded, label_operands, lead_labels, partitioned
from jax_knnconv._primitive import (
    add_group,
    bind,
    define,
    group_sizes,
    is_absent,
    sum_groups,
    without_call,
    zero_tangent,
)
from jax_knnconv._xla import pool as xla

_max, _gather, _spread = (define(f"pool_{name}") for name in ("max", "gather", "spread"))


def greatest(x: Any, table: Sequence[Any], *, num_inputs: int, group_rank: int) -> tuple[Any, Any]:
    """Each row's greatest neighbour, and its column (K where there is none)."""
    best, winner = bind(_max, _max_call, (x, *table), num_inputs=num_inputs, group_rank=group_rank)
    return best, winner


def gather(x: Any, winner: Any, table: Sequence[Any], *, num_inputs: int, out_dtype: Any, group_rank: int) -> Any:
    """y = F(x); table are its indices, slots and source order. Without a winner (None) neighbours are added up."""
    params = {"num_inputs": num_inputs, "out_dtype": jnp.dtype(out_dtype), "group_rank": group_rank}
    return bind(_gather, _gather_call, (x, winner, *table), **params)[0]


def spread(g: Any, winner: Any, table: Sequence[Any], *, num_inputs: int, out_dtype: Any, group_rank: int) -> Any:
    """dx = Q(g)."""
    params = {"num_inputs": num_inputs, "out_dtype": jnp.dtype(out_dtype), "group_rank": group_rank}
    return bind(_spread, _spread_call, (g, winner, *table), **params)[0]


def _shape(first: Any, rows: int, operands: Sequence[Any], rank: int) -> tuple[Any, ...]:
    """The first operand's, with the groups of all and so many rows."""
    return *group_sizes(rank, (first, *operands)), *first.shape[rank:-2], rows, first.shape[-1]


def _max_results(x: Any, indices: Any, *, group_rank: int) -> Any:
    shape = _shape(x, indices.shape[-2], (indices,), group_rank)
    return [jax.ShapeDtypeStruct(shape, dtype) for dtype in (x.dtype, xla.winner_dtype(indices.shape[-1]))]


def _gather_results(x: Any, winner: Any, indices: Any, *, group_rank: int, out_dtype: Any) -> Any:
    return [jax.ShapeDtypeStruct(_shape(x, indices.shape[-2], (winner, indices), group_rank), out_dtype)]


def _spread_results(g: Any, *others: Any, group_rank: int, num_inputs: int, out_dtype: Any) -> Any:
    return [jax.ShapeDtypeStruct(_shape(g, num_inputs, others, group_rank), out_dtype)]


_local_max = jax_primitive(
    "pool_max_call", _max_results, lambda *operands, group_rank: xla.greatest(*operands, rank=group_rank)
)
_local_gather = jax_primitive(
    "pool_gather_call",
    _gather_results,
    lambda *operands, group_rank, **static: [xla.gather(*operands, rank=group_rank, **static)],
)
_local_spread = jax_primitive(
    "pool_spread_call",
    _spread_results,
    lambda *operands, group_rank, **static: [xla.spread(*operands, rank=group_rank, **static)],
)


def _call(
    local: Any, operands: Sequence[Any], after: Sequence[Any], rows: str, sharded: set[str], **params: Any
) -> Any:
    """One local call, partitioned: `after` are the labels of operands behind groups and batch, `rows` the result's."""
    first, rank = operands[0], params["group_rank"]
    batch = tuple(f"b{i}" for i in range(first.ndim - rank - 2))
    with_batch = [(*batch, *names) if names[-1] == "c" else names for names in after]
    names = label_operands(rank, list(zip(operands, with_batch, strict=True)))
    result = (*(f"g{i}" for i in range(rank)), *batch, rows, "c")
    results = 2 if local is _local_max else 1
    labels = Labels(names, (result,) * results, lead_labels(names) | sharded, summed=(frozenset(),) * results)

    def run(*operands: Any, shards: Shards) -> Any:
        del shards
        return local.bind(*operands, **params)

    return partitioned(run, labels, operands)


def _max_call(x: Any, indices: Any, *rest: Any, num_inputs: int, group_rank: int) -> Any:
    del rest, num_inputs
    return _call(_local_max, (x, indices), (("n", "c"), ("m", "k")), "m", {"m", "c"}, group_rank=group_rank)


def _gather_call(
    x: Any, winner: Any, indices: Any, *rest: Any, num_inputs: int, out_dtype: Any, group_rank: int
) -> Any:
    del rest, num_inputs
    after = (("n", "c"), ("m", "c"), ("m", "k"))
    params = {"out_dtype": out_dtype, "group_rank": group_rank}
    return _call(_local_gather, (x, winner, indices), after, "m", {"m", "c"}, **params)


def _spread_call(g: Any, winner: Any, *table: Any, num_inputs: int, out_dtype: Any, group_rank: int) -> Any:
    after = (("m", "c"), ("m", "c"), *FORWARD_LABELS, *SOURCE_LABELS)
    params = {"num_inputs": num_inputs, "out_dtype": out_dtype, "group_rank": group_rank}
    return _call(_local_spread, (g, winner, *table), after, "n", {"c"}, **params)


def _linear_rules(primitive: Any, forward: Any, backward: Any) -> None:
    """Of a primitive that is linear in its first operand, whose transpose is `backward`."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        value, winner, *table = primals
        params = without_call(params)
        out = forward(value, winner, table, **params)
        if type(tangents[0]) is ad.Zero:
            return [out], [zero_tangent(out)]
        return [out], [forward(tangents[0], winner, table, **params)]

    def transpose(cts: Any, value: Any, winner: Any, *table: Any, **params: Any) -> Any:
        nothing = [None] * (1 + len(table))
        (ct,) = cts
        if type(ct) is ad.Zero:
            return [None, *nothing]
        rank, aval = params["group_rank"], value.aval
        groups = aval.shape[:rank]
        # float32 where shared groups are added afterwards, so that their sum is rounded once
        wide = jnp.float32 if 1 in groups else aval.dtype
        result = backward(ct, winner, table, num_inputs=params["num_inputs"], out_dtype=wide, group_rank=rank)
        return [as_sharded(sum_groups(result, groups, aval.dtype), aval), *nothing]

    def batch(args: Any, dims: Any, **params: Any) -> Any:
        params = without_call(params)
        value, winner, *table = args
        picks, maps_table = not is_absent(winner), any(d is not None for d in dims[2:])
        joins = dims[0] is not None and picks == (dims[1] is not None) and not maps_table
        if joins and params["group_rank"] == 0:  # the batch
            winner = jnp.moveaxis(winner, dims[1], 0) if picks else winner
            return [forward(jnp.moveaxis(value, dims[0], 0), winner, table, **params)], [0]
        value, winner, *table = add_group(args, dims)
        params["group_rank"] += 1
        return [forward(value, winner, table, **params)], [0]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch


def _max_jvp(primals: Any, tangents: Any, *, num_inputs: int, group_rank: int, call: Any) -> Any:
    del call
    x, *table = primals
    params = {"num_inputs": num_inputs, "group_rank": group_rank}
    best, winner = greatest(x, table, **params)
    if type(tangents[0]) is ad.Zero:
        return [best, winner], [zero_tangent(best), zero_tangent(winner)]
    tangent = gather(tangents[0], winner, table, out_dtype=x.dtype, **params)
    return [best, winner], [tangent, zero_tangent(winner)]


def _max_batch(args: Any, dims: Any, *, num_inputs: int, group_rank: int, call: Any) -> Any:
    del call
    if group_rank == 0 and all(d is None for d in dims[1:]):  # joins the batch
        x = jnp.moveaxis(args[0], dims[0], 0)
        return list(greatest(x, args[1:], num_inputs=num_inputs, group_rank=0)), [0, 0]
    x, *table = add_group(args, dims)
    return list(greatest(x, table, num_inputs=num_inputs, group_rank=group_rank + 1)), [0, 0]


_linear_rules(_gather, gather, spread)
_linear_rules(_spread, spread, gather)
ad.primitive_jvps[_max] = _max_jvp
batching.primitive_batchers[_max] = _max_batch
