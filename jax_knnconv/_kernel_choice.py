"""What a call asks of the GPU's kernels, as attributes of its handler: `kernel`, `tile` and `ksplit`.

docs/handlers.md says what they mean there. Only a call lowered for a GPU comes here: elsewhere nothing has a tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_knnconv.config import KernelConfig

_ANY_TILE = -1  # the shape decides
_BY_ELEMENT, _BY_VECTOR, _BY_VECTOR_THROUGH_REGISTERS = 0, 1, 2  # the attribute `tile`'s staging

# Rows and columns of the portable kernels' tiles.
_WIDTHS = {
    "forward": {"bm": (16, 64, 128), "bn": (32, 64, 128)},
    "dinput": {"bm": (16, 64, 128), "bn": (32, 64, 128)},
    "dweight": {"bm": (32, 64, 128), "bn": (32, 64, 128)},
}
# Fields with a value that is the same in every tile, so that only that one can be asked for.
_FIXED = {
    "forward": {"bk": 64, "rb": 1, "ksteps": 2},
    "dinput": {"bk": 64, "rb": 1, "ksteps": 2},
    "dweight": {"rb": 1, "ksteps": 3},
}
_FROM_TILE = {"forward": ("wm", "wn"), "dinput": ("wm", "wn"), "dweight": ("bk", "wm", "wn")}  # follow from bm and bn
_OPERANDS = {"forward": ("x", "weight"), "dinput": ("g", "weight"), "dweight": ("x", "g")}
_WARPS = 4
VECTOR = 8  # 16-bit elements of a 16-byte copy
_ROWS_WITHOUT_COPIES = 64  # of tiles that asynchronous copies do not fill; of dweight's where vectors do without them
_CELLS_BATCH = 8  # up to which dinput in bfloat16 adds up the taps of a cell


def _part_of_tile(pass_name: str, rows: int, columns: int) -> dict[str, int]:
    """What follows from a tile's rows and columns: a warp's share of it, and dweight's depth of a step.

    `WarpGrid` in lib/gpu/tap_gemm_kernel.h, `TileOf` in dweight_launch.h and `StepPositions` in dweight_plan.h.
    """
    if pass_name == "dweight":
        across = 4 if (rows, columns) == (32, 128) else 1 if (rows, columns) == (128, 32) else 2
        depth = 64 if rows * columns >= 128 * 128 or rows * columns <= 64 * 64 else 32
        return {"bk": depth, "wm": rows * across // _WARPS, "wn": columns // across}
    if rows == 16:
        return {"wm": 16, "wn": columns // min(_WARPS, columns // 16)}
    across = 1 if columns == 32 else 2
    return {"wm": rows * across // _WARPS, "wn": columns // across}


class _Call(NamedTuple):
    """What of one pass's operands decides how they are staged. A size that has no value yet counts as one that fits."""

    channels: Any  # C_in
    outputs: Any  # C_out
    mixed: bool  # one operand is float32, and rounded as it is read
    cells: bool  # dinput adds up the taps of a cell first


def named(operation: str, operands: Sequence[Any]) -> dict[str, Any]:
    """A handler's float operands but the bias, by name, in the order of its signature; none of the cast."""
    names = ("g", "x", "weight") if operation.endswith("_backward") else _OPERANDS.get(operation.rpartition("_")[2], ())
    return dict(zip(names, operands, strict=False))


def channels_of(given: dict[str, Any]) -> tuple[Any, Any]:
    """C_in and C_out of operands by name."""
    channels = given["x"].shape[-1] if "x" in given else given["weight"].shape[-2]
    outputs = given["g"].shape[-1] if "g" in given else given["weight"].shape[-1]
    return channels, outputs


def _describe(operation: str, pass_name: str, operands: Sequence[Any], group_rank: int) -> _Call:
    """Read a handler's operands, of which the first stand in the order of its signature."""
    given = named(operation, operands)
    channels, outputs = channels_of(given)
    cells = False
    if operation.startswith("knn") and pass_name == "dinput" and given["weight"].dtype == jnp.bfloat16:
        batch = given["g"].shape[group_rank:-2]
        cells = all(isinstance(size, int) for size in batch) and math.prod(batch) <= _CELLS_BATCH
    first, second = (given[name] for name in _OPERANDS[pass_name])
    return _Call(channels, outputs, first.dtype != second.dtype, cells)


