"""NeighborTable: derived orders, holes, dtypes, errors, and its life as a pytree under JAX's transformations."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

from jax_knnconv._table_orders import to_words
from jax_knnconv.table import NeighborTable

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
SOURCE_ORDER = ("source_offsets", "source_rows", "source_slots")
SLOT_ORDER = ("slot_offsets", "slot_rows", "slot_sources")
LEAVES = ("indices", "slots", *SOURCE_ORDER, *SLOT_ORDER)


def expected_leaves(indices, slots, num_inputs, num_slots):
    """The leaves of one table by Python's sort of tuples."""
    num_rows, num_taps = np.shape(indices)
    has_slots = slots is not None
    rows = [
        sorted((int(slots[m][k]) if has_slots else k, k, int(indices[m][k])) for k in range(num_taps))
        for m in range(num_rows)
    ]
    taps = [(i, s, m) for m, row in enumerate(rows) for s, _, i in row if 0 <= i < num_inputs]
    by_source = sorted(taps)  # taps equal in all three are the same
    by_slot = sorted(taps, key=lambda tap: (tap[1], tap[2]))  # stable: column order for equal ones

    def column(order, field):
        return [tap[field] for tap in order] + [-1] * (num_rows * num_taps - len(order))

    def offsets(order, field, count):
        return [[sum(tap[field] < n for tap in order), 0] for n in range(count + 1)]

    leaves = {
        "indices": [[i for _, _, i in row] for row in rows],
        "slots": None,
        "source_offsets": offsets(by_source, 0, num_inputs),
        "source_rows": column(by_source, 2),
        "source_slots": column(by_source, 1),
        **dict.fromkeys(SLOT_ORDER),
    }
    if has_slots:
        leaves["slots"] = [[s for s, _, _ in row] for row in rows]
        leaves["slot_offsets"] = offsets(by_slot, 1, num_slots)
        leaves["slot_rows"] = column(by_slot, 2)
        leaves["slot_sources"] = column(by_slot, 0)
    return leaves


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for name in LEAVES:
        if getattr(a, name) is not None:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name, strict=True)
            assert getattr(a, name).dtype == jnp.int32


@functools.cache
def traced_builder(num_inputs, num_slots):
    return jax.jit(lambda i, s: NeighborTable(i, s, num_inputs=num_inputs, num_slots=num_slots))


def traced_table(indices, slots=None, *, num_inputs, num_slots=None):
    return traced_builder(num_inputs, num_slots)(indices, slots)


def forward(x, w, table):
    """y by the rows of a table; x [N, C], w [V, C, O]."""
    y = np.zeros((table.num_outputs, w.shape[2]))
    for m, row in enumerate(np.asarray(table.indices)):
        for k, source in enumerate(row):
            slot = k if table.slots is None else int(table.slots[m, k])
            if 0 <= source < table.num_inputs:
                y[m] += x[source] @ w[slot]
    return y


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


SIZES = [(1, 1, 1, 1), (3, 4, 5, 4), (4, 3, 2, 5), (6, 5, 3, 2), (2, 7, 40, 3)]  # M, K, N, V


@st.composite
def tables(draw):
    num_rows, num_taps, num_inputs, num_slots = draw(st.sampled_from(SIZES))
    junk = st.sampled_from([INT32_MIN, -50_000_000, -1, num_inputs, num_inputs + 1, INT32_MAX])
    index = st.one_of(st.integers(0, num_inputs - 1), st.integers(0, num_inputs - 1), junk)
    count, shape = num_rows * num_taps, (num_rows, num_taps)
    indices = draw(st.lists(index, min_size=count, max_size=count))
    slots = draw(st.lists(st.integers(0, num_slots - 1), min_size=count, max_size=count))
    return np.array(indices, np.int32).reshape(shape), np.array(slots, np.int32).reshape(shape), num_inputs, num_slots


