"""Existing tables, weights and activations, held to the plain sums that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_knnconv.interop import (
    channels_first,
    channels_last,
    from_fovi,
    from_linear,
    weight_from_linear,
    weight_to_linear,
)


def linear_tables(indices, slots, num_inputs, in_channels, num_slots):
    """Linear tables of [M, K] indices (-1: hole) and slots, as the code that they come from lays them out."""
    num_rows, num_taps = indices.shape
    width = -(-in_channels * num_taps // 64) * 64
    padding = in_channels * num_inputs
    inputs, weights = np.full((num_rows, width), padding, np.int32), np.zeros((num_rows, width), np.int32)
    for c in range(in_channels):
        for k in range(num_taps):
            holes = indices[:, k] < 0
            inputs[:, c * num_taps + k] = np.where(holes, padding, c * num_inputs + indices[:, k])
            weights[:, c * num_taps + k] = c * num_slots + slots[:, k]
    return inputs, weights


def linear_sum(x, w, inputs, weights):
    """y [B, O, M] by the sum over entries; x [B, C, N], w [O, C * V]."""
    flat = np.concatenate([x.reshape(len(x), -1), np.zeros((len(x), 1))], axis=1)
    y = np.zeros((len(x), len(w), len(inputs)))
    for n in range(len(inputs)):
        for p in range(inputs.shape[1]):
            y[:, :, n] += np.outer(flat[:, inputs[n, p]], w[:, weights[n, p]])
    return y


def forward(x, w, table):
    """y [B, M, O] by the taps of a table; x [B, N, C], w [V, C, O]."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y = np.zeros((len(x), table.num_outputs, w.shape[2]))
    for (m, k), source in np.ndenumerate(np.asarray(table.indices)):
        if 0 <= source < table.num_inputs:
            y[:, m] += x[:, source] @ w[int(table.slots[m, k])]
    return y


def draw_table(rng, num_rows, num_taps, num_inputs, num_slots):
    indices = rng.integers(-1, num_inputs, (num_rows, num_taps))
    return indices, rng.integers(0, num_slots, indices.shape)


def assert_linear_holds(indices, slots, num_inputs, in_channels, num_slots):
    rng = np.random.default_rng(0)
    inputs, weights = linear_tables(indices, slots, num_inputs, in_channels, num_slots)
    table = from_linear(inputs, weights, num_inputs=num_inputs, in_channels=in_channels, num_slots=num_slots)
    x = rng.integers(-8, 8, (2, in_channels, num_inputs)).astype(np.float32)
    w = rng.integers(-8, 8, (3, in_channels * num_slots)).astype(np.float32)
    y = forward(channels_last(x), weight_from_linear(w, num_slots=num_slots), table)
    np.testing.assert_array_equal(y, np.swapaxes(linear_sum(x, w, inputs, weights), 1, 2))
    return table


@pytest.mark.parametrize(("in_channels", "num_taps"), [(1, 5), (3, 9), (3, 22), (2, 1), (7, 9), (64, 3), (96, 2)])
def test_from_linear_is_the_plain_sum(in_channels, num_taps):
    indices, slots = draw_table(np.random.default_rng(1), 4, num_taps, 11, 6)
    indices[:, -1] = 3, -1, 0, 10  # the last column is in use
    table = assert_linear_holds(indices, slots, 11, in_channels, 6)
    assert (table.num_outputs, table.num_taps, table.num_inputs, table.num_slots) == (4, num_taps, 11, 6)
    order = np.argsort(slots, axis=1, kind="stable")
    np.testing.assert_array_equal(table.indices, np.take_along_axis(indices, order, axis=1))
    np.testing.assert_array_equal(table.slots, np.take_along_axis(slots, order, axis=1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 70), st.integers(0, 6), st.integers(0, 5))
def test_from_linear_of_random_tables(seed, num_rows, in_channels, num_taps, num_inputs):
    indices, slots = draw_table(np.random.default_rng(seed), num_rows, num_taps, num_inputs, 3)
    assert_linear_holds(indices, slots, num_inputs, in_channels, 3)


