"""What the benchmarks compare: shapes, operands, and both sides' passes held to NumPy float64."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_cases import SHORT, TINY_SHAPES

from benchmarks import compare, head_start, operands, peers, shapes

# The harness measures whatever runs, with compiled kernels or without.
pytestmark = pytest.mark.filterwarnings("ignore::jax_knnconv.FallbackWarning")


# Shapes and operands -----------------------------------------------------------------------------------------------


def test_names_tell_shapes_apart():
    for size in ("cpu", "gpu"):
        table = [*shapes.dense_shapes(size), *shapes.knn_shapes(size)]
        assert len({shape.name for shape in table}) == len(table) >= 26
        assert all(shapes.from_json(json.loads(json.dumps(shapes.to_json(shape)))) == shape for shape in table)


def test_cpu_sizes_fit_a_small_machine():
    for shape in (*shapes.dense_shapes("cpu"), *shapes.knn_shapes("cpu")):
        assert shapes.gathered_bytes(shape, 4) < 2**30
        assert shapes.moved_bytes(shape, 4) * operands.set_count(shape, 4) < 2**30


@pytest.mark.parametrize(
    ("shape", "taps"),
    [
        (shapes.Dense(1, 3, 3, 1, 1), 4 * 4 + 4 * 6 + 9),  # corners, edges, centre
        (shapes.Dense(1, 4, 4, 1, 1, kernel=2, stride=2), 16),
        (shapes.Dense(1, 5, 5, 1, 1, stride=2), 49),  # 2 + 3 + 2 taps in each direction
        (shapes.Knn(1, 1, 1, 8, 6, 5), 30),
    ],
)
def test_operations_count_taps_that_read(shape, taps):
    assert shape.taps == taps
    bigger = dataclasses.replace(shape, batch=3, channels=2, outputs=7)
    assert shapes.operations(bigger) == 2 * 3 * 2 * 7 * taps


def test_bytes():
    knn = shapes.Knn(2, 3, 5, 8, 6, 4)
    assert shapes.gathered_bytes(knn, 2) == 2 * 6 * 4 * 3 * 2
    assert shapes.moved_bytes(knn, 2) == (2 * 8 * 3 + 2 * 6 * 5 + 4 * 3 * 5) * 2 + 6 * 4 * 4
    dense = shapes.Dense(2, 4, 4, 3, 5, stride=2)
    assert shapes.gathered_bytes(dense, 4) == 2 * 2 * 2 * 9 * 3 * 4
    assert shapes.moved_bytes(dense, 4) == (2 * 16 * 3 + 2 * 4 * 5 + 9 * 3 * 5) * 4


def test_neighbours_are_the_nearest_points():
    shape = shapes.Knn(1, 1, 1, 40, 30, 6, space=3)
    points = np.random.default_rng(5).random((40, 3))
    distances = np.linalg.norm(points[:30, None] - points, axis=-1)
    expected = np.argsort(distances, axis=-1)[:, :6]
    np.testing.assert_array_equal(operands.neighbour_indices(shape, seed=5), expected)


def test_operand_sets_differ():
    made = operands.make(shapes.Knn(2, 4, 4, 8, 8, 5), "bfloat16", count=2)
    first, second = made.sets
    for a, b in zip(first, second, strict=True):
        assert a.dtype == jnp.bfloat16
        assert not np.array_equal(a, b)


# Ours and the peer -------------------------------------------------------------------------------------------------


def exact(shape, x, weight, g):
    """The three passes of a shape, and the sums of absolute products, in float64."""
    x, weight, g = (np.asarray(value, np.float64) for value in (x, weight, g))
    y, dx, dw = np.zeros(g.shape), np.zeros(x.shape), np.zeros(weight.shape)
    bounds = [np.zeros_like(value) for value in (y, dx, dw)]
    for row, source, slot in taps(shape):
        for out, a, w, cotangent in ((
            (y, dx, dw), x, weight, g), (bounds, abs(x), abs(weight), abs(g))):  # fmt: skip
            out[0][(slice(None), *row)] += a[(slice(None), *source)] @ w[slot]
            out[1][(slice(None), *source)] += cotangent[(slice(None), *row)] @ w[slot].T
            out[2][slot] += a[(slice(None), *source)].T @ cotangent[(slice(None), *row)]
    return (y, dx, dw), bounds


def taps(shape):
    """(output row, input row, slot) of every tap of a shape, one after the other."""
    if isinstance(shape, shapes.Knn):
        indices = operands.neighbour_indices(shape)
        for m, k in np.ndindex(indices.shape):
            yield (m,), (int(indices[m, k]),), (k,)
        return
    low = [
        max((count - 1) * shape.stride + shape.kernel - size, 0) // 2
        for size, count in zip(shape.rows_in, shape.rows_out, strict=True)
    ]
    for row in itertools.product(*map(range, shape.rows_out)):
        for slot in itertools.product(range(shape.kernel), repeat=2):
            source = tuple(r * shape.stride + f - pad for r, f, pad in zip(row, slot, low, strict=True))
            if all(0 <= s < size for s, size in zip(source, shape.rows_in, strict=True)):
                yield row, source, slot


@pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda shape: shape.name)
def test_every_pass_of_both_sides_is_right(shape):
    made = operands.make(shape, "float32", count=1)
    (values, bounds) = exact(shape, *made.sets[0])
    for side, forward in (("ours", peers.ours(shape)), ("peer", peers.peer(shape))):
        passes = [peers.one_pass(forward, name) for name in shapes.PASSES]
        arguments = (*made.sets[0], getattr(made, side))
        results = jax.jit(lambda *operands, passes=passes: [one(*operands) for one in passes])(*arguments)
        for name, result, value, bound in zip(shapes.PASSES, results, values, bounds, strict=True):
            error = np.abs(np.asarray(result, np.float64) - value)
            assert (error <= 2.0**-22 * bound + 1e-30).all(), (side, name, error.max())


def test_unknown_pass_is_refused():
    with pytest.raises(ValueError, match="forward, dinput or dweight, got 'backward'"):
        peers.one_pass(peers.peer(TINY_SHAPES[0]), "backward")


def test_difference():
    assert compare.difference(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
    assert compare.difference(np.zeros(2), np.zeros(2)) == 0
    assert compare.difference(np.array([np.nan]), np.array([1.0])) == float("inf")


def test_comparison_of_a_wrong_result_does_not_agree(monkeypatch):
    shape = TINY_SHAPES[-1]
    right = peers.ours(shape)
    monkeypatch.setattr(peers, "ours", lambda *_: lambda *operands: right(*operands).at[0, 0, 0].add(1))
    entry = compare.compare(shape, "forward", operands.make(shape, "float32", count=2), SHORT)
    assert not entry["agrees"]
    assert entry["difference"] > 0.05


def test_accelerator_is_timed_apart_from_its_host(monkeypatch):
    shape = TINY_SHAPES[0]
    made = operands.make(shape, "float32", count=2)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(head_start, "for_device", lambda: None)
    entry = compare.compare(shape, "forward", made, SHORT)
    assert entry["timed"] == "device"
    assert entry["agrees"]
    for side in compare.SIDES:
        assert all(entry[side][kind]["min_ms"] > 0 for kind in ("call", "host", "device"))
    best = {side: entry[side]["device"]["min_ms"] for side in compare.SIDES}
    assert entry["ratio"] == pytest.approx(best["peer"] / best["ours"])
