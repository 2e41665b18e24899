"""Which implementation a call runs: decided when a program is lowered, from the platform it is lowered for.

A *handler primitive* stands for one call of a compiled handler. It has no derivative rules: those belong to the
primitives of `_bilinear.py` that contain it. Its lowering asks whether the compiled path can run on that platform and
emits the custom call, or warns once and emits the pure-JAX implementation instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_knnconv import _ffi, _kernel_choice, _padding
from jax_knnconv._readiness import lacks, partial_slices, takes, warn_once, why_not, working_kernels
from jax_knnconv._rules import HandlerCall
from jax_knnconv._varying import result_type

_PURE_JAX = 'the pure-JAX implementation ("xla")'
_MOST_GROUPS = 8  # Groups::kMaxRank in lib/common/layout.h


class Handler(NamedTuple):
    """One compiled handler and the pure-JAX function that computes the same.

    Static parameters are passed to every callable by keyword; workspace also gets the platform that is lowered for, and
    how many slices of partial sums a weight gradient needs there, if that is known.
    """

    operation: str
    results: Callable[..., Sequence[jax.ShapeDtypeStruct]]  # (*operands, **static) -> shapes of the results
    workspace: Callable[..., Sequence[jax.ShapeDtypeStruct]]  # (*operands, platform=, partial_slices=, **static)
    attributes: Callable[..., dict[str, Any]]
    fallback: Callable[..., Sequence[jax.Array]]  # (*operands, **static) -> results
    # (*operands, **static) -> the passes that a call is made of, where these are several
    passes: Callable[..., Sequence[HandlerCall]] | None = None

    def calls(self, operands: Sequence[Any], static: dict[str, Any]) -> Sequence[HandlerCall]:
        """What the rules that choose a GPU's kernels know a call as."""
        if self.passes is None:
            return [HandlerCall(self.operation, operands, static)]
        return self.passes(*operands, **static)


def _lower_jax(function: Callable[..., Any], ctx: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    # A shard computes by itself: the axes over which its operands vary are no concern of the function, nor is the mesh
    # around: under Explicit axes arrays would carry shardings, which mean nothing in a program of one device.
    local = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    function = functools.partial(function, **static)
    # How strict a user wants jax.numpy to be with their own code is no concern of it either.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())), jax.numpy_rank_promotion("allow"):
        return mlir.lower_fun(function, multiple_results=True)(ctx.replace(avals_in=local), *operands)


def group_rank(static: Mapping[str, Any]) -> int:
    """Leading dimensions of a call's operands that are groups, from its primitive's parameters."""
    return static.get("group_rank", len(static.get("groups", ())))


def for_gpu(
    operation: str, operands: Sequence[Any], static: Mapping[str, Any], implementation: str
) -> tuple[list[Any], dict[str, Any]]:
    """A call as a GPU's handler gets it: its operands, and the attributes that force a kernel.

    Raises:
      ValueError: a config that no kernel can honour.
    """
    spec = static.get("spec")
    given = _kernel_choice.rounded_first(operation, _padding.padded(operation, operands, spec), spec)
    return given, _kernel_choice.attributes(operation, given, spec, group_rank(static), implementation)


def _lower(handler: Handler, platform: str, ctx: Any, *operands: Any, implementation: str, **static: Any) -> Any:
    operation = handler.operation
    unfit = takes(operation, platform, ctx.avals_in, static.get("spec"))
    if unfit is not None and implementation == "auto":
        implementation = "xla"  # what "auto" means for such a call, and nothing to warn of
    if implementation != "xla":
        groups = group_rank(static)
        if groups > _MOST_GROUPS:
            unfit = f"its kernels take at most {_MOST_GROUPS} group dimensions (nested vmaps), got {groups}"
        avals: list[Any] = list(ctx.avals_in)
        forced: dict[str, Any] = {}
        if platform != "cpu":
            avals, forced = for_gpu(operation, avals, static, implementation)
        kernel = forced.get("kernel")
        needed = "hopper" if kernel == "hopper" else implementation
        reason = unfit or lacks(platform, ctx.avals_in, kernel) or why_not(operation, platform, needed)
        slices: int | None = None
        if reason is None and platform == "cuda":
            named = getattr(getattr(static.get("spec"), "config", None), "kernel", None)
            calls = handler.calls(avals, static)
            forced, reason = working_kernels(operation, calls, forced, named)
            slices = partial_slices(calls, forced)
        if reason is None:
            attributes = handler.attributes(*avals, **static)
            extra = handler.workspace(*avals, platform=platform, partial_slices=slices, **static)
            given = [
                _converted(ctx, operand, have, aval)
                for operand, have, aval in zip(operands, ctx.avals_in, avals, strict=True)
            ]
            results = [jax.core.ShapedArray(s.shape, s.dtype) for s in (*handler.results(*avals, **static), *extra)]
            full = ctx.replace(avals_in=avals, avals_out=results)
            values = _ffi.lower_call(operation, full, *given, **attributes, **forced)
            wanted = zip(values, results, ctx.avals_out, strict=False)  # and not the workspace
            return [_converted(ctx, value, have, want) for value, have, want in wanted]
        warn_once(f"the compiled {operation}", platform, reason, _PURE_JAX)
    return _lower_jax(handler.fallback, ctx, operands, static)


def _converted(ctx: Any, operand: Any, have: Any, want: Any) -> Any:
    """An array in another dtype, and with zeros behind its last dimensions or without what is there, in one pass."""
    if have.shape == want.shape and have.dtype == want.dtype:
        return operand

    def convert(x: jax.Array) -> list[jax.Array]:
        x = lax.convert_element_type(x, want.dtype)
        return [
            lax.pad(x, x.dtype.type(0), [(0, size - old, 0) for old, size in zip(x.shape, want.shape, strict=True)])
        ]

    avals = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in (have, want)]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        (value,) = mlir.lower_fun(convert, multiple_results=True)(
            ctx.replace(avals_in=avals[:1], avals_out=avals[1:]), operand
        )
    return value


