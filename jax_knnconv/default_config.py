"""The config that a call gets where none is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from jax_knnconv import _dispatch, _ffi, _kernel_choice, _readiness, _rules
from jax_knnconv._reading import check_size
from jax_knnconv._rules import HandlerCall
from jax_knnconv.config import KernelConfig

_H200_MULTIPROCESSORS = 132
_MOST_MULTIPROCESSORS = 2**15 - 1  # that rules count


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
        ValueError: no tensor-core kernel takes the operands' dtypes or the window, or can do what a given config asks
            for; the operation is not one call of one pass; a size has no value; the compute capability is not known and
            shared_bytes is not given; no GPU has so many multiprocessors.
        RuntimeError: there is no CUDA module here.
    """
    if check_size("multiprocessors", multiprocessors, 1) > _MOST_MULTIPROCESSORS:
        raise ValueError(f"multiprocessors: got {multiprocessors}, expected at most {_MOST_MULTIPROCESSORS}")
    if shared_bytes is None:
        shared_bytes = _rules.shared_bytes(compute_capability)
    if shared_bytes is None:
        raise ValueError(
            f"shared_bytes: got None, expected bytes: what compute capability {compute_capability} has is not known"
        )
    call = _one_call(operation, operands, options)
    implementation, configured = call.static["implementation"], ("auto", "wmma", "hopper")
    if implementation not in configured:
        raise ValueError(
            f"implementation: got {implementation!r}, expected one with tensor-core kernels to configure, "
            f"{', '.join(map(repr, configured))}"
        )
    unfit = _readiness.takes(call.operation, "cuda", call.operands, call.static.get("spec"))
    if unfit is not None:
        raise ValueError(f"operands: got what no tensor-core kernel computes ({unfit}), expected what one does")
    if not _rules.is_known(call):
        raise ValueError(
            "operands: got a size or a number of the window without a value, or too large, expected ints less than "
            "2**31: the rules look at all of them"
        )
    backend = _ffi.load_backend("cuda")
    if backend.module is None:
        raise RuntimeError(f"default_config asks the CUDA module for its rules: {backend.reason}")
    given, forced = _dispatch.for_gpu(call.operation, call.operands, call.static, implementation)
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
        raise ValueError(f"operation: got calls of {names}, expected a function that calls one pass once ({passes})")
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
