"""Checks shared by the public operations. Each error names the argument, what was given and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_knnconv._readiness import IMPLEMENTATIONS
from jax_knnconv._reading import INT32_MAX
from jax_knnconv.config import KernelConfig
from jax_knnconv.table import NeighborTable, check_arrays


def implementation(value: Any) -> str:
    """The name of an implementation."""
    if not isinstance(value, str) or value not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: got {value!r}, expected one of {', '.join(map(repr, IMPLEMENTATIONS))}")
    return value


def config(value: Any) -> KernelConfig | None:
    """A kernel config or None."""
    if value is not None and not isinstance(value, KernelConfig):
        raise TypeError(f"config: got {type(value).__name__}, expected a KernelConfig or None")
    return value


def rank(name: str, value: Any, at_least: int, layout: str) -> None:
    """An operand with at least so many dimensions."""
    if value.ndim < at_least:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {layout}, at least {at_least} dimensions")


def exact_rank(name: str, value: Any, expected: int, layout: str) -> None:
    """An operand with exactly so many dimensions."""
    if value.ndim != expected:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {layout}, {expected} dimensions")


def same(name: str, got: Any, other: str, expected: Any) -> None:
    """Two sizes that must agree."""
    if got != expected:
        raise ValueError(f"{name}: got {got}, expected {expected}, {other}")


def table(value: Any) -> NeighborTable:
    """A table and nothing else, whole."""
    if not isinstance(value, NeighborTable):
        hint = ": NeighborTable(indices, num_inputs=...) makes one of indices" if hasattr(value, "shape") else ""
        raise TypeError(f"table: got {type(value).__name__}, expected a NeighborTable{hint}")
    check_arrays(value)
    return value


def rows(name: str, value: Any, layout: str, expected: int, of: str, groups: tuple[int, ...]) -> None:
    """An operand [..., rows, channels] of so many rows; it begins with the table's `groups`."""
    rank(name, value, 2, layout)
    same(f"{name}'s rows (its second to last dimension)", value.shape[-2], of, expected)
    if value.ndim - 2 < len(groups) or tuple(value.shape[: len(groups)]) != tuple(groups):
        raise ValueError(
            f"{name}: got shape {tuple(value.shape)}, expected one that begins with the table's dimensions "
            f"{tuple(groups)}, one table a sample"
        )


def bias(value: Any, columns: Any) -> None:
    """A bias of one value an output channel."""
    if value is not None and tuple(value.shape) != (columns,):
        raise ValueError(f"bias: got shape {tuple(value.shape)}, expected ({columns},), one value an output channel")


def sizes(name: str, value: Any, expected: int) -> tuple[int, ...]:
    """A shape of so many non-negative ints."""
    try:
        found = tuple(value)
    except TypeError:
        found = ()
    if len(found) != expected or not all(isinstance(v, (int, np.integer)) and v >= 0 for v in found):
        raise ValueError(f"{name}: got {value!r}, expected {expected} non-negative ints")
    return tuple(int(v) for v in found)


def pair(name: str, value: Any) -> tuple[int, int]:
    """One positive int for both spatial dimensions, or one each; XLA takes none of 2**31 and more."""
    entries = (value, value) if isinstance(value, (int, np.integer)) else value
    try:
        entries = tuple(entries)
    except TypeError:
        entries = ()
    if len(entries) != 2 or not all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) and 1 <= v <= INT32_MAX for v in entries
    ):
        raise ValueError(f"{name}: got {value!r}, expected a positive int less than 2**31 or a pair of them")
    return int(entries[0]), int(entries[1])


def entries(name: str, value: Any) -> tuple[Any, ...]:
    """A shape, whatever sequence it comes as."""
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"{name}: got {value!r}, expected a sequence of sizes") from None
