"""Which implementation a call runs: decided when a program is lowered, from the platform it is lowered for.

A *handler primitive* stands for one call of a compiled handler. It has no derivative rules: those belong to the
primitives of `_bilinear.py` that contain it. Its lowering asks whether the compiled path can run on that platform and
emits the custom call, or warns once and emits the pure-JAX implementation instead.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_knnconv import _ffi, _kernel_choice, _rules, _smoke
from jax_knnconv._varying import result_type

IMPLEMENTATIONS = ("auto", "xla", "cpu", "wmma", "hopper")

# The platforms on which a named implementation exists.
_PLATFORMS_OF = {"auto": ("cpu", "cuda", "rocm"), "cpu": ("cpu",), "wmma": ("cuda", "rocm"), "hopper": ("cuda",)}


_MOST_GROUPS = 8  # Groups::kMaxRank in lib/common/layout.h


class FallbackWarning(RuntimeWarning):
    """A compiled kernel cannot run here; the pure-JAX implementation takes its place."""


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


_lock = threading.Lock()
_proven: set[tuple[str, str, str]] = set()  # (platform, device kind, operation) whose smoke call was right
_warned: set[tuple[str, str]] = set()  # (platform, reason) already told, until the path works again


def _device_of_each_kind(platform: str) -> list[Any]:
    """One device of each kind that this process has on a platform; none where it has none.

    A program is lowered for a platform: whichever device it is started on must be able to run it.
    """
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:
        return []
    return list({device.device_kind: device for device in reversed(devices)}.values())


def why_not(operation: str, platform: str, implementation: str = "auto") -> str | None:
    """The reason why a compiled operation cannot run on a platform, or None if it can or none of its devices is here.

    Success is remembered for each kind of device; a failure is looked at again every time, so that a path that works
    again is used again.
    """
    if platform not in _PLATFORMS_OF[implementation]:
        return f"implementation {implementation!r} does not exist on platform {platform!r}"
    devices = _device_of_each_kind(platform)
    if not devices:
        return None  # lowered for another machine: what is installed and runs there cannot be asked here
    backend = _ffi.load_backend(platform)
    if backend.reason is not None:
        return backend.reason
    if _ffi.target_name(operation) not in backend.targets:
        return f"target {_ffi.target_name(operation)!r} is not registered for platform {platform!r}"
    if implementation not in ("auto", "cpu") and implementation not in backend.implementations:
        return f"the {platform} module was built without the {implementation!r} kernels"
    failures = (_smoke_failure(operation, platform, device) for device in devices)
    return next((failure for failure in failures if failure is not None), None)


def _smoke_failure(operation: str, platform: str, device: Any) -> str | None:
    key = (platform, device.device_kind, operation)
    with _lock:
        if key in _proven:
            return None
    failure = _smoke.run(operation, device)
    with _lock:
        if failure is None:
            _proven.add(key)
            _warned.difference_update({entry for entry in _warned if entry[0] == platform})
    return failure


def takes(operation: str, platform: str, operands: Sequence[Any]) -> str | None:
    """The reason why no compiled kernel of a platform takes operands of these dtypes, or None if one does.

    Tensor cores multiply 16-bit numbers; the other float operand may be float32. Only the cast has no product.
    """
    if platform == "cpu" or operation == "cast_operands":
        return None
    floats = [operand.dtype for operand in operands if jnp.issubdtype(operand.dtype, jnp.floating)]
    if any(dtype.itemsize == 2 for dtype in floats):
        return None
    return f"its kernels take float16 or bfloat16 operands, got {', '.join(sorted({d.name for d in floats}))}"


def lacks(platform: str, operands: Sequence[Any], kernel: str | None = None) -> str | None:
    """The reason why this machine's GPU cannot multiply operands of these dtypes in this kernel, or None if it can."""
    bfloat16 = any(operand.dtype == jnp.bfloat16 for operand in operands)
    if platform != "cuda" or not (bfloat16 or kernel == "hopper"):
        return None
    for device in _device_of_each_kind(platform):
        capability = getattr(device, "compute_capability", None)
        if capability is None:
            continue
        if kernel == "hopper" and float(capability) != 9:
            return f"the 'hopper' kernels need compute capability 9.0, {device.device_kind} has {capability}"
        if bfloat16 and float(capability) < 8:
            return f"products of bfloat16 need compute capability 8.0, {device.device_kind} has {capability}"
    return None


def _check_here(operation: str, operands: Sequence[Any], static: dict[str, Any], forced: dict[str, Any]) -> None:
    """Raise ValueError where a GPU is here and has no kernel for what a call forces."""
    for device in _device_of_each_kind("cuda"):
        _rules.check(_ffi.load_backend("cuda").module, operation, operands, static, forced, device)


def _slices_here(operation: str, operands: Sequence[Any], static: dict[str, Any], forced: dict[str, Any]) -> int | None:
    """Slices of partial sums that a call needs on the GPUs that are here; None where there is none to ask."""
    devices = _device_of_each_kind("cuda")
    return _rules.partial_slices(_ffi.load_backend("cuda").module, operation, operands, static, forced, devices)


