"""grid_table and submanifold_table against XLA's dense convolution."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_checks import forward

from jax_knnconv.grids import grid_table, submanifold_table


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
        ({"padding": True}, ValueError, "padding: got True"),
        ({"padding": [(2**63, -(2**63)), (0, 0)]}, ValueError, r"padding: got .*less than 2\*\*31"),
        ({"shape": (2**16, 2**15)}, ValueError, f"shape, number of cells N: got {2**31}"),
        ({"padding": 2**16}, ValueError, f"shape, number of output cells M: got {(2**17 + 2) ** 2}"),
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
