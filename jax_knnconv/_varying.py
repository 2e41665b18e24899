"""Types inside shard_map: over which manual mesh axes a value varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def varying_axes(value: Any) -> frozenset[str]:
    """The manual mesh axes over which a value differs between devices."""
    return (value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)).manual_axis_type.varying


def result_type(shape: Sequence[Any], dtype: Any, operands: Sequence[Any]) -> jax.core.ShapedArray:
    """The type of a result that depends on all operands: it varies wherever one of them does."""
    widest = max(operands, key=lambda aval: len(varying_axes(aval)))
    if not varying_axes(widest):
        return jax.core.ShapedArray(tuple(shape), dtype)
    sharding = NamedSharding(widest.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return widest.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def vary_together(*arrays: Any) -> tuple[Any, ...]:
    """The arrays (or Nones), all varying over the same axes: a replicated one is cast to vary.

    Done before anything is differentiated: the transpose of that cast is the sum over devices of a replicated operand's
    gradient.
    """
    union = frozenset().union(*(varying_axes(a) for a in arrays if a is not None))
    return tuple(None if a is None else _vary_over(a, union) for a in arrays)


def vary_as(values: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The values, computed from the operands with unchecked types: each varies wherever one of the operands does."""
    union = frozenset().union(*map(varying_axes, operands))
    return [_vary_over(value, union) for value in values]


def _vary_over(array: Any, axes: frozenset[Any]) -> Any:
    missing = axes - varying_axes(array)
    return jax.lax.pcast(array, tuple(sorted(missing)), to="varying") if missing else array
