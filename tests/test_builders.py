"""Table builders against brute force in NumPy and against XLA's dense convolution."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_knnconv as jkc
from jax_knnconv.builders import knn_table, radius_table
from jax_knnconv.grids import grid_table, submanifold_table
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


def forward(x, w, table):
    """x [N, C], w [V, C, O]; slots are columns unless the table has them."""
    indices = np.asarray(table.indices)
    slots = np.broadcast_to(np.arange(indices.shape[1]), indices.shape) if table.slots is None else table.slots
    y = np.zeros((len(indices), w.shape[2]))
    for k in range(indices.shape[1]):
        taps = (indices[:, k] >= 0) & (indices[:, k] < len(x))
        y[taps] += np.einsum("nc,nco->no", x[indices[taps, k]], w[np.asarray(slots)[taps, k]])
    return y


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
    with pytest.raises(TypeError, match="points: got a traced array"):
        jax.jit(lambda p: knn_table(p, k=1))(jnp.zeros((2, 2)))


def dense(x, w, **window):
    """XLA's convolution of x [grid..., C] with w [kernel..., C, O]."""
    spatial = "DHW"[-(x.ndim - 1) :]
    layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    y = jax.lax.conv_general_dilated(x[None], w, dimension_numbers=layout, precision="highest", **window)
    return np.asarray(y[0])


GRIDS = [
    ((9,), (3,), (2,), (1,), "SAME"),
    ((8,), (4,), (3,), (2,), "SAME_LOWER"),
    ((6, 6), (3, 3), (1, 1), (1, 1), "SAME"),
    ((7, 5), (2, 3), (2, 1), (1, 2), "SAME_LOWER"),
    ((7, 8), (3, 2), (1, 3), (2, 1), "VALID"),
    ((6, 7), (3, 3), (2, 2), (1, 1), ((1, 2), (0, 3))),
    ((6, 7), (3, 2), (1, 2), (1, 2), ((-1, 2), (3, -2))),
    ((2, 5), (3, 3), (1, 1), (1, 1), "VALID"),
    ((4, 3, 5), (3, 2, 3), (1, 2, 2), (1, 1, 1), "SAME"),
]


@pytest.mark.parametrize(("shape", "kernel", "stride", "dilation", "padding"), GRIDS)
def test_grid_equals_a_dense_convolution(shape, kernel, stride, dilation, padding):
    rng = np.random.default_rng(0)
    # Small integers: fp32 convolution is exact.
    x = rng.integers(-8, 8, (*shape, 2)).astype(np.float32)
    w = rng.integers(-8, 8, (*kernel, 2, 3)).astype(np.float32)
    pads, cropped = padding, x
    if not isinstance(padding, str):
        # XLA:CPU is not to be trusted with negative pads; cropping is the same.
        crops = (slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(padding, shape, strict=True))
        pads, cropped = np.maximum(padding, 0).tolist(), x[tuple(crops)]
    right = dense(cropped, w, window_strides=stride, padding=pads, rhs_dilation=dilation)
    table = grid_table(shape, kernel, stride=stride, padding=padding, dilation=dilation)
    assert (table.num_inputs, table.num_slots) == (np.prod(shape), np.prod(kernel))
    y = forward(x.reshape(-1, 2), w.reshape(-1, 2, 3), table)
    np.testing.assert_array_equal(y, right.reshape(-1, 3))


def test_case_26_image_as_a_table():
    table = grid_table((6, 6), 3)
    assert table.indices.shape == (36, 9)
    np.testing.assert_array_equal(table.indices[0], [-1, -1, -1, -1, 0, 1, -1, 6, 7])
    totals = forward(np.ones((36, 1)), np.ones((9, 1, 1)), table).reshape(6, 6)
    assert (totals[1:-1, 1:-1] == 9).all()
    assert (totals[0, 1:-1] == 6).all()
    assert totals[0, 0] == 4


@pytest.mark.parametrize(("size", "right"), [(5, [210, 432, 54]), (6, [321, 543, 65])])
def test_case_30_same_with_stride_2(size, right):
    table = grid_table(size, 3, stride=2)
    w = np.array([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    np.testing.assert_array_equal(forward(np.arange(1.0, size + 1)[:, None], w, table).ravel(), right)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"kernel_shape": (3,)}, ValueError, r"kernel_shape: got 1 sizes \(3,\), expected 2"),
        ({"kernel_shape": 0}, ValueError, "kernel_shape: got 0, expected at least 1"),
        ({"shape": (4, -1)}, ValueError, "shape: got -1"),
        ({"shape": (4, 1.0)}, TypeError, "shape: got 1.0 of type float"),
        ({"stride": 0}, ValueError, "stride: got 0"),
        ({"dilation": (1, 2, 3)}, ValueError, "dilation: got 3 sizes"),
        ({"padding": "CIRCULAR"}, ValueError, "padding: got 'CIRCULAR'"),
        ({"padding": [(1, 1)]}, ValueError, "padding: got 1 entries"),
        ({"padding": [(1, 1), (1, 1, 1)]}, ValueError, r"padding: got \(1, 1, 1\)"),
        ({"padding": 1.5}, ValueError, "padding: got 1.5"),
    ],
)
def test_bad_grids(arguments, error, text):
    with pytest.raises(error, match=text):
        grid_table(**{"shape": (4, 4), "kernel_shape": (3, 3), **arguments})