@settings(max_examples=60, deadline=None)
@given(tables(), st.booleans())
def test_both_paths_equal_a_plain_sort(drawn, with_slots):
    indices, slots, num_inputs, num_slots = drawn
    if not with_slots:
        slots, num_slots = None, indices.shape[1]
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


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[0.0, 1.0]],), TypeError, "indices: got dtype float64"),
        (([[True]],), TypeError, "indices: got dtype bool"),
        ((jnp.zeros((2, 2), jnp.bfloat16),), TypeError, "indices: got dtype bfloat16"),
        (([0, 1],), ValueError, r"indices: got shape \(2,\), expected \[M, K\]"),
        (([[0, 1], [2]],), ValueError, "indices: got what makes no array"),
        (([[0, 1]], [[0.0, 1.0]], 2), TypeError, "slots: got dtype float64"),
        (([[0, 1]], [[0, 1, 2]], 3), ValueError, r"slots: got shape \(1, 3\), expected indices' shape \(1, 2\)"),
        (([[0, 1]], [[0, 1]]), TypeError, "num_slots: got None"),
        (([[0, 1]], None, 1), ValueError, "num_slots: got 1, expected at least 2"),
        (([[0, 1], [1, 0]], [[0, 1], [9, 1]], 9), ValueError, r"slots: got 9 at row 1, column 0, expected .*\[0, 9\)"),
        (([[0, 1]], [[0, -1]], 2), ValueError, r"slots: got -1 at row 0, column 1"),
        (([[0, -1]], [[0, 2**32]], 2), ValueError, r"slots: got 4294967296 at row 0, column 1"),
        (([[[0]], [[0]]], [[[0]], [[5]]], 1), ValueError, r"slots: got 5 at group \(1,\), row 0, column 0"),
        (([[0, 1]], [2, 0], 2), ValueError, r"slots: got 2 at column 0"),
        (([[0]], [[0]], -1), ValueError, "num_slots: got -1"),
        (([[0]], [[0]], 1.0), TypeError, r"num_slots: got 1\.0 of type float"),
    ],
)
def test_bad_arguments(arguments, error, text):
    indices, slots, num_slots = (*arguments, None, None)[:3]
    with pytest.raises(error, match=text):
        NeighborTable(indices, slots, num_inputs=2, num_slots=num_slots)


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (-1, ValueError, "num_inputs: got -1"),
        (2**31, ValueError, r"num_inputs: got 2147483648, expected .* less than 2\*\*31"),
        (2.0, TypeError, r"num_inputs: got 2\.0 of type float"),
        (True, TypeError, "num_inputs: got True of type bool"),
        (None, TypeError, "num_inputs: got None"),
    ],
)
def test_bad_num_inputs(size, error, text):
    with pytest.raises(error, match=text):
        NeighborTable([[0]], num_inputs=size)


def test_bad_traced_arguments():
    for indices, slots, error, text in (
        (jnp.zeros((1, 2)), None, TypeError, "indices: got dtype float32"),
        (jnp.zeros(2, int), None, ValueError, r"indices: got shape \(2,\)"),
        (jnp.zeros((1, 2), int), jnp.zeros(3, int), ValueError, r"slots: got shape \(3,\), expected .* \(1, 2\)"),
        (jnp.zeros((1, 2), int), jnp.zeros(2, bool), TypeError, "slots: got dtype bool"),
    ):
        with pytest.raises(error, match=text):
            traced_table(indices, slots, num_inputs=2, num_slots=2)


def test_sizes_that_int32_cannot_count():
    with pytest.raises(ValueError, match="65536 x 32768 traced taps, expected fewer than 2"):
        jax.eval_shape(lambda i: NeighborTable(i, num_inputs=4), jax.ShapeDtypeStruct((2**16, 2**15), jnp.int32))
    with pytest.raises(ValueError, match="number of rows M: got 2147483648"):
        NeighborTable(np.zeros((2**31, 0), np.int32), num_inputs=4)
    words = to_words(np.array([[5, 2**31 + 5], [2**32 + 7, 2**33 - 1]]))
    np.testing.assert_array_equal(words, [[[5, 0], [5 - 2**31, 0]], [[7, 1], [-1, 1]]])


INDICES, SLOTS = np.array([[0, 3, 1], [2, 2, -1]]), np.array([[1, 0, 1], [0, 1, 0]])
FLIPPED = INDICES[::-1]


def test_constants_inside_jit_stay_constants():
    kept = []

    @jax.jit
    def build(x):
        kept.append(NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))
        return x + kept[0].source_rows[0]

    build(1)
    assert_same(kept[0], NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))


