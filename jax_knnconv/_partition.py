"""Keeps sharded operands sharded: one labelled description of a call serves every kind of mesh.

Each dimension of each operand and result bears a label. Equal labels are equal indices, as in einsum. A label in
`sharded` may stay sharded; where a result sums over it, shards hold partial sums, which are added over its mesh axes.
Every other dimension is replicated before the call.

* Auto mesh axes: custom_partitioning, the partitioner asks when the program is compiled.
* Explicit mesh axes, beside Manual ones too: shard_map over them, from the shardings that the types show.
* Inside shard_map (Manual axes), or with one device: the plain call.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_knnconv._primitive import group_sizes, is_absent
from jax_knnconv._varying import vary_as
from jax_knnconv._version import __version__


class Labels(NamedTuple):
    """The dimensions of a call."""

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    sharded: frozenset[str]  # which may stay sharded
    summed: tuple[frozenset[str], ...]  # of these, the ones that each result sums over


class Shards(NamedTuple):
    """How the operands of a local call are sharded."""

    axes: dict[str, tuple[str, ...]]  # the mesh axes of each label that is
    sums: tuple[tuple[str, ...], ...]  # the mesh axes over which each result is still to be added


# local(*operands, shards=): the results of one shard, already added over `shards.sums` (`add_over`): partial sums are
# float32, and what enters a sum once (a bias) does so where `is_first` is true.
LocalCall = Callable[..., Sequence[jax.Array]]


def label_operands(rank: int, parts: Sequence[tuple[Any, Sequence[str]]]) -> tuple[tuple[str, ...], ...]:
    """Labels of operands given as (operand, labels of the dimensions after the groups)."""
    sizes = group_sizes(rank, [operand for operand, _ in parts])
    found: list[tuple[str, ...]] = []
    for position, (operand, rest) in enumerate(parts):
        if is_absent(operand):
            found.append((f"absent{position}",))
            continue
        groups = [
            f"g{i}" if operand.shape[i] == size else f"g{i}shared{position}"
            for i, size in zip(range(rank), sizes, strict=True)
        ]
        found.append((*groups, *rest))
    return tuple(found)


def lead_labels(labels: Sequence[Sequence[str]]) -> frozenset[str]:
    """The labels of groups and batch."""
    return frozenset(name for names in labels for name in names if name[0] in "gb" and "shared" not in name)


def label_summed(groups: Sequence[Any], operands: Sequence[Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Labels of a result's `groups`, and those of the operands' groups that it sums over: size 1 in `groups` alone."""
    sizes = group_sizes(len(groups), operands)
    shared = frozenset(f"g{i}" for i, size in enumerate(sizes) if groups[i] == 1 and size != 1)
    return tuple(f"g{i}result" if f"g{i}" in shared else f"g{i}" for i in range(len(groups))), shared


def _explicit_spec(aval: Any) -> PartitionSpec | None:
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return None
    explicit = {
        n for n, t in zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True) if t == AxisType.Explicit
    }
    return sharding.spec if explicit else None


def as_sharded(value: Any, like: Any) -> Any:
    """A cotangent with the Explicit sharding of its primal."""
    aval = like if hasattr(like, "sharding") and not isinstance(like, jax.Array) else jax.typeof(like)
    spec = _explicit_spec(aval)
    if spec is None or jax.typeof(value).sharding.spec == spec:
        return value
    return jax.sharding.reshard(value, NamedSharding(aval.sharding.mesh, spec))