def test_weights_under_padding_do_not_matter():
    inputs, weights = linear_tables(np.array([[1, -1], [0, 2]]), np.array([[0, 1], [1, 0]]), 3, 2, 2)
    weights[inputs == 6] = -99
    table = from_linear(inputs, weights, num_inputs=3, in_channels=2, num_slots=2)
    np.testing.assert_array_equal(np.sort(np.asarray(table.indices), axis=1), [[-1, 1], [0, 2]])
    np.testing.assert_array_equal(table.source_rows, [1, 0, 1, -1])


@pytest.mark.parametrize(
    ("which", "row", "entry"),
    [(0, 0, 0), (0, 1, 4), (0, 2, 9), (0, 2, 26), (0, 3, 40), (1, 0, 0), (1, 1, 4), (1, 2, 9), (1, 2, 26)],
)
def test_tables_that_do_not_factor_name_the_entry(which, row, entry):
    indices, slots = np.arange(36).reshape(4, 9) % 11, np.tile(np.arange(9), (4, 1))
    tables = linear_tables(indices, slots, 11, 3, 9)
    # Channel 0 says what the others must be: what it holds is at fault only when out of range.
    tables[which][row, entry] = 99 if entry < 9 else (tables[which][row, entry] + 1) % 33
    with pytest.raises(ValueError, match=f"at row {row}, entry {entry} .*K = 9"):
        from_linear(*tables, num_inputs=11, in_channels=3, num_slots=9)


def test_padding_in_one_channel_only_is_no_hole():
    inputs, weights = linear_tables(np.array([[0, 1], [2, -1]]), np.array([[0, 1], [0, 1]]), 3, 40, 2)
    inputs[0, 3] = 120
    with pytest.raises(
        ValueError, match=r"got \(120, 3\) at row 0, entry 3 \(with K = 2, channel 1, tap 1\), expected \(4, 3\)"
    ):
        from_linear(inputs, weights, num_inputs=3, in_channels=40, num_slots=2)
    inputs[0, 3], inputs[1, 3] = 4, 5
    with pytest.raises(
        ValueError, match=r"got \(5, 3\) at row 1, entry 3 .* expected padding, input_linear = 120, as in"
    ):
        from_linear(inputs, weights, num_inputs=3, in_channels=40, num_slots=2)


@pytest.mark.parametrize(
    ("inputs", "weights", "sizes", "error", "text"),
    [
        (np.zeros((2, 64)), np.zeros((2, 64), int), {}, TypeError, "input_linear: got dtype float64"),
        (np.zeros((2, 64), int), np.zeros((2, 64), bool), {}, TypeError, "weight_linear: got dtype bool"),
        (np.zeros(64, int), np.zeros(64, int), {}, ValueError, r"input_linear: got shape \(64,\)"),
        (np.zeros((2, 64), int), np.zeros((2, 128), int), {}, ValueError, r"weight_linear: got shape \(2, 128\)"),
        (np.zeros((2, 60), int), np.zeros((2, 60), int), {}, ValueError, "input_linear: got 60 entries a row"),
        (np.zeros((2, 64), int), np.zeros((2, 64), int), {"in_channels": 65}, ValueError, "got 64 entries.* 65 [*] K"),
        (np.zeros((2, 64), int), np.zeros((2, 64), int), {"in_channels": 0}, ValueError, "in_channels: got 0"),
        (np.zeros((2, 64), int), np.zeros((2, 64), int), {"num_slots": 2.0}, TypeError, "num_slots: got 2.0"),
    ],
)
def test_bad_linear_tables(inputs, weights, sizes, error, text):
    with pytest.raises(error, match=text):
        from_linear(inputs, weights, **{"num_inputs": 3, "in_channels": 2, "num_slots": 2, **sizes})


