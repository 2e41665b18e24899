"""What a call asks of the GPU's kernels, as attributes of its handler: `kernel`, `tile` and `ksplit`.

docs/handlers.md says what they mean there. Only a call lowered for a GPU comes here: elsewhere nothing has a tile.
"""

from __future__ import annotations

from typing import Any

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
_FROM_TILE = {"forward": ("wm", "wn"), "dinput": ("wm", "wn"), "dweight": ("bk", "wm", "wn")}


def attributes(operation: str, spec: Any, implementation: str) -> dict[str, Any]:
    """The attributes that force what a call's implementation and config ask for.

    Args:
      operation: the handler's, as "dense_forward".
      spec: of the call; its config is looked at. A call without one (the cast) has nothing to choose.
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
        _check(config, name, kernel)
    staging = _staging(config, "dweight" in pass_names)
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
            f"KernelConfig: with implementation={implementation!r}, kernel must be one of {', '.join(map(repr, fits))} "
            f"or None, got {config.kernel!r}"
        )
    tiles = [name for name in ("bm", "bn", "ksplit", "vec", "async_copy") if getattr(config, name) is not None]
    kernel = config.kernel or ("hopper" if implementation == "hopper" else None)
    if tiles and kernel not in (None, "portable"):
        raise ValueError(
            f"KernelConfig: {tiles[0]} is the portable kernels' to choose, kernel {kernel!r} has its own; got "
            f"{tiles[0]}={getattr(config, tiles[0])}"
        )
    return config.kernel


def _check(config: KernelConfig, pass_name: str, kernel: str | None) -> None:
    """Raise where a pass ships no such tile."""
    for name, widths in _WIDTHS[pass_name].items():
        value = getattr(config, name)
        if value is not None and value not in widths:
            raise ValueError(
                f"KernelConfig: {pass_name} ships tiles of {name} {', '.join(map(str, widths))}, got {value}"
            )
    for name, only in _FIXED[pass_name].items():
        value = getattr(config, name)
        if value is not None and value != only:
            raise ValueError(f"KernelConfig: {pass_name} ships {name} {only} alone, got {value}")
    for name in _FROM_TILE[pass_name]:
        value = getattr(config, name)
        if value is not None:
            raise ValueError(
                f"KernelConfig: {name} of {pass_name} follows from bm and bn, and must be None; got {value}"
            )
    if pass_name == "dweight" and config.async_copy is False and config.vec:
        raise ValueError(
            "KernelConfig: dweight stages 16 bytes at a time by asynchronous copies alone, got vec=True with "
            "async_copy=False"
        )
    if config.async_copy and config.vec is False:
        raise ValueError("KernelConfig: elements are not staged asynchronously, got vec=False with async_copy=True")


def _staging(config: KernelConfig, has_dweight: bool) -> int | None:
    if config.vec is False:
        return _BY_ELEMENT
    if config.async_copy is False:
        return _BY_ELEMENT if has_dweight else _BY_VECTOR_THROUGH_REGISTERS
    return None if config.vec is None and config.async_copy is None else _BY_VECTOR
