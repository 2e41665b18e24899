"""CPU dinput handlers, dense and KNN, against NumPy float64."""

from __future__ import annotations

import numpy as np
import pytest
from handler_calls import (
    BF16,
    CHANNELS,
    DTYPES,
    EXAMPLES,
    UNIT,
    assert_close,
    call,
    dense_dinput,
    flat_pixels,
    flat_slots,
    knn_dinput,
    knn_dinput_answer,
    needs_memory,
    random,
    random_table,
    window_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    channels=st.tuples(CHANNELS, CHANNELS),
    batch=st.sampled_from([(), (1,), (2, 2), (9,), (130,)]),
    explicit=st.booleans(),
)
def test_knn_random(seed, dtype, channels, batch, explicit):
    rng = np.random.default_rng(seed)
    (n, m, k), (c, o) = rng.integers([1, 1, 1], [40, 40, 9]), channels
    v = int(rng.integers(1, 7)) if explicit else int(k)
    g, weight = random(rng, (*batch, m, o), dtype), random(rng, (v, c, o), dtype)
    indices = random_table(rng, m, k, n)
    slots = np.sort(rng.integers(-1, v + 1, (m, k)).astype(np.int32), axis=1) if explicit else None
    dx = knn_dinput(g, weight, indices, slots, num_inputs=int(n))
    assert_close(dx, *knn_dinput_answer(g, weight, indices, slots, num_inputs=int(n)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    channels=st.tuples(CHANNELS, CHANNELS),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(-2, 4), st.integers(-2, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_dense_random(seed, dtype, channels, kernel, stride, padding, dilation):
    rng = np.random.default_rng(seed)
    size, out_size = tuple(rng.integers(1, 14, 2)), tuple(rng.integers(1, 10, 2))
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    g, weight = random(rng, (2, *out_size, channels[1]), dtype), random(rng, (*kernel, *channels), dtype)
    dx = dense_dinput(g, weight, size, **window)
    table = window_table(size, out_size, kernel, **window)
    answer = knn_dinput_answer(flat_pixels(g), flat_slots(weight), table, num_inputs=size[0] * size[1])
    assert_close(flat_pixels(dx), *answer)


def test_holes_get_no_gradient():
    indices = np.array([[0, 3], [2, -1]], np.int32)
    dx = knn_dinput(np.ones((2, 1), np.float32), np.ones((2, 1, 1), np.float32), indices, num_inputs=3)
    np.testing.assert_array_equal(dx, [[1], [0], [1]])


def test_duplicate_neighbours():
    weight = np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
    dx = knn_dinput(np.ones((1, 1), np.float32), weight, np.array([[1, 1, 1]], np.int32), num_inputs=2)
    np.testing.assert_array_equal(dx, [[0], [111]])


@pytest.mark.parametrize(("dtype", "total"), [(np.float32, 40000), (np.float16, 40000), (BF16, 39936)])
@pytest.mark.parametrize("channels", [(8, 1), (1, 32), (8, 64)])
def test_hub_rows_are_counted_in_float32(dtype, total, channels):
    rows, sources = 400_000, 10
    # The O cotangents add 1/O of the total each; powers of two, so that the sums stay exact.
    g = np.full((rows, channels[1]), 1, dtype)
    weight = np.full((1, *channels), 1 / channels[1], dtype)
    indices = (np.arange(rows, dtype=np.int32) % sources)[:, None]
    dx = knn_dinput(g, weight, indices, num_inputs=sources).astype(np.float32)
    np.testing.assert_array_equal(dx, np.full((sources, channels[0]), total, np.float32))


def test_one_hub_of_twenty_million_taps():
    rows = 20_000_000
    # The source order is built by hand: sorting is not what is tested.
    order = [
        np.array([[0, 0], [rows, 0]], np.int32),
        np.arange(rows, dtype=np.int32),
        np.zeros(rows, np.int32),
    ]
    results = [((1, 8), np.float32), ((64,), np.float32)]
    dx, _ = call("knn_dinput", results, np.ones((rows, 1), np.float32), np.ones((1, 8, 1), np.float32), *order)
    np.testing.assert_array_equal(dx, np.full((1, 8), rows, np.float32))


@pytest.mark.parametrize("channels", [(40, 300), (3, 40)])
def test_hubs_among_groups_and_batches(channels):
    """Cells on both sides of the block and span lengths of long sums, with a table that groups share."""
    rng = np.random.default_rng(5)
    rows, sources = 60_000, 5
    g = rng.integers(-3, 4, (2, 2, rows, channels[1])).astype(BF16)
    weight = rng.integers(-2, 3, (1, 2, *channels)).astype(BF16)
    indices = rng.choice(sources, (1, rows, 1), p=[0.6, 0.3, 0.09, 0.0099, 0.0001]).astype(np.int32)
    slots = rng.integers(0, 2, (1, rows, 1)).astype(np.int32)
    dx = knn_dinput(g, weight, indices, slots, num_inputs=sources, dtype=np.float32)
    sums = np.zeros((2, 2, sources, 2, channels[1]))
    for n in range(sources):
        for v in range(2):
            sums[:, :, n, v] = g[:, :, (indices == n)[0, :, 0] & (slots == v)[0, :, 0]].astype(np.float64).sum(2)
    # Small integers: fp32 sums are exact.
    answer = np.einsum("gbnvo,vco->gbnc", sums, weight[0].astype(np.float64))
    np.testing.assert_array_equal(dx, answer)


EMPTY = [(0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4), (2, 3, 2, 0)]  # batch, rows or pixels, C, O


@pytest.mark.parametrize(("b", "n", "c", "o"), EMPTY)
def test_empty_sizes_give_zeros(b, n, c, o):
    g, weight = np.ones((b, n, o), np.float32), np.ones((1, c, o), np.float32)
    dx = knn_dinput(g, weight, np.zeros((n, 1), np.int32), num_inputs=2)
    expected = np.zeros((b, 2, c))
    expected[:, :1] = n * o
    np.testing.assert_array_equal(dx, expected)
    dx = dense_dinput(np.ones((b, n, n, o), np.float32), np.ones((1, 1, c, o), np.float32), (3, 3), **UNIT)
    np.testing.assert_array_equal(dx, np.full((b, 3, 3, c), o if n else 0))


def test_no_sources_and_no_columns():
    g, weight = np.ones((2, 3, 4), np.float32), np.ones((2, 5, 4), np.float32)
    assert knn_dinput(g, weight, np.zeros((3, 2), np.int32), num_inputs=0).shape == (2, 0, 5)
    dx = knn_dinput(g, weight[:0], np.zeros((3, 0), np.int32), num_inputs=6)
    np.testing.assert_array_equal(dx, np.zeros((2, 6, 5)))


def test_stride_wider_than_the_kernel_leaves_zeros():
    dx = dense_dinput(
        np.ones((1, 2, 2, 1), np.float32), np.ones((1, 1, 1, 1), np.float32), (5, 5), **{**UNIT, "stride": (3, 3)}
    )
    expected = np.zeros((5, 5))
    expected[::3, ::3] = 1
    np.testing.assert_array_equal(dx[0, :, :, 0], expected)


@pytest.mark.parametrize("columns", [3, 40])
def test_groups_of_any_operand(columns):
    rng = np.random.default_rng(2)
    g, weight = random(rng, (2, 1, 4, 7, 20), np.float32), random(rng, (1, 3, 5, columns, 20), np.float32)
    indices = random_table(rng, 6 * 7, 3, 10).reshape(2, 3, 7, 3)
    slots = np.sort(rng.integers(0, 5, (2, 1, 7, 3)).astype(np.int32), axis=-1)
    dx = knn_dinput(g, weight, indices, slots, num_inputs=10)
    assert dx.shape == (2, 3, 4, 10, columns)
    for i, j in np.ndindex(2, 3):
        assert_close(dx[i, j], *knn_dinput_answer(g[i, 0], weight[0, j], indices[i, j], slots[i, 0], num_inputs=10))
    image, kernels = random(rng, (1, 2, 4, 4, 20), np.float32), random(rng, (3, 3, 3, columns, 20), np.float32)
    dx = dense_dinput(image, kernels, (6, 6), **UNIT)
    for i in range(3):
        np.testing.assert_array_equal(dx[i], dense_dinput(image[0], kernels[i], (6, 6), **UNIT))


@pytest.mark.parametrize("channels", [(64, 64), (40, 3), (70, 300), (3, 40), (17, 2)])
def test_a_row_has_the_same_bits_in_any_batch(channels):
    rng = np.random.default_rng(3)
    g, weight = random(rng, (37, 150, channels[1]), np.float32), random(rng, (6, *channels), np.float32)
    indices = random_table(rng, 150, 6, 50)
    dx = knn_dinput(g, weight, indices, num_inputs=50)
    for b in (0, 36):
        np.testing.assert_array_equal(knn_dinput(g[b : b + 1], weight, indices, num_inputs=50)[0], dx[b])


def test_dense_rows_have_the_same_bits_in_any_batch():
    rng = np.random.default_rng(4)
    g, weight = random(rng, (5, 5, 6, 40), np.float16), random(rng, (3, 3, 20, 40), np.float16)
    window = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    dx = dense_dinput(g, weight, (9, 11), **window)
    np.testing.assert_array_equal(dense_dinput(g[3:4], weight, (9, 11), **window)[0], dx[3])


@needs_memory
def test_offsets_beyond_2_31_elements():
    n, c = 2**23 + 8, 256
    weight = np.ones((1, c, 1), np.float16)
    dx = knn_dinput(np.ones((1, 1), np.float16), weight, np.array([[n - 1]], np.int32), num_inputs=n)
    assert dx.shape == (n, c)
    assert np.count_nonzero(dx[:-1].view(np.uint16)) == 0
    np.testing.assert_array_equal(dx[-1], np.ones(c))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [(3, 2), (2, 1), (2, 3)])
def test_taps_of_one_kernel_row_are_not_those_of_the_next(kernel, dtype):
    """Of two columns, the last tap of a kernel row lies just before the first of the next, but in another row of g."""
    rng = np.random.default_rng(1)
    size, out_size, window = (6, 7), (5, 6), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    g, weight = random(rng, (2, *out_size, 4), dtype), random(rng, (*kernel, 16, 4), dtype)
    dx = dense_dinput(g, weight, size, **window)
    table = window_table(size, out_size, kernel, **window)
    assert_close(flat_pixels(dx), *knn_dinput_answer(flat_pixels(g), flat_slots(weight), table, num_inputs=42))


@pytest.mark.parametrize("channels", [16, 3])
def test_hubs_of_every_batch_entry(channels):
    """More entries than a task takes: each reads its own sum of a hub of 18,000 taps."""
    rng = np.random.default_rng(6)
    g = rng.integers(-3, 4, (130, 20_000, 2)).astype(np.float32)
    weight = rng.integers(-2, 3, (1, channels, 2)).astype(np.float32)
    indices = (np.arange(20_000, dtype=np.int32) >= 18_000).astype(np.int32)[:, None]
    dx = knn_dinput(g, weight, indices, num_inputs=2)
    sums = np.stack([g[:, :18_000].sum(1, dtype=np.float64), g[:, 18_000:].sum(1, dtype=np.float64)], axis=1)
    np.testing.assert_array_equal(dx, sums @ weight[0].T)  # small integers: float32 sums are exact
