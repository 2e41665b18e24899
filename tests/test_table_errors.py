"""NeighborTable: bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from table_checks import traced_table

import jax_knnconv as jkc
from jax_knnconv._table_orders import to_words
from jax_knnconv.table import LEAVES, NeighborTable


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[0.0, 1.0]],), TypeError, "indices: got dtype float64"),
        (([[True]],), TypeError, "indices: got dtype bool"),
        ((jnp.zeros((2, 2), jnp.bfloat16),), TypeError, "indices: got dtype bfloat16"),
        (([0, 1],), ValueError, r"indices: got shape \(2,\), expected \[M, K\]"),
        (([[0, 1], [2]],), ValueError, "indices: got what makes no array"),
        ((np.array([[0, 1], [2]], object),), TypeError, "indices: got an array of objects, expected .* equal length"),
        ((None,), TypeError, "indices: got NoneType, which makes no array of numbers"),
        ((sparse.eye_array(2, format="csr"),), TypeError, r"indices: got csr_array, which makes no array"),
        ((np.ma.masked_equal([[0, -1]], -1),), TypeError, "indices: got a MaskedArray, whose mask would be lost"),
        (([[0, 1]], np.ma.masked_equal([[0, -1]], -1), 2), TypeError, "slots: got a MaskedArray"),
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


@pytest.mark.parametrize(
    ("parts", "error", "text"),
    [
        (3, ValueError, "parts: got 3 for 4 output rows, expected a number that divides them"),
        (0, ValueError, "parts: got 0, expected at least 1"),
        (2.0, TypeError, "parts: got 2.0 of type float"),
    ],
)
def test_rows_that_cannot_be_split(parts, error, text):
    with pytest.raises(error, match=text):
        NeighborTable(np.zeros((4, 2), int), num_inputs=4).split_rows(parts)
    with pytest.raises(ValueError, match=r"split_rows: got NeighborTable\(group_shape=\(2,\).*without groups"):
        NeighborTable(np.zeros((2, 4, 2), int), num_inputs=4).split_rows(2)


CALLS = {
    "conv": lambda table: jkc.knn_conv(jnp.ones((4, 2)), jnp.ones((3, 2, 2)), table),
    "dinput": lambda table: jkc.knn_dinput(jnp.ones((5, 2)), jnp.ones((3, 2, 2)), table),
    "dweight": lambda table: jkc.knn_dweight(jnp.ones((4, 2)), jnp.ones((5, 2)), table),
    "backward": lambda table: jkc.knn_backward(jnp.ones((5, 2)), jnp.ones((4, 2)), jnp.ones((3, 2, 2)), table),
    "pool": lambda table: jkc.knn_pool(jnp.ones((4, 2)), table),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("slots", [None, [2, 0, 1]])
def test_tables_whose_arrays_were_changed_one_by_one(call, slots):
    """As a tree map over a whole state does: kernels would read past the ends of what they are given."""
    table = NeighborTable(np.arange(15).reshape(5, 3) % 4, slots, num_inputs=4, num_slots=3)
    call(table)
    call(jax.tree.map(np.asarray, table))
    for change, text in (
        (lambda array: array[:2], r"got int32 \(2, 2\) as its source_offsets, expected int32 \(5, 2\)"),
        (lambda array: array[0], r"got int32 \(3,\) as its indices, expected int32 \[\.\.\., M, K\]"),
        (lambda array: array.astype(jnp.float16), r"got float16 \(5, 3\) as its indices, expected int32 \(5, 3\)"),
        (lambda array: 0, "got int as its indices"),
        (lambda array: None, "got None as its indices"),
    ):
        with pytest.raises(ValueError, match=f"table: {text}"):
            call(jax.tree.map(change, table))


@pytest.mark.parametrize("slots", [None, [2, 0, 1]])
@pytest.mark.parametrize("name", LEAVES)
def test_tables_with_one_array_of_another(name, slots):
    """Each of a table's arrays is looked at; without slots, that there are none."""
    table, other = (
        NeighborTable(np.zeros((2, rows, 3), int), slots or other_slots, num_inputs=sources, num_slots=num_slots)
        for rows, sources, num_slots, other_slots in ((5, 4, 3, None), (6, 7, 4, [0, 1, 2]))
    )
    leaves, structure = jax.tree.flatten(table, is_leaf=lambda leaf: leaf is None)
    leaves[LEAVES.index(name)] = getattr(other, name)
    broken = jax.tree.unflatten(structure, leaves)
    with pytest.raises(ValueError, match=r"table: got .* as its \w+, expected"):
        jkc.knn_conv(jnp.ones((2, 4, 2)), jnp.ones((3, 2, 2)), broken)
