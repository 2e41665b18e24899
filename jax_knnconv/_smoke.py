"""One tiny executed call of each compiled target, held to a known answer.

Registration of a GPU target is deferred until its plugin loads, so success at import proves nothing; a call does.
All inputs are ones, so each expected value is a count of taps.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from jax_knnconv import _ffi

# Two source rows and two output rows; the first row's second tap is a hole. One channel in, one out, two slots.
_INDICES = np.array([[0, -1], [1, 0]], np.int32)
_SOURCE_ORDER = (
    np.array([[0, 0], [2, 0], [3, 0]], np.int32),  # offsets, low and high words
    np.array([0, 1, 1, -1], np.int32),  # output rows
    np.array([0, 1, 0, -1], np.int32),  # slots
)
_NONE_INT = np.zeros((0,), np.int32)
_NO_SLOT_ORDER = (_NONE_INT, _NONE_INT, _NONE_INT)
_PACKED = (64 * 9,)
_DENSE_PARTIALS, _KNN_PARTIALS = (1, 9 + 1), (1, 2 + 1)

_COUNTS_2D = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]], np.float32)
_WINDOW = {
    key: np.array(value, np.int64) for key, value in (("stride", [1, 1]), ("padding", [1, 1]), ("dilation", [1, 1]))
}
_EMPTY_ROWS = {"zero_empty_rows": np.int64(0)}


def _ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def _case(operation: str, platform: str) -> tuple[list[Any], dict[str, Any], list[np.ndarray], list[tuple[int, ...]]]:
    """Operands, attributes, expected results and workspace shapes of one operation's smoke call."""
    gpu = platform != "cpu"
    packed: tuple[int, ...] = (0,) if gpu else _PACKED
    dtype = np.float16 if gpu else np.float32  # GPU kernels take 16-bit operands
    image, kernel, one = _ones(1, 3, 3, 1, dtype=dtype), _ones(3, 3, 1, 1, dtype=dtype), _ones(1)
    x, weight, g = _ones(2, 1, dtype=dtype), _ones(2, 1, 1, dtype=dtype), _ones(2, 1, dtype=dtype)
    y_knn, dx_knn, dw_knn = np.array([[2], [3]]), np.array([[2], [1]]), np.array([2, 1]).reshape(2, 1, 1)
    nine = _COUNTS_2D.reshape(1, 3, 3, 1)
    cases: dict[str, Any] = {
        "cast_operands": ([_ones(3) * 1e5, _ones(3)], {}, [np.full(3, 65504.0), _ones(3)], []),
        "dense_forward": ([image, kernel, one], _WINDOW, [nine + 1], [packed]),
        "dense_dinput": ([image, kernel], _WINDOW, [nine], [packed]),
        "dense_dweight": ([image, image], _WINDOW, [_COUNTS_2D.reshape(3, 3, 1, 1), one * 9], [_DENSE_PARTIALS]),
        "knn_forward": ([x, weight, one, _INDICES, _NONE_INT], _EMPTY_ROWS, [y_knn], [packed]),
        "knn_dinput": ([g, weight, *_SOURCE_ORDER], {}, [dx_knn], [packed]),
        "knn_dweight": ([x, g, _INDICES, _NONE_INT, *_NO_SLOT_ORDER], _EMPTY_ROWS, [dw_knn, one * 2], [_KNN_PARTIALS]),
        "knn_backward": (
            [g, x, weight, _INDICES, _NONE_INT, *_SOURCE_ORDER, *_NO_SLOT_ORDER],
            _EMPTY_ROWS,
            [dx_knn, dw_knn, one * 2],
            [packed, _KNN_PARTIALS],
        ),
    }
    return cases[operation]


def error(operation: str, device: jax.Device) -> float:
    """Run one operation on a device: the largest absolute error of its results. Raises what the call raises."""
    operands, attributes, expected, workspace = _case(operation, device.platform)
    dtype = np.float16 if operation == "cast_operands" else np.float32
    results = [jax.ShapeDtypeStruct(value.shape, dtype) for value in expected]
    results += [jax.ShapeDtypeStruct(shape, np.float32) for shape in workspace]
    found: list[Any] = []

    def run() -> None:
        arrays = jax.device_put(operands, device)
        values = jax.jit(lambda *args: _ffi.call(operation, results, *args, **attributes))(*arrays)
        found.extend(jax.device_get(values[: len(expected)]))

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
    return max(float(np.max(np.abs(np.asarray(a, np.float64) - b))) for a, b in zip(found, expected, strict=True))


def run(operation: str, device: jax.Device) -> str | None:
    """None when the smoke call gave the right answer, else the reason in words."""
    try:
        worst = error(operation, device)
    except Exception as problem:
        return (
            f"its smoke call failed: {type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        )
    return None if worst == 0 else f"its smoke call was wrong by {worst}"