def fovi_tables(seed, num_rows=5, num_taps=4, num_inputs=7, num_slots=3):
    indices, slots = draw_table(np.random.default_rng(seed), num_rows, num_taps, num_inputs, num_slots)
    fields = np.eye(num_slots)[slots] * (indices >= 0)[..., None]
    return np.where(indices < 0, num_inputs, indices).T, fields


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
@pytest.mark.parametrize("seed", range(4))
def test_from_fovi_is_the_plain_sum(seed, dtype):
    knn_indices, fields = fovi_tables(seed)
    table = from_fovi(knn_indices, fields.astype(dtype), num_inputs=7)
    assert (table.num_outputs, table.num_taps, table.num_inputs, table.num_slots) == (5, 4, 7, 3)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-8, 8, (2, 7, 6)), rng.integers(-8, 8, (3, 6, 2))
    padded = np.concatenate([x, np.zeros((2, 1, 6))], axis=1)
    right = np.einsum("nkv,bknc,vco->bno", fields, padded[:, knn_indices], w)
    np.testing.assert_array_equal(forward(x, w, table), right)


def test_padded_fovi_taps_may_have_a_slot():
    table = from_fovi([[2], [0]], [[[0, 1], [0, 1]]], num_inputs=2)
    np.testing.assert_array_equal(table.slots, [[1, 1]])
    np.testing.assert_array_equal(table.source_rows, [0, -1])


@pytest.mark.parametrize(
    ("tap", "text"),
    [
        ([0, 0, 0], r"local_rf: got \[0.0, 0.0, 0.0\] at row 1, tap 2, expected a one-hot row"),
        ([1, 0, 1], "row 1, tap 2"),
        ([0, 0.5, 0], "row 1, tap 2"),
        ([0, -1, 0], "row 1, tap 2"),
        ([0, np.nan, 0], "row 1, tap 2"),
    ],
)
def test_fields_that_are_not_one_hot(tap, text):
    knn_indices, fields = fovi_tables(0)
    knn_indices[2, 1] = 0
    fields[1, 2] = tap
    with pytest.raises(ValueError, match=text):
        from_fovi(knn_indices, fields, num_inputs=7)
    knn_indices[2, 1] = 7
    if any(tap):
        with pytest.raises(ValueError, match=text):
            from_fovi(knn_indices, fields, num_inputs=7)


def test_bad_fovi_tables():
    knn_indices, fields = fovi_tables(0)
    for arguments, error, text in (
        ((knn_indices.astype(float), fields), TypeError, "knn_indices: got dtype float64"),
        ((knn_indices[0], fields), ValueError, r"knn_indices: got shape \(5,\), expected \[K, N_out\]"),
        ((knn_indices.T, fields), ValueError, r"local_rf: got shape \(5, 4, 3\), expected \(4, 5\) \+ \(V,\)"),
        ((knn_indices, fields[..., 0]), ValueError, r"local_rf: got shape \(5, 4\)"),
    ):
        with pytest.raises(error, match=text):
            from_fovi(*arguments, num_inputs=7)
    with pytest.raises(TypeError, match="knn_indices: got a traced array"):
        jax.jit(lambda i: from_fovi(i, fields, num_inputs=7))(knn_indices)


def test_weight_layouts():
    linear = np.arange(2 * 3 * 4, dtype=np.float16).reshape(2, 12)  # C_out = 2, C_in = 3, V = 4
    weight = jax.jit(lambda w: weight_from_linear(w, num_slots=4))(linear)
    assert weight.dtype == jnp.float16
    assert weight.shape == (4, 3, 2)
    for v, c, o in np.ndindex(4, 3, 2):
        assert weight[v, c, o] == linear[o, c * 4 + v]
    np.testing.assert_array_equal(jax.jit(weight_to_linear)(weight), linear)
    with pytest.raises(ValueError, match=r"weight: got shape \(2, 12\), expected .* num_slots = 5"):
        weight_from_linear(linear, num_slots=5)
    with pytest.raises(ValueError, match=r"weight: got shape \(2, 12\), expected \[V, C_in, C_out\]"):
        weight_to_linear(linear)


def test_activation_layouts():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    nodes = jax.jit(channels_last)(x)
    for b, c, n in np.ndindex(2, 3, 4):
        assert nodes[b, n, c] == x[b, c, n]
    np.testing.assert_array_equal(channels_first(nodes), x)
    for convert in (channels_first, channels_last):
        with pytest.raises(ValueError, match=r"x: got shape \(3,\)"):
            convert(jnp.zeros(3))
