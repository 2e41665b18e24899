"""The KNN operation's primitives, and the operands that a table hands to them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_knnconv._bilinear import Family
from jax_knnconv._calls import Operation, Pass, make_calls
from jax_knnconv._knn_shards import of_shard
from jax_knnconv._xla import knn as xla
from jax_knnconv.table import LEAVES, NeighborTable

# A table hands all its arrays (`LEAVES`) to the primitives; these are the places of those that each handler takes.
FORWARD_ORDER, SOURCE_ORDER, SLOT_ORDER = (0, 1), (2, 3, 4), (5, 6, 7)
FORWARD_LABELS = (("m", "k"), ("m", "k"))
SOURCE_LABELS = (("offset", "word"), ("tap",), ("tap",))
SLOT_LABELS = (("slot_offset", "slot_word"), ("slot_tap",), ("slot_tap",))


def table_operands(table: NeighborTable) -> tuple[Any, ...]:
    """A table's arrays, None for those that it does not have."""
    leaves = (getattr(table, name) for name in LEAVES)
    # A table without taps has derived orders of shape (0,), which would read as placeholders: one undefined entry.
    return tuple(jnp.full((1,), -1, jnp.int32) if leaf is not None and leaf.shape == (0,) else leaf for leaf in leaves)


def empty_rows(spec: Any) -> dict[str, Any]:
    return {"zero_empty_rows": np.int64(spec.zero_empty_rows)}


def _forward(x: Any, w: Any, bias: Any, *table: Any, spec: Any, out_dtype: Any) -> Any:
    return xla.forward(x, w, bias, *table, zero_empty_rows=spec.zero_empty_rows, out_dtype=out_dtype)


def _dinput(g: Any, w: Any, *table: Any, spec: Any, out_dtype: Any) -> Any:
    return xla.dinput(g, w, *table, num_inputs=spec.input_dims[0], out_dtype=out_dtype)


def _dweight(x: Any, g: Any, *table: Any, spec: Any, out_dtype: Any, group_rank: int, with_bias: bool) -> Any:
    return xla.dweight(
        x,
        g,
        *table,
        num_slots=spec.slot_dims[0],
        zero_empty_rows=spec.zero_empty_rows,
        group_rank=group_rank,
        with_bias=with_bias,
        out_dtype=out_dtype,
        bias_dtype=jnp.float32,
    )


knn = Family(
    "knn",
    make_calls(
        Operation(
            name="knn",
            inputs=("n",),
            outputs=("m",),
            slots=("v",),
            forward=Pass(FORWARD_ORDER, FORWARD_LABELS, empty_rows, _forward),
            dinput=Pass(SOURCE_ORDER, SOURCE_LABELS, lambda spec: {}, _dinput),
            dweight=Pass(FORWARD_ORDER + SLOT_ORDER, FORWARD_LABELS + SLOT_LABELS, empty_rows, _dweight),
            of_shard=of_shard,
        )
    ),
)
