"""NeighborTable: derived orders, holes, slots and index dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_checks import INT32_MAX, INT32_MIN, assert_same, expected_leaves, forward, traced_table

from jax_knnconv.table import NeighborTable


def dinput(g, w, table):
    """dx by the source order of a table; g [M, O]."""
    dx = np.zeros((table.num_inputs, w.shape[1]))
    offsets = np.asarray(table.source_offsets)[:, 0]
    for n in range(table.num_inputs):
        for t in range(offsets[n], offsets[n + 1]):
            dx[n] += g[int(table.source_rows[t])] @ w[int(table.source_slots[t])].T
    return dx


def dweight(x, g, table):
    """dw by the slot order of a table."""
    dw = np.zeros((table.num_slots, x.shape[1], g.shape[1]))
    offsets = np.asarray(table.slot_offsets)[:, 0]
    for v in range(table.num_slots):
        for t in range(offsets[v], offsets[v + 1]):
            dw[v] += np.outer(x[int(table.slot_sources[t])], g[int(table.slot_rows[t])])
    return dw


def column(values):
    return np.array(values, np.float64)[:, None]


def slot_weights(values):
    return np.array(values, np.float64)[:, None, None]


SIZES = [(1, 1, 1, 1), (5, 1, 3, 2), (3, 4, 5, 4), (4, 3, 2, 5), (6, 5, 3, 2), (2, 7, 40, 3)]  # M, K, N, V


@st.composite
def taps(draw, num_rows, num_taps, num_inputs, num_slots):
    junk = st.sampled_from([INT32_MIN, -50_000_000, -1, num_inputs, num_inputs + 1, INT32_MAX])
    index = st.one_of(st.integers(0, num_inputs - 1), st.integers(0, num_inputs - 1), junk)
    count, shape = num_rows * num_taps, (num_rows, num_taps)
    indices = draw(st.lists(index, min_size=count, max_size=count))
    slots = draw(st.lists(st.integers(0, num_slots - 1), min_size=count, max_size=count))
    return np.array(indices, np.int32).reshape(shape), np.array(slots, np.int32).reshape(shape)


@pytest.mark.parametrize("with_slots", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_both_paths_equal_a_plain_sort(size, with_slots, data):
    _, num_taps, num_inputs, num_slots = size
    indices, slots = data.draw(taps(*size))
    if not with_slots:
        slots, num_slots = None, num_taps
    sizes = {"num_inputs": num_inputs, "num_slots": num_slots}
    table = NeighborTable(indices, slots, **sizes)
    for name, right in expected_leaves(indices, slots, num_inputs, num_slots).items():
        leaf = getattr(table, name)
        assert (leaf is None) == (right is None)
        if right is not None:
            np.testing.assert_array_equal(leaf, np.array(right, np.int32), err_msg=name, strict=True)
    assert_same(table, traced_table(indices, slots, **sizes))


@pytest.mark.parametrize("groups", [(3,), (2, 2), (0,)])
@pytest.mark.parametrize("with_slots", [False, True])
def test_groups_are_independent_tables(groups, with_slots):
    rng = np.random.default_rng(0)
    indices = rng.integers(-1, 7, (*groups, 4, 3))
    slots = rng.integers(0, 5, indices.shape) if with_slots else None
    sizes = {"num_inputs": 6, "num_slots": 5 if with_slots else 3}
    table = NeighborTable(indices, slots, **sizes)
    assert table.group_shape == groups
    assert_same(table, traced_table(indices, slots, **sizes))
    for g in np.ndindex(*groups):
        single = NeighborTable(indices[g], None if slots is None else slots[g], **sizes)
        assert_same(single, jax.tree.map(lambda leaf, g=g: leaf[g], table))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0), (2, 0, 3), (4, 3)])
@pytest.mark.parametrize("with_slots", [False, True])
def test_empty_sizes(shape, with_slots):
    indices = np.zeros(shape, np.int32)
    slots = indices if with_slots else None
    sizes = {"num_inputs": 0, "num_slots": 3 if with_slots else None}
    table = NeighborTable(indices, slots, **sizes)
    assert table.source_offsets.shape == (*shape[:-2], 1, 2)
    assert not np.any(table.source_offsets)
    assert table.source_rows.shape == (*shape[:-2], shape[-2] * shape[-1])
    assert np.all(table.source_rows == -1)
    assert_same(table, traced_table(indices, slots, **sizes))


def test_empty_lists():
    table = NeighborTable([[], []], num_inputs=3)
    assert (table.num_outputs, table.num_taps, table.num_slots) == (2, 0, 0)


def test_large_table_against_numpy():
    rng = np.random.default_rng(1)
    indices, slots = rng.integers(-5, 2000, (3000, 9)), rng.integers(0, 4, (3000, 9))
    table = NeighborTable(indices, slots, num_inputs=1990, num_slots=4)
    order = np.argsort(slots, axis=1, kind="stable")
    indices, slots = np.take_along_axis(indices, order, 1), np.take_along_axis(slots, order, 1)
    rows = np.broadcast_to(np.arange(3000)[:, None], indices.shape)
    taps = (indices >= 0) & (indices < 1990)
    order = np.lexsort((rows[taps], slots[taps], indices[taps]))
    np.testing.assert_array_equal(table.source_rows[: taps.sum()], rows[taps][order])
    np.testing.assert_array_equal(table.source_slots[: taps.sum()], slots[taps][order])
    np.testing.assert_array_equal(table.source_offsets[-1], [taps.sum(), 0])


def test_case_8_holes():
    table = NeighborTable([[0, 3], [2, -1]], num_inputs=3)
    w = slot_weights([1, 1])
    np.testing.assert_array_equal(forward(column([1, 2, 3]), w, table), column([1, 3]))
    np.testing.assert_array_equal(dinput(np.ones((2, 1)), w, table), column([1, 0, 1]))


def test_case_10_junk_indices_are_holes():
    junk = [INT32_MIN, -50_000_000, -1, 3, 4, INT32_MAX]
    table = NeighborTable([junk, [1] * 6], num_inputs=3)
    np.testing.assert_array_equal(table.source_rows, [1] * 6 + [-1] * 6)
    np.testing.assert_array_equal(table.source_slots, [*range(6)] + [-1] * 6)
    np.testing.assert_array_equal(table.source_offsets, [[0, 0], [0, 0], [6, 0], [6, 0]])


def test_case_20_fewer_neighbours_than_columns():
    table = NeighborTable([[0, 1, 2, -1, -1, -1, -1, -1]], num_inputs=3)
    assert forward(column([3, 6, 9]), slot_weights([1] * 8), table) == 18


def test_case_23_shared_slots():
    table = NeighborTable([[0, 1, 2]], [[0, 0, 1]], num_inputs=3, num_slots=2)
    x, w, one = column([1, 10, 100]), slot_weights([2, 3]), column([1])
    assert forward(x, w, table) == 322
    np.testing.assert_array_equal(dweight(x, one, table).ravel(), [11, 100])
    np.testing.assert_array_equal(dinput(one, w, table), column([2, 2, 3]))


def test_case_24_all_hole_rows_have_no_taps():
    table = NeighborTable([[-1, -1], [0, 1]], num_inputs=2)
    np.testing.assert_array_equal(forward(column([1, 1]), slot_weights([1, 1]), table), column([0, 2]))
    np.testing.assert_array_equal(table.source_rows, [1, 1, -1, -1])


def test_case_25_duplicate_neighbours():
    table = NeighborTable([[1, 1, 1]], num_inputs=2)
    w = slot_weights([1, 10, 100])
    assert forward(column([1, 5]), w, table) == 555
    np.testing.assert_array_equal(dinput(column([1]), w, table), column([0, 111]))


def test_rows_are_stored_in_slot_order_and_holes_keep_their_slot():
    table = NeighborTable([[5, -7, 3, 1]], [[2, 1, 0, 1]], num_inputs=6, num_slots=3)
    np.testing.assert_array_equal(table.indices, [[3, -7, 1, 5]])
    np.testing.assert_array_equal(table.slots, [[0, 1, 1, 2]])


@pytest.mark.parametrize("slots", [[2, 0, 1], [[2, 0, 1]] * 2, [[[2, 0, 1]] * 2] * 2])
def test_slots_broadcast(slots):
    indices = np.arange(12).reshape(2, 2, 3)
    table = NeighborTable(indices, slots, num_inputs=12, num_slots=3)
    np.testing.assert_array_equal(table.slots, np.broadcast_to([0, 1, 2], (2, 2, 3)))
    np.testing.assert_array_equal(table.indices, indices[..., [1, 2, 0]])
    assert_same(table, traced_table(jnp.asarray(indices), jnp.asarray(slots), num_inputs=12, num_slots=3))


def test_more_slots_than_columns_without_slots():
    table = NeighborTable([[1, 0]], num_inputs=2, num_slots=4)
    np.testing.assert_array_equal(table.slots, [[0, 1]])
    np.testing.assert_array_equal(np.asarray(table.slot_offsets)[:, 0], [0, 1, 2, 2, 2])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.uint32, np.int64, np.uint64])
def test_index_dtypes(dtype):
    limits = np.iinfo(dtype)
    indices = np.array([[limits.min, limits.max, 1, min(200, limits.max)]], dtype)
    numbers = [int(i) for i in indices[0]]
    with jax.enable_x64(True):
        traced = traced_table(jnp.asarray(indices), num_inputs=1000)
    for table in (NeighborTable(indices, num_inputs=1000), traced):
        stored = np.array([[i if INT32_MIN <= i <= INT32_MAX else -1 for i in numbers]], np.int32)
        np.testing.assert_array_equal(table.indices, stored, strict=True)
        offsets = np.asarray(table.source_offsets)[:, 0]
        sources = np.repeat(np.arange(1000), np.diff(offsets))
        np.testing.assert_array_equal(sources, [i for i in sorted(numbers) if 0 <= i < 1000])


def test_int64_values_do_not_wrap():
    wraps = np.array([[2**32, 2**32 + 1, -(2**32)]])
    for given_as in (wraps, wraps.tolist()):
        assert np.all(NeighborTable(given_as, num_inputs=5).source_rows == -1)
    mixed = jax.jit(lambda slots: NeighborTable(wraps, slots, num_inputs=5, num_slots=3))(jnp.arange(3))
    assert np.all(mixed.source_rows == -1)


@pytest.mark.parametrize("bad", [-1, 3, INT32_MAX, INT32_MIN])
def test_traced_slot_out_of_range_is_a_hole(bad):
    indices, slots = np.array([[0, 1], [1, 0]]), np.array([[2, bad], [1, 1]])
    table = traced_table(indices, slots, num_inputs=2, num_slots=3)
    x, w, g = column([2, 3]), slot_weights([1, 10, 100]), column([1, 1])
    np.testing.assert_array_equal(forward(x, w, table), column([200, 50]))
    np.testing.assert_array_equal(dinput(g, w, table), column([110, 10]))
    np.testing.assert_array_equal(dweight(x, g, table).ravel(), [0, 5, 2])
    np.testing.assert_array_equal(table.slot_offsets[-1], [3, 0])


@pytest.mark.parametrize("with_slots", [False, True])
def test_split_rows(with_slots):
    """Each block is the table of its own rows, traced or not."""
    rng = np.random.default_rng(0)
    indices = rng.integers(-1, 7, (6, 3))
    slots = rng.integers(0, 5, indices.shape) if with_slots else None
    sizes = {"num_inputs": 6, "num_slots": 5 if with_slots else 3}
    table = NeighborTable(indices, slots, **sizes)
    parts = table.split_rows(3)
    assert parts.group_shape == (3,)
    assert_same(parts, jax.jit(lambda table: table.split_rows(3))(table))
    for i in range(3):
        rows = slice(2 * i, 2 * i + 2)
        block = NeighborTable(indices[rows], None if slots is None else slots[rows], **sizes)
        assert_same(block, jax.tree.map(lambda leaf, i=i: leaf[i], parts))


def test_split_rows_of_a_table_with_slots_out_of_range():
    """Only a table built under jit can have them; their taps are holes."""
    table = traced_table(jnp.array([[0, 1], [1, 0]]), jnp.array([[9, 0], [0, -3]]), num_inputs=2, num_slots=2)
    parts = table.split_rows(2)
    np.testing.assert_array_equal(parts.source_offsets[..., 0], [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(parts.source_slots, [[0, -1], [0, -1]])
