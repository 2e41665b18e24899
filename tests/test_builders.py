"""knn_table and radius_table against brute force in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_checks import forward

import jax_knnconv as jkc
from jax_knnconv.builders import knn_table, radius_table
from jax_knnconv.table import NeighborTable


def nearest(points, queries, k, max_distance=np.inf):
    """[M, k] indices by a plain sort of (distance, index), -1 after the last within max_distance."""
    rows = []
    for query in queries:
        distances = np.sqrt(((points - query) ** 2).sum(axis=1))
        order = sorted((d, i) for i, d in enumerate(distances) if d <= max_distance)
        row = [i for _, i in order[:k]]
        rows.append(row + [-1] * (k - len(row)))
    return np.array(rows).reshape(len(queries), k)


# Integer coordinates: distances tie often, and are exact.
@st.composite
def places(draw):
    dimensions = draw(st.integers(1, 3))
    place = st.lists(st.integers(-2, 2), min_size=dimensions, max_size=dimensions)
    points = draw(st.lists(place, min_size=0, max_size=30))
    queries = draw(st.lists(place, min_size=0, max_size=6))
    return (np.array(p, np.float64).reshape(-1, dimensions) for p in (points, queries))


@settings(max_examples=80, deadline=None)
@given(places(), st.integers(1, 9), st.sampled_from([np.inf, 0, 1, 2.0]))
def test_knn_is_a_sort_by_distance_and_index(drawn, k, max_distance):
    points, queries = drawn
    table = knn_table(points, queries, k=k, max_distance=max_distance)
    np.testing.assert_array_equal(table.indices, nearest(points, queries, k, max_distance))
    assert (table.num_inputs, table.num_slots, table.slots) == (len(points), k, None)


@settings(max_examples=40, deadline=None)
@given(places(), st.sampled_from([0, 1, 1.5, 3]), st.sampled_from([None, 1, 4]))
def test_radius_keeps_the_nearest(drawn, radius, max_neighbors):
    points, queries = drawn
    counts = [int((((points - q) ** 2).sum(axis=1) <= radius**2).sum()) for q in queries]
    table = radius_table(points, queries, radius=radius, max_neighbors=max_neighbors)
    assert table.num_taps == (max_neighbors or max([1, *counts]))
    np.testing.assert_array_equal(table.indices, nearest(points, queries, table.num_taps, radius))


def test_knn_of_random_points_and_default_queries():
    points = np.random.default_rng(0).random((300, 3))
    right = nearest(points, points, 5)
    np.testing.assert_array_equal(knn_table(points, k=5).indices, right)
    np.testing.assert_array_equal(knn_table(jnp.asarray(points, jnp.float32), k=1).indices, right[:, :1])
    np.testing.assert_array_equal(knn_table(points, k=5, workers=2).indices, right)


@pytest.mark.parametrize("k", [2, 3, 5, 9])
def test_ties_at_the_last_neighbour_alone(k):
    """Nearer neighbours that do not tie tell nothing of the last, among more points than a leaf of the tree has."""
    points = np.random.default_rng(0).integers(-3, 4, (100, 2)).astype(np.float64)
    np.testing.assert_array_equal(knn_table(points, k=k).indices, nearest(points, points, k))


def test_ties_beyond_one_block_of_the_search(monkeypatch):
    monkeypatch.setattr("jax_knnconv.builders._TIE_BLOCK", 64)
    points = np.concatenate([np.ones((40, 2)), np.zeros((50, 2))])
    indices = np.asarray(knn_table(points, k=3).indices)
    np.testing.assert_array_equal(indices, [[0, 1, 2]] * 40 + [[40, 41, 42]] * 50)


def test_case_20_fewer_points_than_neighbours():
    table = knn_table([[0.0], [1.0], [3.0]], [[0.2]], k=8)
    np.testing.assert_array_equal(table.indices, [[0, 1, 2, -1, -1, -1, -1, -1]])
    assert forward(np.array([[3.0], [6.0], [9.0]]), np.ones((8, 1, 1)), table) == 18


def test_one_table_a_sample():
    points = np.random.default_rng(0).random((2, 3, 20, 2))
    queries = np.random.default_rng(1).random((2, 3, 7, 2))
    table = knn_table(points, queries, k=4)
    assert table.group_shape == (2, 3)
    for g in np.ndindex(2, 3):
        np.testing.assert_array_equal(table.indices[g], nearest(points[g], queries[g], 4))
    radius = radius_table(points, radius=0.3)
    counts = (np.linalg.norm(points[..., None, :] - points[..., None, :, :], axis=-1) <= 0.3).sum(-1)
    assert radius.num_taps == counts.max()


@pytest.mark.parametrize("build", [knn_table, radius_table])
def test_kernel_points_choose_the_slot(build):
    rng = np.random.default_rng(0)
    points, queries, kernel = rng.random((50, 2)), rng.random((9, 2)), rng.normal(size=(5, 2)) * 0.2
    sizes = {"k": 6, "max_distance": 0.2} if build is knn_table else {"radius": 0.2, "max_neighbors": 6}
    table = build(points, queries, kernel_points=kernel, **sizes)
    assert table.num_slots == 5
    right = nearest(points, queries, 6, 0.2)
    assert (right == -1).any()
    for m in range(9):
        offsets = points[right[m][right[m] >= 0]] - queries[m]
        slots = ((offsets[:, None] - kernel) ** 2).sum(-1).argmin(1)
        taps = np.asarray(table.indices[m]) >= 0
        found = zip(np.asarray(table.slots[m])[taps], np.asarray(table.indices[m])[taps], strict=True)
        assert sorted(found) == sorted(zip(slots, right[m][right[m] >= 0], strict=True))


@pytest.mark.parametrize("distance", [np.float32(1), np.array(1.0), jnp.float32(1), jnp.bfloat16(1), 1])
def test_numbers_of_any_kind_are_distances(distance):
    points = [[0.0], [1.0], [3.0]]
    np.testing.assert_array_equal(radius_table(points, radius=distance, workers=-1).indices, [[0, 1], [1, 0], [2, -1]])
    np.testing.assert_array_equal(knn_table(points, k=2, max_distance=distance).indices, [[0, 1], [1, 0], [2, -1]])


def test_equally_near_kernel_points_give_the_lowest_slot():
    table = knn_table([[0.0]], k=1, kernel_points=[[5.0], [1.0], [-1.0], [1.0]])
    np.testing.assert_array_equal(table.slots, [[1]])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((np.zeros(3),), {}, ValueError, r"points: got shape \(3,\)"),
        ((np.zeros((3, 2)), np.zeros((3, 1))), {}, ValueError, r"queries: got shape \(3, 1\)"),
        ((np.zeros((2, 3, 2)), np.zeros((3, 2))), {}, ValueError, r"queries: got shape \(3, 2\)"),
        (([[np.nan]],), {}, ValueError, "points: got values that are not finite"),
        (([[1.0]], [[np.inf]]), {}, ValueError, "queries: got values that are not finite"),
        (([["a"]],), {}, TypeError, "points: got dtype <U1"),
        (([[1j]],), {}, TypeError, "points: got dtype complex128"),
        (([[1.0]],), {"k": 0}, ValueError, "k: got 0, expected at least 1"),
        (([[1.0]],), {"k": 1.5}, TypeError, "k: got 1.5 of type float"),
        (([[1.0]],), {"max_distance": -1}, ValueError, "max_distance: got -1"),
        (([[1.0]],), {"max_distance": np.nan}, ValueError, "max_distance: got nan"),
        (([[1.0]],), {"max_distance": "1"}, TypeError, "max_distance: got '1' of type str"),
        (([[1.0]],), {"max_distance": True}, TypeError, "max_distance: got True of type bool"),
        (([[1.0]],), {"max_distance": [1.0]}, TypeError, r"max_distance: got \[1.0\] of type list"),
        (([[1.0]],), {"workers": 0}, ValueError, "workers .*: got 0, expected at least 1"),
        (([[1.0]],), {"workers": "all"}, TypeError, "workers .*: got 'all' of type str"),
        (([[1.0]],), {"kernel_points": [[1.0, 2.0]]}, ValueError, r"kernel_points: got shape \(1, 2\)"),
    ],
)
def test_bad_points(arguments, options, error, text):
    with pytest.raises(error, match=text):
        knn_table(*arguments, **{"k": 2, **options})


def test_bad_radius_and_traced_points():
    with pytest.raises(ValueError, match=r"radius: got -0\.5"):
        radius_table([[1.0]], radius=-0.5)
    with pytest.raises(ValueError, match="max_neighbors: got 0"):
        radius_table([[1.0]], radius=1, max_neighbors=0)
    with pytest.raises(ValueError, match=r"workers .*: got -2"):
        radius_table([[1.0]], radius=1, workers=-2)
    with pytest.raises(TypeError, match="points: got a traced array"):
        jax.jit(lambda p: knn_table(p, k=1))(jnp.zeros((2, 2)))


def icosphere(level):
    """Vertices and triangles of an icosahedron, each triangle split in four `level` times."""
    golden = (1 + 5**0.5) / 2
    vertices = [(0, a, b) for a in (-1, 1) for b in (-golden, golden)]
    vertices = np.array([np.roll(v, shift) for v in vertices for shift in range(3)], np.float64)
    close = np.isclose(np.linalg.norm(vertices[:, None] - vertices, axis=-1), 2)
    triangles = [t for t in itertools.combinations(range(12), 3) if close[np.ix_(t, t)].sum() == 6]
    vertices = [tuple(v) for v in vertices]
    for _ in range(level):
        middles, finer = {}, []
        for triangle in triangles:
            corners = []
            for a, b in itertools.combinations(triangle, 2):
                if (a, b) not in middles and (b, a) not in middles:
                    middles[a, b] = middles[b, a] = len(vertices)
                    vertices.append(tuple((np.array(vertices[a]) + vertices[b]) / 2))
                corners.append(middles[a, b])
            (a, b, c), (ab, ac, bc) = triangle, corners
            finer += [(a, ab, ac), (b, ab, bc), (c, ac, bc), (ab, ac, bc)]
        triangles = finer
    return np.array(vertices), np.array(triangles)


def test_case_27_sphere():
    vertices, triangles = icosphere(2)
    assert len(vertices) == 162
    ring = [set() for _ in vertices]
    for triangle in triangles.tolist():
        for corner in triangle:
            ring[corner] |= {*triangle} - {corner}
    indices = [[n, *sorted(neighbours), *[-1] * (6 - len(neighbours))] for n, neighbours in enumerate(ring)]
    table = NeighborTable(indices, num_inputs=162)
    y = forward(np.ones((162, 1)), np.ones((7, 1, 1)), table).ravel()
    assert ((y == 6).sum(), (y == 7).sum(), y.sum()) == (12, 150, 1122)
    run, back = jax.vjp(lambda x: jkc.knn_conv(x, np.ones((7, 1, 1), np.float32), table), jnp.ones((162, 1)))
    np.testing.assert_array_equal(run.ravel(), y)
    np.testing.assert_array_equal(back(jnp.ones((162, 1)))[0].ravel(), y)  # neighbourhood is mutual
    taps_of_source = np.diff(np.asarray(table.source_offsets)[:, 0])
    np.testing.assert_array_equal(taps_of_source, y)
    rows = np.asarray(table.source_rows)
    np.testing.assert_array_equal(np.bincount(rows[rows >= 0], minlength=162), y)
