"""concatenate_tables and stack_tables: what each sample gives alone."""

import jax
import numpy as np
import oracle
import pytest
import table_checks

import jax_knnconv as jkc

# Of three samples of different sizes: without slots, with them, and with slots and fewer columns. 5 and -7 are holes.
INDICES = [[[0, 1, 2], [2, -1, 0]], [[1, 5, 1], [0, 0, 1], [4, 3, 2], [5, 5, 5]], [[0, 1]]]
SLOTS = [None, [[0, 1, 1], [2, 0, 1], [1, 1, 1], [0, 1, 2]], [[2, 1]]]
SIZES = [3, 5, 2]
SAMPLES = [jkc.NeighborTable(i, s, num_inputs=n, num_slots=3) for i, s, n in zip(INDICES, SLOTS, SIZES, strict=True)]
RNG = np.random.default_rng(0)
# Small integers: float32 sums are exact.
X = [RNG.integers(-8, 8, (n, 2)).astype(np.float32) for n in SIZES]
WEIGHT, BIAS = (RNG.integers(-8, 8, s).astype(np.float32) for s in ((3, 2, 4), (4,)))


def alone(empty_rows="bias"):
    """Each sample's result."""
    zero = empty_rows == "zero"
    return [
        oracle.knn_forward(x[None], WEIGHT, indices, slots, BIAS, zero_empty_rows=zero)[0]
        for indices, slots, x in zip(INDICES, SLOTS, X, strict=True)
    ]


@pytest.mark.parametrize("which", [[0, 1, 2], [2, 0], [0, 0], [1]], ids=str)
def test_concatenated(which):
    table = jkc.concatenate_tables([SAMPLES[i] for i in which])
    assert (table.num_inputs, table.num_slots) == (sum(SIZES[i] for i in which), 3)
    x, right = (np.concatenate([values[i] for i in which]) for values in (X, alone()))
    np.testing.assert_array_equal(jkc.knn_conv(x, WEIGHT, table, BIAS), right)


@pytest.mark.parametrize("which", [[0, 1, 2], [2, 0], [0, 0], [1]], ids=str)
@pytest.mark.parametrize("empty_rows", ["bias", "zero"])
def test_stacked(which, empty_rows):
    table = jkc.stack_tables([SAMPLES[i] for i in which])
    right = [alone(empty_rows)[i] for i in which]
    # What stands in the padding of x is never read.
    x = np.full((len(which), table.num_inputs, 2), np.nan, np.float32)
    for sample, i in zip(x, which, strict=True):
        sample[: SIZES[i]] = X[i]
    y = jkc.knn_conv(x, WEIGHT, table, BIAS, empty_rows=empty_rows)
    assert y.shape == (len(which), max(map(len, right)), 4)
    for got, want in zip(y, right, strict=True):
        np.testing.assert_array_equal(got[: len(want)], want)
        padding = got[len(want) :]
        np.testing.assert_array_equal(padding, np.broadcast_to(BIAS if empty_rows == "bias" else 0, padding.shape))


def test_columns_stay_slots_where_all_samples_have_them():
    same = jkc.NeighborTable([[1, 0]], num_inputs=2)
    wanted = jkc.NeighborTable([[1, 0], [3, 2]], num_inputs=4)
    table_checks.assert_same(jkc.concatenate_tables([same, same]), wanted)
    assert jkc.stack_tables([same, same]).slots is None


def test_a_slot_out_of_range_stays_a_hole():
    built = jax.jit(lambda i, s: jkc.NeighborTable(i, s, num_inputs=2, num_slots=2))
    table = built(np.array([[0, 1]]), np.array([[5, 1]]))
    for both in (jkc.concatenate_tables([table, table]), jkc.stack_tables([table, table])):
        x = np.array([[1.0], [10.0]] * (1 if both.group_shape else 2))
        y = jkc.knn_conv(np.stack([x, x]) if both.group_shape else x, np.ones((2, 1, 1)), both)
        np.testing.assert_array_equal(y.ravel(), [10, 10])


@pytest.mark.parametrize("join", [jkc.concatenate_tables, jkc.stack_tables])
@pytest.mark.parametrize(
    ("tables", "kind", "message"),
    [
        ([], ValueError, "tables: got an empty sequence"),
        (SAMPLES[0], TypeError, "tables: got NeighborTable, expected a sequence"),
        ([SAMPLES[0], [[0]]], TypeError, "tables: got list at 1"),
        ([jkc.NeighborTable([[[0]]], num_inputs=1)], ValueError, r"tables: got .*group_shape=\(1,\).* at 0"),
        (
            [SAMPLES[0], jkc.NeighborTable([[0]], num_inputs=1)],
            ValueError,
            "tables: got num_slots=1 at 1, expected 3 as at 0",
        ),
    ],
)
def test_errors(join, tables, kind, message):
    with pytest.raises(kind, match=message):
        join(tables)


@pytest.mark.parametrize("join", [jkc.concatenate_tables, jkc.stack_tables])
def test_traced_tables(join):
    with pytest.raises(TypeError, match="tables, indices of 0: got a traced array"):
        jax.jit(lambda table: join([table]))(SAMPLES[0])