def test_through_jit_and_closed_over():
    table = NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2)
    assert_same(table, jax.jit(lambda t: t)(table))
    assert_same(table, jax.jit(lambda: table)())
    assert jax.jit(lambda t: t.num_inputs * t.num_outputs * t.num_taps * t.num_slots)(table) == 4 * 2 * 3 * 2


def test_vmap_and_scan_over_stacked_tables():
    singles = [NeighborTable(i, SLOTS, num_inputs=4, num_slots=2) for i in (INDICES, FLIPPED)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    assert_same(stacked, NeighborTable(np.stack([INDICES, FLIPPED]), SLOTS, num_inputs=4, num_slots=2))

    def first_row(table):
        return table.indices[0] + 10 * table.num_outputs

    right = [[23, 20, 21], [22, 22, 19]]
    np.testing.assert_array_equal(jax.vmap(first_row)(stacked), right)
    in_axes = jax.tree.map(lambda _: 0, stacked)
    np.testing.assert_array_equal(jax.vmap(first_row, in_axes=(in_axes,))(stacked), right)
    _, scanned = jax.lax.scan(lambda carry, table: (carry, first_row(table)), 0, stacked)
    np.testing.assert_array_equal(scanned, right)
    carried, _ = jax.lax.scan(lambda table, _: (table, None), singles[0], length=3)
    assert_same(carried, singles[0])


def test_built_under_vmap_and_grad():
    sizes = {"num_inputs": 4, "num_slots": 2}
    stack = np.stack([INDICES, FLIPPED])
    built = jax.vmap(lambda i: NeighborTable(i, SLOTS, **sizes))(stack)
    assert_same(built, NeighborTable(stack, SLOTS, **sizes))

    def total(x, indices):
        return (x * NeighborTable(indices, SLOTS, **sizes).source_offsets[-1, 0]).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.ones(2), INDICES), [5, 5])


@pytest.mark.parametrize(("slots", "num_slots"), [(None, None), (SLOTS, 2)])
def test_built_inside_shard_map(slots, num_slots):
    spec = PartitionSpec("rows")
    build = jax.shard_map(
        lambda i: NeighborTable(i, slots, num_inputs=4, num_slots=num_slots),
        mesh=Mesh(jax.devices()[:1], "rows"),
        in_specs=spec,
        out_specs=spec,
    )
    right = NeighborTable(INDICES, slots, num_inputs=4, num_slots=num_slots)
    assert_same(jax.jit(build)(INDICES), right)


def test_symbolic_number_of_tables():
    (batch,) = jax.export.symbolic_shape("b")
    build = jax.jit(lambda i: NeighborTable(i, SLOTS, num_inputs=4, num_slots=2).source_rows)
    exported = jax.export.export(build)(jax.ShapeDtypeStruct((batch, 2, 3), jnp.int32))
    stack = np.stack([INDICES, FLIPPED, INDICES]).astype(np.int32)
    right = NeighborTable(stack, SLOTS, num_inputs=4, num_slots=2).source_rows
    np.testing.assert_array_equal(exported.call(stack), right)


def test_identity_immutability_and_copies():
    table, other = (NeighborTable(INDICES, num_inputs=4) for _ in range(2))
    assert table != other
    assert {table: 1}[table] == 1
    for name in ("indices", "num_inputs", "anything"):
        with pytest.raises(AttributeError, match=f"immutable: cannot set {name}"):
            setattr(table, name, None)
    with pytest.raises(AttributeError, match="immutable: cannot delete indices"):
        del table.indices
    assert_same(table, copy.deepcopy(table))
    assert_same(table, pickle.loads(pickle.dumps(table)))


def test_tables_do_not_alias_the_arguments():
    indices, slots = INDICES.astype(np.int32), SLOTS.astype(np.int32)
    table = NeighborTable(indices, slots, num_inputs=4, num_slots=2)
    indices[:], slots[:] = 0, 0
    assert_same(table, NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))


def test_repr_and_paths():
    table = NeighborTable(INDICES[None], SLOTS, num_inputs=4, num_slots=2)
    sizes = "group_shape=(1,), num_outputs=2, num_taps=3, num_inputs=4, num_slots=2"
    assert repr(table) == f"NeighborTable({sizes})"
    assert repr(jax.tree.map(lambda _: 0, table)) == "NeighborTable(num_inputs=4, num_slots=2)"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(table)]
    assert paths == [f".{name}" for name in LEAVES]
