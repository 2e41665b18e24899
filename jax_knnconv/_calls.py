"""Handler calls of one operation, dense or KNN: shapes, workspace and the labels by which operands may be sharded.

Dense and KNN calls differ in their fixed dimensions, in whether a table comes along and in their attributes; all that
is in `Operation`. The rest, groups, batch, bias, partial sums over a mesh, is the same and stands here once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_knnconv._bilinear import Calls
from jax_knnconv._dispatch import Handler, handler_primitive
from jax_knnconv._partition import (
    Labels,
    Shards,
    add_over,
    is_first,
    label_operands,
    label_summed,
    lead_labels,
    partitioned,
)
from jax_knnconv._primitive import ABSENT, group_sizes, local_groups
from jax_knnconv._workspace import dinput_workspace, packed_weights, partial_sums
from jax_knnconv._xla.groups import sum_over_groups


class Pass(NamedTuple):
    """One pass of an operation: which table operands its handler takes, and the handler's own parameters."""

    table: tuple[int, ...]  # positions in the table's operands
    table_labels: tuple[tuple[str, ...], ...]
    attributes: Callable[[Any], dict[str, Any]]  # of the spec
    fallback: Callable[..., Any]


class Operation(NamedTuple):
    """What tells one operation from another."""

    name: str
    inputs: tuple[str, ...]  # labels of x's fixed dimensions before the channels
    outputs: tuple[str, ...]  # of y's
    slots: tuple[str, ...]  # of weight's
    forward: Pass
    dinput: Pass
    dweight: Pass
    # (orders, rows=, shards=) -> a table's derived orders less the taps of rows that other shards have
    of_shard: Callable[..., Sequence[Any]] | None = None


