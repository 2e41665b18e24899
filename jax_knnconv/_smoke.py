"""One tiny executed call of each compiled target, held to a known answer.

Registration of a GPU target is deferred until its plugin loads, so success at import proves nothing; a call does.
All inputs are ones, so each expected value is a count of taps, channels or batch entries.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_knnconv import _ffi

# Two source rows and two output rows; the first row's second tap is a hole. Two slots.
_INDICES = np.array([[0, -1], [1, 0]], np.int32)
_ROW_TAPS, _SOURCE_TAPS, _SLOT_TAPS = np.array([1, 2]), np.array([2, 1]), np.array([2, 1])
_SOURCE_ORDER = (
    np.array([[0, 0], [2, 0], [3, 0]], np.int32),  # offsets, low and high words
    np.array([0, 1, 1, -1], np.int32),  # output rows
    np.array([0, 1, 0, -1], np.int32),  # slots
)
_NONE_INT = np.zeros((0,), np.int32)
_NO_SLOT_ORDER = (_NONE_INT, _NONE_INT, _NONE_INT)
_EMPTY_ROWS = {"zero_empty_rows": np.int64(0)}

# Taps of each pixel of a 3x3 image under a 3x3 kernel; those of each slot are as many.
_PIXEL_TAPS = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]])
_WINDOW = {
    key: np.array(value, np.int64) for key, value in (("stride", [1, 1]), ("padding", [1, 1]), ("dilation", [1, 1]))
}


class _Sizes(NamedTuple):
    """What decides which kernels can take the call."""

    batch: int
    channels: int  # of x
    outputs: int
    dtype: Any
    packed: int  # elements of workspace
    slices: int  # of dweight's partial sums


# By family of kernels; None is a call that the kernels for all calls take. On a GPU, operands have 16 bits.
_CPU = _Sizes(1, 1, 1, np.float32, packed=64 * 9, slices=1)
_GPU = {
    None: _Sizes(1, 1, 1, np.float16, packed=0, slices=2),
    "halo": _Sizes(2, 4, 8, np.float16, packed=256, slices=4),  # packed: a stem's order of taps
    "hopper": _Sizes(64, 64, 64, np.float16, packed=0, slices=32),  # copies boxes of 64 channels and batch entries
}
# Dinput of a stem, which Hopper's kernels compute in one of their own.
_HOPPER_STEM = _Sizes(2, 3, 8, np.float16, packed=256, slices=0)


class _Call(NamedTuple):
    operands: list[Any]
    attributes: dict[str, Any]
    expected: list[np.ndarray]
    workspace: list[tuple[int, ...]]


def _ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def _dense(name: str, sizes: _Sizes) -> _Call:
    batch, channels, outputs, dtype, packed, slices = sizes
    x, g = (_ones(batch, 3, 3, count, dtype=dtype) for count in (channels, outputs))
    weight, bias = _ones(3, 3, channels, outputs, dtype=dtype), _ones(outputs)
    taps = _PIXEL_TAPS[..., None]
    if name == "forward":
        return _Call([x, weight, bias], _WINDOW, [np.broadcast_to(taps * channels + 1, g.shape)], [(packed,)])
    if name == "dinput":
        return _Call([g, weight], _WINDOW, [np.broadcast_to(taps * outputs, x.shape)], [(packed,)])
    dw, db = np.broadcast_to(taps[..., None] * batch, weight.shape), bias * 9 * batch
    return _Call([x, g], _WINDOW, [dw, db], [(slices, weight.size + outputs)])


def _knn(name: str, sizes: _Sizes) -> _Call:
    batch, channels, outputs, dtype, packed, slices = sizes
    x, g = (_ones(batch, 2, count, dtype=dtype) for count in (channels, outputs))
    weight, bias = _ones(2, channels, outputs, dtype=dtype), _ones(outputs)
    table = [_INDICES, _NONE_INT]
    if name == "forward":
        y = np.broadcast_to(_ROW_TAPS[:, None] * channels + 1, g.shape)
        return _Call([x, weight, bias, *table], _EMPTY_ROWS, [y], [(packed,)])
    dx = np.broadcast_to(_SOURCE_TAPS[:, None] * outputs, x.shape)
    if name == "dinput":
        return _Call([g, weight, *_SOURCE_ORDER], {}, [dx], [(packed,)])
    dw, db = np.broadcast_to(_SLOT_TAPS[:, None, None] * batch, weight.shape), bias * 2 * batch
    partials = (slices, weight.size + outputs)
    if name == "dweight":
        return _Call([x, g, *table, *_NO_SLOT_ORDER], _EMPTY_ROWS, [dw, db], [partials])
    operands = [g, x, weight, *table, *_SOURCE_ORDER, *_NO_SLOT_ORDER]
    return _Call(operands, _EMPTY_ROWS, [dx, dw, db], [(packed,), partials])


def _call(operation: str, platform: str, family: str | None, sizes: _Sizes | None = None) -> _Call:
    """One operation's smoke call, of the platform's sizes or others, which forces the family of kernels named."""
    if operation == "cast_operands":
        return _Call([_ones(3) * 1e5, _ones(3)], {}, [np.full(3, 65504.0), _ones(3)], [])
    if sizes is None:
        sizes = _CPU if platform == "cpu" else _GPU[family]
    layer, name = operation.split("_")
    call = (_dense if layer == "dense" else _knn)(name, sizes)
    return call if family is None else call._replace(attributes={**call.attributes, "kernel": family})


def _calls(operation: str, platform: str, family: str | None) -> list[tuple[str, _Call]]:
    """The target and the call of each kind of kernel that an operation stands for."""
    calls = [(operation, _call(operation, platform, family))]
    if family == "hopper" and operation in ("knn_dinput", "knn_backward"):
        calls.append(("knn_dinput", _call("knn_dinput", platform, family, _HOPPER_STEM)))
    return calls


def error(operation: str, device: jax.Device, family: str | None = None) -> float:
    """Run one operation on a device: the largest absolute error of its results. Raises what the call raises.

    Args:
      operation: a target's, as "dense_forward".
      device: that it runs on.
      family: of a GPU's kernels; None: those that take every call.
    """
    dtype = np.float16 if operation == "cast_operands" else np.float32
    calls = _calls(operation, device.platform, family)
    found: list[Any] = []

    def run() -> None:
        for target, call in calls:
            results = [jax.ShapeDtypeStruct(value.shape, dtype) for value in call.expected]
            results += [jax.ShapeDtypeStruct(shape, np.float32) for shape in call.workspace]
            one = functools.partial(_ffi.call, target, results, **call.attributes)
            values = jax.jit(one)(*jax.device_put(call.operands, device))
            found.extend(jax.device_get(values[: len(call.expected)]))

    # A thread of its own has no trace, mesh or default device of the program that is being lowered here.
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except Exception as problem:
            failure.append(problem)

    thread = threading.Thread(target=guarded, name="jax_knnconv smoke call")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    expected = [value for _, call in calls for value in call.expected]
    errors = [np.max(np.abs(np.asarray(a, np.float64) - b)) for a, b in zip(found, expected, strict=True)]
    return float(np.max(errors))  # NaN where one is


def run(operation: str, device: jax.Device, family: str | None = None) -> str | None:
    """None when the smoke call gave the right answer, else the reason in words."""
    try:
        worst = error(operation, device, family)
    except Exception as problem:
        return (
            f"its smoke call failed: {type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        )
    return None if worst == 0 else f"its smoke call was wrong by {worst}"
