"""Primitives that carry their own traced call.

A primitive of this package is bound with `call`, the closed jaxpr of what it computes, partitioning included. Shapes,
lowering and eager evaluation all come from there; each family of primitives adds only derivative and batching rules.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, mlir
from jax.interpreters import partial_eval as pe

ABSENT = (0,)  # the shape of an operand or result that is not there


def absent(dtype: Any = np.float32) -> Any:
    """The placeholder for an operand that is not there.

    It belongs to the trace that asks for it. A constant would become an operand of a surrounding `shard_map`, and there
    arrays of size 0 crash the compiler of jaxlib 0.11.
    """
    return jnp.zeros(ABSENT, dtype)


def is_absent(value: Any) -> bool:
    """Whether an operand is a placeholder."""
    return tuple(value.shape) == ABSENT


# Traced calls by what they depend on. One object for equal calls: eager evaluation compiles once for each object.
_traced: collections.OrderedDict[Any, ClosedJaxpr] = collections.OrderedDict()
_traced_limit = 4096
_lock = threading.Lock()


def _trace(call: Callable[..., Any], operands: Sequence[Any], params: dict[str, Any]) -> ClosedJaxpr:
    avals = tuple(jax.typeof(operand) for operand in operands)
    key = (
        call,
        avals,
        tuple(params.items()),
        jax.sharding.get_abstract_mesh(),
        jax.device_count(),
        getattr(jax.config, "jax_use_shardy_partitioner", True),  # custom_partitioning reads it as it is traced
    )
    with _lock:
        if key in _traced:
            _traced.move_to_end(key)
            return _traced[key]
    traced = jax.make_jaxpr(functools.partial(call, **params))(*operands)
    with _lock:
        traced = _traced.setdefault(key, traced)
        while len(_traced) > _traced_limit:
            _traced.popitem(last=False)
    return traced


def bind(primitive: Primitive, call: Callable[..., Any], operands: Sequence[Any], **params: Any) -> list[Any]:
    """Bind a primitive made by `define` to operands; `call(*operands, **params)` is what it computes.

    A table's array that is None becomes a placeholder here, and no earlier, so that none is a residual of a gradient.
    """
    operands = [absent(jnp.int32) if o is None else o for o in operands]
    operands = [o if isinstance(o, jax.core.Tracer) else jnp.asarray(o) for o in operands]
    return primitive.bind(*operands, call=_trace(call, operands, params), **params)


def trace_avals(call: Callable[..., Any], avals: Sequence[Any], params: dict[str, Any]) -> ClosedJaxpr:
    """The traced call for operands of which only the types are known."""
    return jax.make_jaxpr(functools.partial(call, **params))(*avals)


def without_call(params: dict[str, Any]) -> dict[str, Any]:
    """A primitive's parameters without the traced call, which belongs to one set of operands."""
    return {key: value for key, value in params.items() if key != "call"}


@functools.partial(jax.jit, static_argnames=("call",))
def _evaluate(*operands: Any, call: ClosedJaxpr) -> Any:
    return jaxpr_as_fun(call)(*operands)


def define(name: str) -> Primitive:
    """A primitive whose evaluation, shapes and lowering are those of the call that it is bound with."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *operands, call, **params: _evaluate(*operands, call=call))
    primitive.def_abstract_eval(lambda *operands, call, **params: list(call.out_avals))
    mlir.register_lowering(
        primitive,
        lambda ctx, *operands, call, **params: mlir.lower_fun(jaxpr_as_fun(call), multiple_results=True)(
            ctx, *operands
        ),
    )
    return primitive


def drop_unused_by(primitive: Primitive, rule: Callable[[Sequence[bool], Any], Any]) -> None:
    """Register what remains of an equation when only some results are used: rule(used, equation).

    jax 0.12 hands the rule which operands are live, between these two.
    """
    pe.dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def zero_tangent(value: Any) -> Any:
    """The symbolic zero tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


def add_group(args: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """A new group dimension in front of every operand that is there: of size 1 where the operand is not mapped."""
    grouped = []
    for arg, dim in zip(args, dims, strict=True):
        if dim is not None:
            arg = jnp.moveaxis(arg, dim, 0)
        elif not is_absent(arg):
            arg = jnp.expand_dims(arg, 0)
        grouped.append(arg)
    return grouped


def sum_groups(value: Any, groups: Sequence[Any], dtype: Any) -> Any:
    """Add a float32 result over the group dimensions that its operand shares (size 1 in `groups`), then round once."""
    shared = tuple(
        i for i, (have, want) in enumerate(zip(value.shape, groups, strict=False)) if want == 1 and have != 1
    )
    return (jnp.sum(value, shared, keepdims=True) if shared else value).astype(dtype)


def group_sizes(rank: int, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The broadcast sizes of the group dimensions."""
    sizes: list[Any] = [1] * rank
    for operand in operands:
        if not is_absent(operand):
            sizes = [have if size == 1 else size for size, have in zip(sizes, operand.shape, strict=False)]
    return tuple(sizes)


def local_groups(groups: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """One shard's part of a result's `groups`, from the shard's operands."""
    sizes = group_sizes(len(groups), operands)
    return tuple(1 if size == 1 else have for size, have in zip(groups, sizes, strict=True))