def test_integer_padding_is_the_same_on_every_side():
    for padding in (2, (2, 2), [(2, 2), (2, 2)]):
        table = grid_table((5, 4), 3, padding=padding)
        np.testing.assert_array_equal(table.indices, grid_table((5, 4), 3, padding=((2, 2), (2, 2))).indices)
        assert table.num_outputs == 7 * 6


def test_padding_names_in_any_case():
    np.testing.assert_array_equal(grid_table(4, 2, padding="same_lower").indices, [[-1, 0], [0, 1], [1, 2], [2, 3]])


def test_empty_grid():
    assert grid_table((0, 4), 3).indices.shape == (0, 9)
    assert grid_table((0, 4), 3, padding=2).indices.shape == (2 * 6, 9)


def test_case_28_submanifold():
    cells = [(0, 0), (0, 2), (1, 1), (2, 0), (3, 3)]
    table = submanifold_table(cells, 3)
    y = forward(np.ones((5, 1)), np.ones((9, 1, 1)), table)
    np.testing.assert_array_equal(y.ravel(), [2, 2, 4, 2, 1])


@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3), 1), ((2, 5), 1), ((3, 4), (2, 1)), ((1, 3), 3)])
def test_submanifold_is_a_dense_convolution_at_active_cells(kernel, dilation):
    rng = np.random.default_rng(0)
    cells = rng.permutation(np.argwhere(rng.random((9, 8)) < 0.4))
    x, w = rng.integers(-8, 8, (len(cells), 2)), rng.integers(-8, 8, (*kernel, 2, 3))
    full = np.zeros((9, 8, 2), np.float32)
    full[tuple(cells.T)] = x
    rhs_dilation = np.broadcast_to(dilation, 2)
    right = dense(full, w.astype(np.float32), window_strides=(1, 1), padding="SAME", rhs_dilation=rhs_dilation)
    for shift in (0, -100, 2**40):
        table = submanifold_table(cells + shift, kernel, dilation=dilation)
        y = forward(x.astype(np.float64), w.reshape(-1, 2, 3), table)
        np.testing.assert_array_equal(y, right[tuple(cells.T)])


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.tuples(*[st.integers(-3, 3)] * 3), max_size=25).map(sorted).flatmap(st.permutations),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.integers(1, 2),
)
def test_submanifold_by_lookup(cells, kernel, dilation):
    rows = {cell: row for row, cell in enumerate(cells)}
    low = [((f - 1) * dilation) // 2 for f in kernel]
    right = [
        [
            rows.get(tuple(c + t * dilation - p for c, t, p in zip(cell, taps, low, strict=True)), -1)
            for taps in itertools.product(*map(range, kernel))
        ]
        for cell in cells
    ]
    table = submanifold_table(np.array(cells, np.int8).reshape(-1, 3), kernel, dilation=dilation)
    np.testing.assert_array_equal(table.indices, np.array(right).reshape(len(cells), np.prod(kernel)))


def test_submanifold_coordinates_of_every_width():
    for dtype in (np.int8, np.uint8, np.int64, np.uint64):
        limits = np.iinfo(dtype)
        cells = np.array([[limits.max], [limits.max - 1]], dtype)
        np.testing.assert_array_equal(submanifold_table(cells, 3).indices, [[1, 0, -1], [-1, 1, 0]])
    far_apart = np.array([[-128], [127], [126]], np.int8)
    np.testing.assert_array_equal(submanifold_table(far_apart, 3).indices, [[-1, 0, -1], [2, 1, -1], [-1, 2, 1]])


@pytest.mark.parametrize(
    ("cells", "error", "text"),
    [
        (np.zeros((2, 2)), TypeError, "coordinates: got dtype float64"),
        (np.zeros(2, int), ValueError, r"coordinates: got shape \(2,\)"),
        (np.array([[1, 2], [3, 4], [1, 2]]), ValueError, r"coordinates: got cell \[1, 2\] twice, in rows 0 and 2"),
        (np.array([[0, 0], [2**40, 2**40]]), ValueError, "coordinates: got a box of"),
        (np.array([[-(2**63), 0], [2**63 - 1, 0]]), ValueError, "coordinates: got a box of"),
    ],
)
def test_bad_coordinates(cells, error, text):
    with pytest.raises(error, match=text):
        submanifold_table(cells, 3)


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