def _compiled_primitive(name: str, results: Callable[..., Sequence[jax.ShapeDtypeStruct]]) -> Primitive:
    """A primitive that exists in compiled programs only; its lowering is still to be registered."""
    primitive = Primitive(name)
    primitive.multiple_results = True

    def abstract_eval(*operands: Any, implementation: str = "auto", **static: Any) -> list[Any]:
        del implementation
        return [result_type(s.shape, s.dtype, operands) for s in results(*operands, **static)]

    primitive.def_abstract_eval(abstract_eval)

    @functools.partial(jax.jit, static_argnames=("static",))
    def evaluate(*operands: Any, static: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*operands, **dict(static))

    def impl(*operands: Any, **static: Any) -> Any:
        # Under disable_jit and debug_nans JAX evaluates one primitive after the other.
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            return evaluate(*operands, static=tuple(static.items()))

    primitive.def_impl(impl)
    return primitive


def jax_primitive(
    name: str, results: Callable[..., Sequence[jax.ShapeDtypeStruct]], function: Callable[..., Sequence[jax.Array]]
) -> Primitive:
    """The primitive of a call that is pure JAX on every platform.

    Args:
      name: the primitive's.
      results: (*operands, **static) -> shapes of the results.
      function: (*operands, **static) -> results. It is traced when a program is lowered, as one device computes it.
    """
    primitive = _compiled_primitive(name, results)

    def lower(ctx: Any, *operands: Any, **static: Any) -> Any:
        return _lower_jax(function, ctx, operands, static)

    mlir.register_lowering(primitive, lower)
    return primitive


def handler_primitive(handler: Handler) -> Primitive:
    """The primitive of one handler call, lowered by platform."""
    primitive = _compiled_primitive(f"{handler.operation}_call", handler.results)
    for platform in _ffi.FFI_PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(_lower, handler, platform), platform=platform)

    def lower_elsewhere(ctx: Any, *operands: Any, implementation: str, **static: Any) -> Any:
        if implementation not in ("auto", "xla"):
            reason = f"implementation {implementation!r} does not exist on it"
            warn_once(f"the compiled {handler.operation}", "this platform", reason, _PURE_JAX)
        return _lower_jax(handler.fallback, ctx, operands, static)

    mlir.register_lowering(primitive, lower_elsewhere)
    return primitive
