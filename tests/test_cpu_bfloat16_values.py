"""Values that are special to bfloat16 pairs, in every form that a tap's channels can take.

Channels may be multiplied as pairs or as float32; few columns take the dot form. All must agree on these.
"""

from __future__ import annotations

import numpy as np
import pytest
from handler_calls import BF16, dense_dinput, dense_forward, knn_forward

# (C_in, C_out): pairs read in place, pairs gathered, pairs of which the last is padded, float32, dot form.
FORMS = [(64, 40), (6, 40), (33, 40), (7, 40), (64, 3)]
TINY = 2.0**-130  # subnormal in float32 and bfloat16


def run(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """One output row [C_out] of x [2, C_in] and weight [2, C_in, C_out], the same through both operations."""
    table = np.array([[0, 1]], np.int32)
    knn = knn_forward(x, weight, table, dtype=np.float32)[0]
    window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    dense = dense_forward(x[None, None], weight[None], (1, 1), None, **window, dtype=np.float32)[0, 0, 0]
    np.testing.assert_array_equal(knn, dense)
    return knn


def operands(channels: tuple[int, int], first: float, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Ones, but for the first channel of the first tap and the last channel of the last one."""
    x = np.ones((2, channels[0]), BF16)
    x[0, 0], x[1, -1] = first, last
    return x, np.ones((2, *channels), BF16)


@pytest.mark.parametrize("channels", FORMS)
@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (np.nan, 1.0, np.nan),
        (1.0, np.nan, np.nan),
        (np.inf, 1.0, np.inf),
        (1.0, -np.inf, -np.inf),
        (np.inf, -np.inf, np.nan),
        (3e38, 3e38, np.inf),
    ],
)
def test_not_finite(channels, first, last, expected):
    x, weight = operands(channels, first, last)
    np.testing.assert_array_equal(run(x, weight), np.full(channels[1], expected, np.float32))


@pytest.mark.parametrize("channels", FORMS)
def test_not_finite_weight(channels):
    x, weight = operands(channels, 1.0, 1.0)
    weight[0, 1, 0], weight[1, 0, 1], weight[1, 1, 2] = np.inf, -np.inf, np.nan
    expected = np.full(channels[1], 2.0 * channels[0], np.float32)
    expected[:3] = np.inf, -np.inf, np.nan
    np.testing.assert_array_equal(run(x, weight), expected)


@pytest.mark.parametrize("channels", FORMS)
def test_subnormal_operands_count_in_full_or_not_at_all(channels):
    x, weight = operands(channels, TINY, TINY)
    x[:, 1:-1], x[0, -1], x[1, 0] = 0, 0, 0
    weight[...] = 2.0**100
    y = run(x, weight)
    assert np.isin(y, np.array([0, 2.0**-29], np.float32)).all()


@pytest.mark.parametrize("channels", [(33, 40), (33, 16), (301, 40)])
def test_the_padding_of_a_pair_reads_nothing(channels):
    """The element behind a row of odd length is another row's."""
    x, weight = np.ones((2, channels[0]), BF16), np.ones((1, *channels), BF16)
    x[1] = np.nan
    expected = np.array([[channels[0]] * channels[1], [np.nan] * channels[1]], np.float32)
    np.testing.assert_array_equal(knn_forward(x, weight, np.array([[0], [1]], np.int32), dtype=np.float32), expected)
    window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    dense = dense_forward(x[None, None], weight[None], (1, 2), None, **window, dtype=np.float32)
    np.testing.assert_array_equal(dense[0, 0], expected)
    g, transposed = x[None, None], np.ascontiguousarray(weight[None].swapaxes(-1, -2))
    np.testing.assert_array_equal(dense_dinput(g, transposed, (1, 2), **window, dtype=np.float32)[0, 0], expected)