def _inside_shard_map() -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and any(t == AxisType.Manual for t in mesh.axis_types)


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _assign(labels: Labels, specs: Sequence[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each label: the first operand that shards it decides.

    Two labels of one array share no axis, and none of a result's labels shares one with what that result sums over.
    """
    results = ((*names, *summed) for names, summed in zip(labels.results, labels.summed, strict=True))
    arrays = (*labels.operands, *results)
    chosen: dict[str, tuple[str, ...]] = {}
    for names, spec in zip(labels.operands, specs, strict=True):
        for name, entry in zip(names, tuple(spec) + (None,) * (len(names) - len(spec)), strict=True):
            axes = _axes(entry)
            if not axes or name not in labels.sharded or name in chosen:
                continue
            beside = {other for array in arrays if name in array for other in array if other in chosen}
            if not set(axes) & {axis for other in beside for axis in chosen[other]}:
                chosen[name] = axes
    return chosen


def _spec(names: Sequence[str], chosen: dict[str, tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(chosen.get(name) for name in names))


def _run_local(local: LocalCall, labels: Labels, chosen: dict[str, tuple[str, ...]], operands: Sequence[Any]) -> Any:
    sums = tuple(tuple(axis for label in sorted(summed) for axis in chosen.get(label, ())) for summed in labels.summed)
    return tuple(local(*operands, shards=Shards(chosen, sums)))


def partitioned(local: LocalCall, labels: Labels, operands: Sequence[Any]) -> Sequence[jax.Array]:
    """Call `local` on the operands' shards, with results sharded as their labels say."""
    specs = [_explicit_spec(jax.typeof(operand)) for operand in operands]
    if any(spec is not None for spec in specs):
        results = _explicit(local, labels, operands, [() if spec is None else spec for spec in specs])
        return vary_as(results, operands)
    if _inside_shard_map() or jax.device_count() == 1:
        return _run_local(local, labels, {}, operands)
    return _auto(local, labels, operands)


def _explicit(local: LocalCall, labels: Labels, operands: Sequence[Any], specs: Sequence[Any]) -> Sequence[jax.Array]:
    mesh = next(s.mesh for o in operands if not (s := jax.typeof(o).sharding).mesh.empty)
    chosen = _assign(labels, specs)
    if not any(any(spec) for spec in specs):
        return _run_local(local, labels, {}, operands)
    in_specs = tuple(_spec(names, chosen) for names in labels.operands)
    out_specs = tuple(_spec(names, chosen) for names in labels.results)
    resharded = [jax.sharding.reshard(o, NamedSharding(mesh, spec)) for o, spec in zip(operands, in_specs, strict=True)]
    return jax.shard_map(
        lambda *shards: _run_local(local, labels, chosen, shards),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=_manual_axes(mesh, chosen),
        check_vma=False,  # nothing is differentiated through here, and a result need not depend on every operand
    )(*resharded)


def _manual_axes(mesh: Any, chosen: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """The axes for shard_map to take over.

    None named means all but those that an enclosing vmap maps over, which the types do not tell; Auto ones must stay
    out of that, and then only what is sharded is named.
    """
    if all(kind == AxisType.Explicit for kind in mesh.axis_types):
        return frozenset()
    return frozenset(axis for axes in chosen.values() for axis in axes)


def _auto(local: LocalCall, labels: Labels, operands: Sequence[Any]) -> Sequence[jax.Array]:
    mark = _mark(local, labels, operands)
    marked = (*labels.operands, ("mark",))
    factors = dict.fromkeys(name for names in (*marked, *labels.results) for name in names)
    sizes = {
        name: size
        for names, operand in zip(labels.operands, operands, strict=True)
        for name, size in zip(names, operand.shape, strict=True)
    }
    rule = f"{_side(marked)} -> {_side(labels.results)}"
    replicated = tuple(name for name in factors if name not in labels.sharded)

    def shardings(mesh: Any, arg_shapes: Any) -> tuple[dict[str, tuple[str, ...]], list[Any], tuple[Any, ...]]:
        # A sharding that is no NamedSharding has no spec to read: replicated.
        specs = [tuple(getattr(shape.sharding, "spec", ()))[: len(shape.shape)] for shape in arg_shapes[:-1]]
        chosen = _assign(labels, specs)
        for name in list(chosen):  # shards are of equal size
            if name in sizes and sizes[name] % math.prod(mesh.shape[axis] for axis in chosen[name]):
                del chosen[name]
        arguments = [NamedSharding(mesh, _spec(names, chosen)) for names in marked]
        return chosen, arguments, tuple(NamedSharding(mesh, _spec(names, chosen)) for names in labels.results)

    def partition(mesh: Any, arg_shapes: Any, result_shapes: Any) -> Any:
        del result_shapes
        chosen, arguments, results = shardings(mesh, arg_shapes)
        return mesh, lambda *shards: _run_local(local, labels, chosen, shards[:-1]), results, tuple(arguments)

    @custom_partitioning
    def call(*args: Any) -> Any:
        return _run_local(local, labels, {}, args[:-1])

    call.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arg_shapes, result_shapes: shardings(mesh, arg_shapes)[2],
        sharding_rule=rule,
        need_replication_factors=replicated,
    )
    return call(*operands, mark)


def _mark(local: LocalCall, labels: Labels, operands: Sequence[Any]) -> jax.Array:
    """An operand that stands for what a call computes, in the program's own text.

    custom_partitioning leaves only a pointer there. Where `jax_remove_custom_partitioning_ptr_from_cache_key` takes
    that out of the key of the persistent compilation cache, calls that differ by static parameters alone (a padding)
    would get each other's programs.
    """
    computed = jax.make_jaxpr(lambda *args: _run_local(local, labels, {}, args))(*operands)
    names = (labels.operands, labels.results, sorted(labels.sharded), [sorted(summed) for summed in labels.summed])
    digest = hashlib.sha256(f"{__version__} {names} {computed}".encode()).digest()
    # Literals: an array constant may be hoisted out of the program, to be one of its arguments.
    words = [jax.lax.full((1,), int(word)) for word in np.frombuffer(digest[:16], "<i4")]
    return jax.lax.concatenate(words, 0)


def _side(names: Sequence[Sequence[str]]) -> str:
    return ", ".join(" ".join(dims) for dims in names)


def add_over(
    values: Sequence[jax.Array], sums: Sequence[Sequence[str]], dtypes: Sequence[Any]
) -> tuple[jax.Array, ...]:
    """Partial float32 sums, each added over its mesh axes, rounded once."""
    return tuple(
        (jax.lax.psum(value, tuple(axes)) if axes else value).astype(dtype)
        for value, axes, dtype in zip(values, sums, dtypes, strict=True)
    )


def is_first(axes: Sequence[str]) -> jax.Array:
    """Whether this shard is the first along all of the axes."""
    return shard_index(axes) == 0


def shard_index(axes: Sequence[str]) -> jax.Array:
    """The number of this shard of a dimension that is sharded over mesh axes, the first of which varies slowest."""
    return jax.lax.axis_index(tuple(axes))
