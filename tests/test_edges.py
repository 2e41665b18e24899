"""edge_table: one product an edge, added up in NumPy."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_knnconv as jkc


def by_edges(x, weight, sources, targets, slots, num_outputs):
    """y[target] += x[source] @ weight[slot], edge after edge, in float64."""
    y = np.zeros((num_outputs, weight.shape[-1]))
    for source, target, slot in zip(sources, targets, slots, strict=True):
        if 0 <= source < len(x):
            y[target] += x[source].astype(np.float64) @ weight[slot]
    return y


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_edges_are_added_up(data):
    num_inputs, num_outputs, num_slots = (data.draw(st.integers(1, 5)) for _ in range(3))
    edge = st.tuples(st.integers(-1, num_inputs), st.integers(0, num_outputs - 1), st.integers(0, num_slots - 1))
    edges = np.array(data.draw(st.lists(edge, max_size=20)), np.int64).reshape(-1, 3).T
    table = jkc.edge_table(*edges, num_inputs=num_inputs, num_outputs=num_outputs, num_slots=num_slots)
    degrees = [sum(t == n and 0 <= s < num_inputs for s, t, _ in edges.T) for n in range(num_outputs)]
    assert table.indices.shape == (num_outputs, max(1, *degrees))
    rng = np.random.default_rng(0)
    # Small integers: float32 sums are exact.
    x, weight = (rng.integers(-8, 8, s).astype(np.float32) for s in ((num_inputs, 2), (num_slots, 2, 3)))
    np.testing.assert_array_equal(jkc.knn_conv(x, weight, table), by_edges(x, weight, *edges, num_outputs))


def test_edges_of_one_kind_share_a_matrix():
    table = jkc.edge_table([0, 1, 2, 0], [1, 1, 1, 0], num_inputs=3)
    assert (table.num_outputs, table.num_taps, table.num_slots) == (3, 3, 1)
    y = jkc.knn_conv(np.array([[1.0], [10], [100]]), np.array([[[2.0]]]), table, np.array([0.5]), empty_rows="zero")
    np.testing.assert_array_equal(y, [[2.5], [222.5], [0]])


def test_no_edges():
    table = jkc.edge_table([], [], num_inputs=2)
    np.testing.assert_array_equal(jkc.knn_conv(np.ones((2, 1)), np.ones((1, 1, 1)), table, np.ones(1)), [[1], [1]])


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (([[0]], [0]), {}, ValueError, r"sources: got shape \(1, 1\), expected \[E\]"),
        (([0, 1], [0]), {}, ValueError, r"targets: got shape \(1,\), expected sources' \(2,\)"),
        (([0, 1], [0, 3]), {}, ValueError, r"targets: got 3 at edge 1, expected \[0, num_outputs\) = \[0, 3\)"),
        (([0], [-1]), {}, ValueError, "targets: got -1 at edge 0"),
        (
            ([0], [0], [2]),
            {"num_slots": 2},
            ValueError,
            r"slots: got 2 at edge 0, expected \[0, num_slots\) = \[0, 2\)",
        ),
        (([0], [0], [0]), {}, TypeError, "num_slots: got None.*where slots are given"),
        (([0.0], [0]), {}, TypeError, "sources: got dtype float64"),
        (([0], [0]), {"num_outputs": 1.5}, TypeError, "num_outputs: got 1.5"),
    ],
)
def test_errors(arguments, options, kind, message):
    with pytest.raises(kind, match=message):
        jkc.edge_table(*arguments, num_inputs=3, **options)


def test_traced_edges():
    with pytest.raises(TypeError, match="sources: got a traced array"):
        jax.jit(lambda e: jkc.edge_table(e, e, num_inputs=3))(np.arange(3))
