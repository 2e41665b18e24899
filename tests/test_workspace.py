"""Room that handlers get beside their results: numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_calls import lowered

import jax_knnconv as jkc
from jax_knnconv._workspace import dinput_workspace


def room(batch, *, sources=130, rows=128, slots=9, channels=3, outputs=64, groups=(), platform="cuda"):
    def struct(*shape, dtype="bfloat16"):
        return jax.ShapeDtypeStruct((*groups, *shape), dtype)

    order = struct(sources + 1, 2, dtype="int32"), *[struct(rows * slots, dtype="int32")] * 2
    g, weight = struct(batch, rows, outputs), struct(slots, channels, outputs)
    (elements,) = dinput_workspace(g, weight, *order, rank=len(groups), platform=platform, fixed=2).shape
    return elements


# 1152 taps are 5 units of 256, with two rows of [batch, C] each. 3 blocks of 64 sources by 8 stretches are 1536 lists,
# each with a four of taps in two numbers and a third that says where others are: in 288 fours at most.
@pytest.mark.parametrize(
    ("given", "elements"),
    [
        ({"batch": 1}, 3 * 1536 + 2 * 288),
        ({"batch": 1, "groups": (2,)}, 2 * (3 * 1536 + 2 * 288)),
        ({"batch": 200}, 10 * 200 * 3),  # hubs need more
        ({"batch": 1, "platform": "rocm"}, 30),
        ({"batch": 1, "channels": 5}, 50),
        ({"batch": 1, "outputs": 104}, 30),
        ({"batch": 1, "outputs": 60}, 30),
        ({"batch": 1, "sources": 20000}, 30),  # no multiprocessor holds the sums of a sample
        ({"batch": 1, "rows": 28, "slots": 9, "channels": 5}, 0),  # no source can have more than 252 taps
        ({"batch": 1, "rows": 300, "slots": 2}, 3 * 1536 + 2 * 150),
        ({"batch": 1, "rows": 28, "slots": 20}, 3 * 768 + 2 * 140),  # 4 stretches of 8 rows, the last one short
        ({"batch": 1, "slots": 40}, 3 * 3072 + 2 * 1280),  # 16
        ({"batch": 1, "rows": 500}, 3 * 6528 + 2 * 1125),  # 34, since 4500 taps are 34 a source
        ({"batch": 1, "rows": 2000}, 3 * 7680 + 2 * 4500),  # 40
    ],
)
def test_dinput_over_a_table(given, elements):
    assert room(**given) == elements


def test_sizes_without_a_value():
    (batch,) = jax.export.symbolic_shape("b")
    assert room(batch, channels=5) == 50 * batch
    assert room(batch) == 30 * batch + 5184


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("batch", [(), (7,), (2, 7)])
def test_programs_ask_for_room_by_all_batch_dimensions(batch):
    """64 rows of 9 taps, 576, are 3 units; the calls of one pass and of both give it for every batch entry."""
    table = jkc.NeighborTable(np.arange(576).reshape(64, 9) % 10, num_inputs=10)
    x, g = jnp.ones((*batch, 10, 5), "bfloat16"), jnp.ones((*batch, 64, 3), "bfloat16")
    weight = jnp.ones((9, 5, 3), "bfloat16")
    for operation, call in {
        "knn_dinput": lambda: jkc.knn_dinput(g, weight, table),
        "knn_backward": lambda: jkc.knn_backward(g, x, weight, table),
    }.items():
        (line,) = (text for text in lowered(call).splitlines() if f"@jax_knnconv_{operation}" in text)
        assert f"tensor<{2 * 3 * 5 * int(np.prod(batch))}xf32>" in line.rpartition("->")[2], operation
