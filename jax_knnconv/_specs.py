"""The static side of an operation: sizes, geometry and options that travel with its primitives. All hashable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jax_knnconv.config import KernelConfig


@dataclasses.dataclass(frozen=True)
class DenseSpec:
    """A dense convolution: tap (fh, fw) of output (i, j) reads x at (i, j)·stride + (fh, fw)·dilation − padding."""

    input_dims: tuple[int, int]
    output_dims: tuple[int, int]
    slot_dims: tuple[int, int]  # F_H, F_W
    stride: tuple[int, int]
    padding: tuple[int, int]  # low pads; the high ones follow from the sizes
    dilation: tuple[int, int]
    implementation: str = "auto"
    config: KernelConfig | None = None

    def bias_table(self, table: Sequence[Any]) -> tuple[Any, ...]:
        """What `live_rows` reads."""
        return ()

    def live_rows(self, table: Sequence[Any]) -> None:
        """Every output row of a dense convolution takes the bias."""
        return None


@dataclasses.dataclass(frozen=True)
class KnnSpec:
    """A convolution over a table of neighbours."""

    input_dims: tuple[int]  # N
    output_dims: tuple[int]  # M
    slot_dims: tuple[int]  # V
    zero_empty_rows: bool = False
    implementation: str = "auto"
    config: KernelConfig | None = None

    def bias_table(self, table: Sequence[Any]) -> tuple[Any, ...]:
        """What `live_rows` reads: indices and slots, where not every row takes the bias."""
        return tuple(table[:2]) if self.zero_empty_rows else ()

    def live_rows(self, table: Sequence[Any]) -> Any:
        """[groups..., M]: rows that have a tap, where only those take the bias; None where all do."""
        if not self.zero_empty_rows:
            return None
        indices, slots = table[0], table[1]
        live = (indices >= 0) & (indices < self.input_dims[0])
        if slots.ndim == indices.ndim:
            live &= (slots >= 0) & (slots < self.slot_dims[0])
        return jnp.any(live, -1)