def rounded_first(operation: str, operands: Sequence[Any], spec: Any) -> list[Any]:
    """The operands as the handler gets them: a float32 x in the compute dtype where a pass of its own rounds it first.

    Lines of a multiple of 16 bytes are staged for every tap that reads them, in float32 at twice the bytes, and by
    asynchronous copies or the copy engine in the compute dtype alone. By elements, x is rounded as it is read.

    Args:
      operation: the handler's, as "dense_forward".
      operands: of the handler; their shapes and dtypes are looked at.
      spec: of the call; its config is looked at.
    """
    by_name = named(operation, operands)
    config = getattr(spec, "config", None)
    given = list(operands)
    if "x" not in by_name or (config is not None and config.vec is False):
        return given
    x, dtype = by_name["x"], by_name["weight" if "weight" in by_name else "g"].dtype
    lines = isinstance(x.shape[-1], int) and x.shape[-1] % VECTOR == 0
    if x.dtype == jnp.float32 and dtype.itemsize == 2 and lines:
        given[list(by_name).index("x")] = jax.core.ShapedArray(x.shape, dtype)
    return given


def _by_element(config: KernelConfig, pass_name: str, call: _Call) -> str | None:
    """The reason why a pass's tiles are not filled 16 bytes at a time, or None if they are."""
    if config.vec is False:
        return "vec=False"
    if call.mixed:
        return "a float32 operand"
    lines = {"C_out": call.outputs} if pass_name == "dinput" else {"C_in": call.channels, "C_out": call.outputs}
    for name, size in lines.items():
        if isinstance(size, int) and size % VECTOR:
            return f"{name} = {size} is no multiple of {VECTOR}"
    return None


def _not_copied(config: KernelConfig, call: _Call) -> str | None:
    """The reason why asynchronous copies do not fill tiles that 16 bytes at a time do, or None if they do."""
    if config.async_copy is False:
        return "async_copy=False"
    return f"bfloat16 with a batch of at most {_CELLS_BATCH}" if call.cells else None


def attributes(
    operation: str, operands: Sequence[Any], spec: Any, group_rank: int, implementation: str
) -> dict[str, Any]:
    """The attributes that force what a call's implementation and config ask for.

    Args:
      operation: the handler's, as "dense_forward".
      operands: of the handler; their shapes and dtypes are looked at.
      spec: of the call; its config is looked at. A call without one (the cast) has nothing to choose.
      group_rank: leading dimensions of the operands that are groups.
      implementation: "auto", "wmma" or "hopper".

    Raises:
      ValueError: a config that no kernel can honour.
    """
    if operation == "cast_operands":
        return {}
    found: dict[str, Any] = {}
    if implementation in ("wmma", "hopper"):
        found["kernel"] = implementation
    config = getattr(spec, "config", None)
    if config is None:
        return found
    kernel = _kernel(config, implementation)
    if kernel is not None:
        found["kernel"] = kernel
    pass_names = ("dinput", "dweight") if operation.endswith("_backward") else (operation.rpartition("_")[2],)
    for name in pass_names:
        _check(config, name, _describe(operation, name, operands, group_rank))
    staging = _staging(config)
    tile = [_ANY_TILE if size is None else size for size in (config.bm, config.bn, staging)]
    if tile != [_ANY_TILE] * 3:
        found["tile"] = np.array(tile, np.int64)
    if config.ksplit is not None and "dweight" in pass_names:
        found["ksplit"] = np.int64(config.ksplit)
    if kernel is None and ("tile" in found or "ksplit" in found):
        found["kernel"] = "portable"
    return found