def _warn_once(operation: str, platform: str, reason: str) -> None:
    with _lock:
        if (platform, reason) in _warned:
            return
        _warned.add((platform, reason))
    warnings.warn(
        f"jax_knnconv: the compiled {operation} cannot run on {platform}: {reason}. "
        'Using the pure-JAX implementation ("xla") instead.',
        FallbackWarning,
        stacklevel=2,
    )


def _lower_fallback(handler: Handler, ctx: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    # A shard computes by itself: the axes over which its operands vary are no concern of the function, nor is the mesh
    # around: under Explicit axes arrays would carry shardings, which mean nothing in a program of one device.
    local = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    function = functools.partial(handler.fallback, **static)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return mlir.lower_fun(function, multiple_results=True)(ctx.replace(avals_in=local), *operands)


def group_rank(static: dict[str, Any]) -> int:
    """Leading dimensions of a call's operands that are groups, from its primitive's parameters."""
    return static.get("group_rank", len(static.get("groups", ())))


def for_gpu(
    operation: str, operands: Sequence[Any], static: dict[str, Any], implementation: str
) -> tuple[list[Any], dict[str, Any]]:
    """A call as a GPU's handler gets it: its operands, and the attributes that force a kernel.

    Raises:
      ValueError: a config that no kernel can honour.
    """
    spec = static.get("spec")
    given = _kernel_choice.rounded_first(operation, operands, spec)
    return given, _kernel_choice.attributes(operation, given, spec, group_rank(static), implementation)


def _lower(handler: Handler, platform: str, ctx: Any, *operands: Any, implementation: str, **static: Any) -> Any:
    unfit = takes(handler.operation, platform, ctx.avals_in)
    if unfit is not None and implementation == "auto":
        implementation = "xla"  # what "auto" means for these dtypes, and nothing to warn of
    if implementation != "xla":
        groups = group_rank(static)
        if groups > _MOST_GROUPS:
            unfit = f"its kernels take at most {_MOST_GROUPS} group dimensions (nested vmaps), got {groups}"
        avals: list[Any] = list(ctx.avals_in)
        forced: dict[str, Any] = {}
        if platform != "cpu":
            avals, forced = for_gpu(handler.operation, avals, static, implementation)
        kernel = forced.get("kernel")
        needed = "hopper" if kernel == "hopper" else implementation
        reason = unfit or lacks(platform, ctx.avals_in, kernel) or why_not(handler.operation, platform, needed)
        if reason is None:
            if platform == "cuda" and forced:
                _check_here(handler.operation, avals, static, forced)
            attributes = handler.attributes(*avals, **static)
            slices = _slices_here(handler.operation, avals, static, forced) if platform == "cuda" else None
            extra = handler.workspace(*avals, platform=platform, partial_slices=slices, **static)
            results = [*ctx.avals_out, *(jax.core.ShapedArray(s.shape, s.dtype) for s in extra)]
            given = [
                operand if have.dtype == aval.dtype else _cast(ctx, operand, have, aval.dtype)
                for operand, have, aval in zip(operands, ctx.avals_in, avals, strict=True)
            ]
            full = ctx.replace(avals_in=avals, avals_out=results)
            values = _ffi.lower_call(handler.operation, full, *given, **attributes, **forced)
            return values[: len(ctx.avals_out)]
        _warn_once(handler.operation, platform, reason)
    return _lower_fallback(handler, ctx, operands, static)


def _cast(ctx: Any, operand: Any, aval: Any, dtype: Any) -> Any:
    """The operand of a call in another dtype, in a pass of its own."""
    have, to = (jax.core.ShapedArray(aval.shape, d) for d in (aval.dtype, dtype))
    function = mlir.lower_fun(lambda x: [jax.lax.convert_element_type(x, dtype)], multiple_results=True)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        (value,) = function(ctx.replace(avals_in=[have], avals_out=[to]), operand)
    return value


def handler_primitive(handler: Handler) -> Primitive:
    """The primitive of one handler call, lowered by platform."""
    primitive = Primitive(f"{handler.operation}_call")
    primitive.multiple_results = True

    def abstract_eval(*operands: Any, implementation: str, **static: Any) -> list[Any]:
        del implementation
        return [result_type(s.shape, s.dtype, operands) for s in handler.results(*operands, **static)]

    primitive.def_abstract_eval(abstract_eval)

    @functools.partial(jax.jit, static_argnames=("static",))
    def evaluate(*operands: Any, static: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*operands, **dict(static))

    def impl(*operands: Any, **static: Any) -> Any:
        # Under disable_jit and debug_nans JAX evaluates one primitive after the other; this one only exists compiled.
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            return evaluate(*operands, static=tuple(static.items()))

    primitive.def_impl(impl)
    for platform in _ffi.FFI_PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(_lower, handler, platform), platform=platform)

    def lower_elsewhere(ctx: Any, *operands: Any, implementation: str, **static: Any) -> Any:
        if implementation not in ("auto", "xla"):
            _warn_once(handler.operation, "this platform", f"implementation {implementation!r} does not exist on it")
        return _lower_fallback(handler, ctx, operands, static)

    mlir.register_lowering(primitive, lower_elsewhere)
    return primitive
