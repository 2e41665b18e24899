"""The config that a call gets where none is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from jax_knnconv import _dispatch, _ffi, _kernel_choice, _readiness, _rules
from jax_knnconv._rules import HandlerCall
from jax_knnconv.config import KernelConfig

_H200_MULTIPROCESSORS = 132


def default_config(
    operation: Callable[..., Any],
    *operands: Any,
    multiprocessors: int = _H200_MULTIPROCESSORS,
    compute_capability: tuple[int, int] = (9, 0),
    shared_bytes: int | None = None,
    **options: Any,
) -> KernelConfig:
    """The config that ``operation(*operands, **options)`` runs with on an NVIDIA GPU.

        default_config(conv2d, jax.ShapeDtypeStruct((256, 32, 32, 64), "bfloat16"), weight, stride=2)

    A pure function of shapes, dtypes and the device's figures: nothing is computed, and no GPU is needed. It asks the
    CUDA module, whose launchers follow the same rules as they run; docs/handlers.md gives the rules with what they rest
    on. Given as ``config``, the answer gives the same bits as no config at all. With a config among the options, the
    answer is that one with its open fields filled in.

    Args:
        operation: `conv2d`, `conv2d_dinput`, `conv2d_dweight`, `knn_conv`, `knn_dinput` or `knn_dweight`, or a function
            that calls one of them once, as under `jax.vmap`.
        *operands: of the operation; arrays may be `jax.ShapeDtypeStruct`.
        multiprocessors: of the device; by default an H200's.
        compute_capability: major and minor; by default an H200's.
        shared_bytes: shared memory that a thread block may ask for; None: what the compute capability has.
        **options: the operation's keyword arguments.

    Returns:
        A config with kernel and, for the portable kernels, bm, bn, bk, wm, wn, ksteps, vec, async_copy and, of weight
        gradients, ksplit. Where kernel is "halo" or "hopper", these have their own tiles, which are no config's to set.

    Raises:
        ValueError: no tensor-core kernel takes the operands' dtypes, or can do what a given config asks for; the
            operation is not one call of one pass; a size has no value; the compute capability is not known and
            shared_bytes is not given.
        RuntimeError: there is no CUDA module here.
    """
    if shared_bytes is None:
        shared_bytes = _rules.shared_bytes(compute_capability)
    if shared_bytes is None:
        raise ValueError(f"shared_bytes: must be given for compute capability {compute_capability}, got None")
    call = _one_call(operation, operands, options)
    if call.static["implementation"] not in ("auto", "wmma", "hopper"):
        raise ValueError(f"implementation: {call.static['implementation']!r} has no tensor-core kernels to configure")
    unfit = _readiness.takes(call.operation, "cuda", call.operands)
    if unfit is not None:
        raise ValueError(f"operands: no tensor-core kernel computes this: {unfit}")
    if not all(isinstance(size, int) for operand in call.operands for size in operand.shape):
        raise ValueError("operands: got a size without a value, expected ints: the rules look at all of them")
    backend = _ffi.load_backend("cuda")
    if backend.module is None:
        raise RuntimeError(f"default_config asks the CUDA module for its rules: {backend.reason}")
    given, forced = _dispatch.for_gpu(call.operation, call.operands, call.static, call.static["implementation"])
    device = _rules.DeviceFigures(multiprocessors, compute_capability, shared_bytes)
    chosen = _rules.choose(backend.module, call._replace(operands=given), forced, device)
    return _kernel_choice.config_of(call.operation.rpartition("_")[2], chosen)


def _one_call(operation: Callable[..., Any], operands: tuple[Any, ...], options: dict[str, Any]) -> HandlerCall:
    """The one call of a handler in an operation, which is traced and not run."""
    leaves, structure = jax.tree.flatten((operands, options))
    is_array = [isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct) for leaf in leaves]

    def run(arrays: list[Any]) -> Any:
        rest = iter(arrays)
        given = [next(rest) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
        used_operands, used_options = jax.tree.unflatten(structure, given)
        return operation(*used_operands, **used_options)

    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    found = list(_handler_calls(jax.make_jaxpr(run)(arrays).jaxpr))
    if len(found) != 1 or found[0].operation not in _rules.PASSES:
        names = ", ".join(call.operation for call in found) or "none"
        passes = ", ".join(_rules.PASSES)
        raise ValueError(f"operation: expected a function that calls one pass once ({passes}), got calls of {names}")
    return found[0]


def _handler_calls(jaxpr: Jaxpr) -> Iterator[HandlerCall]:
    """The calls of handlers in a program, wherever they are nested."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name.removesuffix("_call")
        if name in _ffi.TARGETS and name != equation.primitive.name:
            if name != "cast_operands":
                yield HandlerCall(name, [operand.aval for operand in equation.invars], equation.params)
            continue
        for value in equation.params.values():
            inner = value.jaxpr if isinstance(value, ClosedJaxpr) else value
            if isinstance(inner, Jaxpr):
                yield from _handler_calls(inner)