def _kernel(config: KernelConfig, implementation: str) -> str | None:
    """The family of kernels that a config names, in agreement with the implementation."""
    fits = {"wmma": ("portable", "halo"), "hopper": ("hopper",)}.get(implementation)
    if config.kernel is not None and fits is not None and config.kernel not in fits:
        raise ValueError(
            f"KernelConfig.kernel: got {config.kernel!r} with implementation={implementation!r}, expected one of "
            f"{', '.join(map(repr, fits))} or None"
        )
    tiles = [name for name in ("bm", "bn", "ksplit", "vec", "async_copy") if getattr(config, name) is not None]
    kernel = config.kernel or ("hopper" if implementation == "hopper" else None)
    if tiles and kernel not in (None, "portable"):
        raise ValueError(
            f"KernelConfig.{tiles[0]}: got {getattr(config, tiles[0])} for kernel {kernel!r}, which has its own, "
            f"expected None: it is the portable kernels' to choose"
        )
    return config.kernel


def _check(config: KernelConfig, pass_name: str, call: _Call) -> None:
    """Raise where a pass ships no such tile, or not for such operands."""
    for name, widths in _WIDTHS[pass_name].items():
        value = getattr(config, name)
        if value is not None and value not in widths:
            raise ValueError(
                f"KernelConfig.{name}: got {value}, expected one of {', '.join(map(str, widths))}, "
                f"which {pass_name} ships"
            )
    for name, only in _FIXED[pass_name].items():
        value = getattr(config, name)
        if value is not None and value != only:
            raise ValueError(f"KernelConfig.{name}: got {value}, expected {only}, which {pass_name} ships alone")
    _check_parts(config, pass_name)
    if config.async_copy and config.vec is False:
        raise ValueError(
            "KernelConfig.async_copy: got True with vec=False, expected None: elements are not staged asynchronously"
        )
    by_element = _by_element(config, pass_name, call)
    reason = by_element or _not_copied(config, call)
    if reason is None or config.bm is None:
        return
    if pass_name == "dweight" and by_element is not None:
        if config.bm == 64:
            raise ValueError(
                f"KernelConfig.bm: got 64, expected one of 32, 128, which dweight ships where it stages elements "
                f"({reason})"
            )
    elif config.bm != _ROWS_WITHOUT_COPIES:
        raise ValueError(
            f"KernelConfig.bm: got {config.bm}, expected {_ROWS_WITHOUT_COPIES}, which {pass_name} ships alone where "
            f"asynchronous copies do not fill tiles ({reason})"
        )


def _check_parts(config: KernelConfig, pass_name: str) -> None:
    """Raise where a field that follows from bm and bn asks for something else."""
    asked = {name: getattr(config, name) for name in _FROM_TILE[pass_name] if getattr(config, name) is not None}
    for name, value in asked.items():
        if config.bm is None or config.bn is None:
            raise ValueError(
                f"KernelConfig.{name}: got {value} with bm={config.bm}, bn={config.bn}, expected both beside it, from "
                f"which {name} of {pass_name} follows"
            )
        ships = _part_of_tile(pass_name, config.bm, config.bn)[name]
        if value != ships:
            raise ValueError(
                f"KernelConfig.{name}: got {value}, expected {ships}, which {pass_name} ships alone in a tile of bm "
                f"{config.bm}, bn {config.bn}"
            )


def _staging(config: KernelConfig) -> int | None:
    if config.vec is False:
        return _BY_ELEMENT
    if config.async_copy is False:
        return _BY_VECTOR_THROUGH_REGISTERS
    return None if config.vec is None and config.async_copy is None else _BY_VECTOR


def config_of(pass_name: str, chosen: dict[str, Any]) -> KernelConfig:
    """The config that a choice of the compiled module is: its kernel, and the portable kernels' tile."""
    if chosen["kernel"] != "portable":
        return KernelConfig(kernel=chosen["kernel"])
    rows, columns = chosen["rows"], chosen["columns"]
    return KernelConfig(
        bm=rows,
        bn=columns,
        **(_FIXED[pass_name] | _part_of_tile(pass_name, rows, columns)),
        ksplit=chosen["slices"] if pass_name == "dweight" else None,
        async_copy=chosen["asynchronous"],
        vec=chosen["vector"],
        kernel="portable",
    )