def _struct(shape: Sequence[Any], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def make_calls(op: Operation) -> Calls:
    """The traceable forward, dinput and dweight of an operation."""
    x_rank, y_rank = len(op.inputs) + 1, len(op.outputs) + 1
    rows = frozenset(op.outputs if op.forward.table else ())  # the output rows, where each has its own taps

    def batch_labels(operand: Any, rank: int, fixed: int) -> tuple[str, ...]:
        return tuple(f"b{i}" for i in range(operand.ndim - rank - fixed))

    # ---- forward -------------------------------------------------------------------------------------------------

    def forward_results(x: Any, w: Any, bias: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int) -> Any:
        groups = group_sizes(group_rank, (x, w, bias, *table))
        outputs = spec.output_dims if not table else (table[0].shape[-2],)
        return [_struct((*groups, *x.shape[group_rank : x.ndim - x_rank], *outputs, w.shape[-1]), out_dtype)]

    forward_handler = handler_primitive(
        Handler(
            operation=f"{op.name}_forward",
            results=forward_results,
            workspace=lambda x, w, *rest, group_rank, platform, **static: [
                packed_weights(w, reduced=w.shape[-2], columns=w.shape[-1], rank=group_rank, platform=platform)
            ],
            attributes=lambda *operands, spec, **static: op.forward.attributes(spec),
            fallback=lambda x, w, bias, *table, spec, out_dtype, group_rank: [
                op.forward.fallback(x, w, bias, *table, spec=spec, out_dtype=out_dtype)
            ],
        )
    )

    def forward(x: Any, w: Any, bias: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int) -> Any:
        used = [table[i] for i in op.forward.table]
        batch = batch_labels(x, group_rank, x_rank)
        operands = (x, w, bias, *used)
        after = [(*batch, *op.inputs, "c"), (*op.slots, "c", "o"), ("o",), *op.forward.table_labels]
        names = label_operands(group_rank, list(zip(operands, after, strict=True)))
        result = (*(f"g{i}" for i in range(group_rank)), *batch, *op.outputs, "o")
        sharded = lead_labels(names) | rows | {"c", "o"}
        labels = Labels(names, (result,), sharded, summed=(frozenset("c"),))

        def local(x: Any, w: Any, bias: Any, *used: Any, shards: Shards) -> Any:
            params = {"spec": spec, "group_rank": group_rank, "implementation": spec.implementation}
            if not any(shards.sums):
                return forward_handler.bind(x, w, bias, *used, out_dtype=out_dtype, **params)
            bias = jnp.where(is_first(shards.sums[0]), bias, 0)
            partial = forward_handler.bind(x, w, bias, *used, out_dtype=jnp.dtype(jnp.float32), **params)
            return add_over(partial, shards.sums, [out_dtype])

        return partitioned(local, labels, operands)

    # ---- dinput --------------------------------------------------------------------------------------------------

    def dinput_results(g: Any, w: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int) -> Any:
        groups = group_sizes(group_rank, (g, w, *table))
        return [_struct((*groups, *g.shape[group_rank : g.ndim - y_rank], *spec.input_dims, w.shape[-2]), out_dtype)]

    dinput_handler = handler_primitive(
        Handler(
            operation=f"{op.name}_dinput",
            results=dinput_results,
            workspace=lambda g, w, *table, group_rank, platform, **static: [
                dinput_workspace(g, w, *table, rank=group_rank, platform=platform, fixed=y_rank)
            ],
            attributes=lambda *operands, spec, **static: op.dinput.attributes(spec),
            fallback=lambda g, w, *table, spec, out_dtype, group_rank: [
                op.dinput.fallback(g, w, *table, spec=spec, out_dtype=out_dtype)
            ],
        )
    )

    def dinput(g: Any, w: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int) -> Any:
        used = [table[i] for i in op.dinput.table]
        batch = batch_labels(g, group_rank, y_rank)
        operands = (g, w, *used)
        after = [(*batch, *op.outputs, "o"), (*op.slots, "c", "o"), *op.dinput.table_labels]
        names = label_operands(group_rank, list(zip(operands, after, strict=True)))
        result = (*(f"g{i}" for i in range(group_rank)), *batch, *op.inputs, "c")
        labels = Labels(names, (result,), lead_labels(names) | rows | {"c", "o"}, summed=(rows | {"o"},))

        def local(g: Any, w: Any, *used: Any, shards: Shards) -> Any:
            params = {"spec": spec, "group_rank": group_rank, "implementation": spec.implementation}
            if op.of_shard is not None:
                used = tuple(op.of_shard(used, rows=g.shape[-2], shards=shards))
            if not any(shards.sums):
                return dinput_handler.bind(g, w, *used, out_dtype=out_dtype, **params)
            partial = dinput_handler.bind(g, w, *used, out_dtype=jnp.dtype(jnp.float32), **params)
            return add_over(partial, shards.sums, [out_dtype])

        return partitioned(local, labels, operands)

    # ---- dweight -------------------------------------------------------------------------------------------------

    def dweight_results(x: Any, g: Any, *table: Any, spec: Any, out_dtype: Any, groups: Any, with_bias: bool) -> Any:
        db = (*groups, g.shape[-1]) if with_bias else ABSENT
        return [_struct((*groups, *spec.slot_dims, x.shape[-1], g.shape[-1]), out_dtype), _struct(db, jnp.float32)]

    def dweight_workspace(
        x: Any, g: Any, *table: Any, spec: Any, groups: Any, platform: str, partial_slices: int | None, **static: Any
    ) -> Any:
        size = x.shape[-1] * g.shape[-1]
        for slots in spec.slot_dims:
            size *= slots
        return [partial_sums(size, g.shape[-1], groups, platform=platform, most=partial_slices)]

    def dweight_fallback(x: Any, g: Any, *table: Any, spec: Any, out_dtype: Any, groups: Any, with_bias: bool) -> Any:
        params = {"spec": spec, "out_dtype": jnp.float32, "group_rank": len(groups), "with_bias": with_bias}
        dw, db = sum_over_groups(functools.partial(op.dweight.fallback, **params), groups, x, g, *table)
        return [dw.astype(out_dtype), db]

    dweight_handler = handler_primitive(
        Handler(
            operation=f"{op.name}_dweight",
            results=dweight_results,
            workspace=dweight_workspace,
            attributes=lambda *operands, spec, **static: op.dweight.attributes(spec),
            fallback=dweight_fallback,
        )
    )

    def dweight(x: Any, g: Any, *table: Any, spec: Any, out_dtype: Any, groups: Any, with_bias: bool) -> Any:
        rank = len(groups)
        used = [table[i] for i in op.dweight.table]
        batch = batch_labels(x, rank, x_rank)
        operands = (x, g, *used)
        after = [(*batch, *op.inputs, "c"), (*batch, *op.outputs, "o"), *op.dweight.table_labels]
        names = label_operands(rank, list(zip(operands, after, strict=True)))
        result_groups, shared = label_summed(groups, operands)
        results = ((*result_groups, *op.slots, "c", "o"), (*result_groups, "o") if with_bias else ("no_db",))
        summed = rows.union(shared, batch)
        labels = Labels(names, results, lead_labels(names) | rows | {"c", "o"}, summed=(summed, summed))

        def local(x: Any, g: Any, *used: Any, shards: Shards) -> Any:
            params = {"spec": spec, "with_bias": with_bias, "implementation": spec.implementation}
            params["groups"] = local_groups(groups, (x, g, *used))
            if op.of_shard is not None:
                orders = len(op.forward.table)
                used = (*used[:orders], *op.of_shard(used[orders:], rows=g.shape[-2], shards=shards))
            if not any(shards.sums):
                return dweight_handler.bind(x, g, *used, out_dtype=out_dtype, **params)
            partial = dweight_handler.bind(x, g, *used, out_dtype=jnp.dtype(jnp.float32), **params)
            return add_over(partial, shards.sums, [out_dtype, jnp.float32])

        return partitioned(local, labels, operands)

    return Calls(forward, dinput, dweight)
