"""Room that handlers get beside their results: numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.export
import pytest

from jax_knnconv._workspace import dinput_workspace


def room(batch, *, sources=130, rows=128, slots=9, channels=3, outputs=64, groups=(), platform="cuda"):
    def struct(*shape, dtype="bfloat16"):
        return jax.ShapeDtypeStruct((*groups, *shape), dtype)

    order = struct(sources + 1, 2, dtype="int32"), *[struct(rows * slots, dtype="int32")] * 2
    g, weight = struct(batch, rows, outputs), struct(slots, channels, outputs)
    (elements,) = dinput_workspace(g, weight, *order, rank=len(groups), platform=platform, fixed=2).shape
    return elements


# 1152 taps are 5 units of 256, with two rows of [batch, C] each. 3 blocks of 64 sources by 8 stretches are 1536 lists;
# 2 * 3 numbers say where they begin, and 1440 fours of 8 bytes hold the taps, with up to three empty places a list.
@pytest.mark.parametrize(
    ("given", "elements"),
    [
        ({"batch": 1}, 6 + 1536 + 2 * 1440),
        ({"batch": 1, "groups": (2,)}, 2 * (6 + 1536 + 2 * 1440)),
        ({"batch": 200}, 10 * 200 * 3),  # hubs need more
        ({"batch": 1, "platform": "rocm"}, 30),
        ({"batch": 1, "channels": 5}, 50),
        ({"batch": 1, "outputs": 104}, 30),
        ({"batch": 1, "outputs": 60}, 30),
        ({"batch": 1, "sources": 20000}, 30),  # no multiprocessor holds the sums of a sample
        ({"batch": 1, "rows": 28, "slots": 9, "channels": 5}, 0),  # no source can have more than 252 taps
        ({"batch": 1, "rows": 300, "slots": 2}, 6 + 1536 + 2 * 1302),
        ({"batch": 1, "rows": 28, "slots": 20}, 6 + 768 + 2 * 716),  # 4 stretches of 8 rows, the last one short
        ({"batch": 1, "slots": 40}, 6 + 3072 + 2 * 3584),  # 16
        ({"batch": 1, "rows": 600}, 6 + 7872 + 2 * 7254),  # 41, since 5400 taps are 41 a source
        ({"batch": 1, "rows": 2000}, 6 + 12288 + 2 * 13716),  # 64
    ],
)
def test_dinput_over_a_table(given, elements):
    assert room(**given) == elements


def test_sizes_without_a_value():
    (batch,) = jax.export.symbolic_shape("b")
    assert room(batch, channels=5) == 50 * batch
    assert room(batch) == 30 * batch + 4422
