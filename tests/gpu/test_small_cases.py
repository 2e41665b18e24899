"""The field's small cases through the public operations on a GPU, all passes, in both 16-bit types."""

from __future__ import annotations

import itertools

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from spatial_cases import sphere

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")

HALVES = ["float16", "bfloat16"]


def _passes(x, weight, table, dtype, bias=0, **options):
    """(y, dx, dw, db), flat and in float32, of single-channel nodes with a cotangent of ones."""
    weight = jnp.asarray(np.reshape(weight, (-1, 1, 1)), dtype)
    x, bias = jnp.asarray(np.reshape(x, (1, -1, 1)), dtype), jnp.asarray([bias], jnp.float32)
    y, back = jax.vjp(lambda x, w, b: jkc.knn_conv(x, w, table, b, **options), x, weight, bias)
    return [np.asarray(value, np.float32).ravel().tolist() for value in (y, *back(jnp.ones_like(y)))]


CASES = {
    "8 holes": ([1, 2, 3], [1, 1], [[0, 3], [2, -1]], None, [1, 3], [1, 0, 1], [4, 0]),
    "9 NaN under a hole": ([np.nan, 2, 3], [1, 1], [[-1, -1], [1, 2]], None, [0, 5], [0, 1, 1], [2, 3]),
    "20 few neighbours": ([3, 6, 9], [1] * 8, [[0, 1, 2] + [-1] * 5], None, [18], [1, 1, 1], [3, 6, 9] + [0] * 5),
    "23 shared slots": ([1, 10, 100], [2, 3], [[0, 1, 2]], [[0, 0, 1]], [322], [2, 2, 3], [11, 100]),
    "25 duplicates": ([1, 5], [1, 10, 100], [[1, 1, 1]], None, [555], [0, 111], [5, 5, 5]),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_known_answers(name, dtype):
    x, weight, indices, slots, y, dx, dw = CASES[name]
    table = jkc.NeighborTable(indices, slots, num_inputs=len(x), num_slots=len(weight))
    found = _passes(x, weight, table, dtype, preferred_element_type=jnp.float32)
    assert found == [y, dx, dw, [len(indices)]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("empty_rows", "y", "db"), [("bias", [5, 7], 2), ("zero", [0, 7], 1)])
def test_all_hole_rows(empty_rows, y, db, dtype):  # case 24
    table = jkc.NeighborTable([[-1, -1], [0, 1]], num_inputs=2)
    assert _passes([1, 1], [1, 1], table, dtype, bias=5, empty_rows=empty_rows) == [y, [1, 1], [1, 1], [db]]


@pytest.mark.parametrize(("dtype", "expected"), [("float16", 40_000), ("bfloat16", 39_936)])
def test_shared_points(dtype, expected):  # case 2
    rows, points = 400_000, 10
    table = jkc.NeighborTable((np.arange(rows) % points)[:, None], num_inputs=points)
    x, weight = jnp.ones((1, points, 8), dtype), jnp.ones((1, 8, 1), dtype)
    dx = jax.vjp(lambda x: jkc.knn_conv(x, weight, table), x)[1](jnp.ones((1, rows, 1), dtype))[0]
    np.testing.assert_array_equal(np.asarray(dx, np.float32), np.full(x.shape, expected))


@pytest.mark.parametrize("dtype", HALVES)
def test_identity(dtype):  # cases 21 and 33
    n = 2**24 + 1
    table = jkc.NeighborTable(jnp.arange(n)[:, None], num_inputs=n)
    x = (jnp.arange(n * 8).reshape(n, 8) % 257).astype(dtype)
    weight = jnp.eye(8, dtype=dtype)[None]
    assert bool((jkc.knn_conv(x, weight, table) == x).all())
    assert bool((jkc.knn_dinput(x, weight, table) == x).all())
    first = jnp.zeros_like(x).at[n - 1].set(1)
    dw, db = jkc.knn_dweight(first, first, table, preferred_element_type=jnp.float32)
    np.testing.assert_array_equal(dw, np.ones((1, 8, 8)))
    np.testing.assert_array_equal(db, np.ones(8))


@pytest.mark.parametrize("dtype", HALVES)
def test_table_of_a_grid_is_dense(dtype):  # case 26, in integers, whose sums are exact
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.integers(-3, 4, shape), dtype)  # noqa: E731
    table = jkc.grid_table((6, 6), (3, 3))
    x, weight, g = draw(2, 36, 8), draw(9, 8, 16), draw(2, 36, 16)
    options = {"preferred_element_type": jnp.float32}
    image, kernel, pixels = x.reshape(2, 6, 6, 8), weight.reshape(3, 3, 8, 16), g.reshape(2, 6, 6, 16)
    found = (
        jkc.knn_conv(x, weight, table, **options),
        jkc.knn_dinput(g, weight, table, **options),
        *jkc.knn_dweight(x, g, table, **options),
    )
    expected = (
        jkc.conv2d(image, kernel, **options),
        jkc.conv2d_dinput(pixels, kernel, image.shape, **options),
        *jkc.conv2d_dweight(image, pixels, (3, 3), **options),
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.ravel(a), np.ravel(b))


def test_sphere():  # case 27
    vertices, table = sphere(2)
    y, dx, _, _ = _passes(np.ones(len(vertices)), np.ones(table.num_slots), table, "float16")
    assert sorted(y) == [6] * 12 + [7] * 150
    assert sum(dx) == 1122


def test_submanifold():  # case 28
    cells = [(0, 0), (0, 2), (1, 1), (2, 0), (3, 3)]
    offsets = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    numbers = {cell: number for number, cell in enumerate(cells)}
    indices = [[numbers.get((h + i, w + j), -1) for i, j in offsets] for h, w in cells]
    table = jkc.NeighborTable(indices, num_inputs=5)
    y, dx, _, _ = _passes(np.ones(5), np.ones(9), table, "bfloat16")
    assert y == dx == [2, 2, 4, 2, 1]


@pytest.mark.parametrize("out", [None, "float32"])
def test_dtypes_of_gradients(out):  # case 17
    x, weight = jnp.ones((1, 1, 8, 4), "bfloat16"), jnp.ones((1, 3, 4, 8), "bfloat16")
    loss = lambda x, w: jkc.conv2d(x, w, padding="VALID", preferred_element_type=out).astype("float32").sum()  # noqa: E731
    dx, dw = jax.grad(loss, (0, 1))(x, weight)
    assert dx.dtype == x.dtype
    assert dw.dtype == weight.dtype
    np.testing.assert_array_equal(np.asarray(dx, np.float32)[0, 0, :, 0], [8, 16, 24, 24, 24, 24, 16, 8])
    np.testing.assert_array_equal(np.asarray(dw, np.float32), np.full(weight.shape, 6))


def test_float64_rounds_to_float32_first():  # case 37
    just_above_half = 1 + 2.0**-11 + 2.0**-40  # float16 alone would round up; float32 first gives a tie, to even
    with jax.enable_x64(True):
        for implementation in "auto", "xla":
            values = np.float64([just_above_half])
            g16, x16 = jkc.cast_operands(values, values, "float16", implementation=implementation)
            assert (g16.item(), x16.item()) == (1, 1)


WINDOWS = list(itertools.product((1, 2, 3), (1, 2), ("SAME", "SAME_LOWER", "VALID", ((2, 1), (0, 3)))))


@pytest.mark.parametrize(("stride", "dilation", "padding"), WINDOWS, ids=str)
def test_every_window(stride, dilation, padding):  # case 38: odd sizes, and values whose sums are exact
    rng = np.random.default_rng(0)
    dtype = HALVES[(stride + dilation) % 2]
    x = rng.integers(-3, 4, (2, 11, 9, 8)).astype(np.float32)
    weight = rng.integers(-3, 4, (3, 2, 8, 16)).astype(np.float32)
    window = {"stride": stride, "dilation": dilation, "padding": padding}
    options = {"preferred_element_type": jnp.float32, **window}

    def passes(x, weight):
        y = jkc.conv2d(x, weight, **options)
        g = jnp.round(y / 64).astype(x.dtype)
        return (
            y,
            g,
            jkc.conv2d_dinput(g, weight, x.shape, **options),
            *jkc.conv2d_dweight(x, g, (3, 2), **options),
        )

    y, g, dx, dw, db = jax.jit(passes)(jnp.asarray(x, dtype), jnp.asarray(weight, dtype))
    low = []
    for size, kernel, pads in zip(
        (11, 9), (3, 2), padding if isinstance(padding, tuple) else (None, None), strict=True
    ):
        reach = (kernel - 1) * dilation + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        low.append(pads[0] if pads else {"SAME": total // 2, "SAME_LOWER": (total + 1) // 2, "VALID": 0}[padding])
    taps = {"stride": (stride, stride), "dilation": (dilation, dilation), "padding": tuple(low)}
    exact = (
        oracle.dense_forward(x, weight, None, output_size=y.shape[1:3], **taps),
        oracle.dense_dinput(g, weight, input_size=(11, 9), **taps),
        *oracle.dense_dweight(x, g, kernel_size=(3, 2), **taps),
    )
    for name, found, answer in zip(("y", "dx", "dw", "db"), (y, dx, dw, db), exact, strict=True):
        np.testing.assert_array_equal(oracle.f64(found), answer, err_msg=name)


@pytest.mark.parametrize(
    ("argnums", "present", "absent"),
    [(0, {"dinput"}, {"dweight"}), (1, {"dweight"}, {"dinput"}), (2, set(), {"dinput", "dweight"}),
     ((0, 1), {"dinput", "dweight"}, set())],
    ids=["x", "w", "bias", "both"],
)  # fmt: skip
def test_only_what_is_used_runs(argnums, present, absent):  # case 39
    table = jkc.NeighborTable([[0, 1], [2, -1]], num_inputs=3)
    operands = jnp.ones((2, 3, 8), "float16"), jnp.ones((2, 8, 8), "float16"), jnp.ones(8)
    knn = lambda x, w, b: (jkc.knn_conv(x, w, table, b).astype("float32") ** 2).sum()  # noqa: E731
    images = jnp.ones((1, 5, 5, 8), "float16"), jnp.ones((3, 3, 8, 8), "float16"), jnp.ones(8)
    dense = lambda x, w, b: (jkc.conv2d(x, w, b).astype("float32") ** 2).sum()  # noqa: E731
    for family, function, given in ("knn", knn, operands), ("dense", dense, images):
        text = jax.jit(jax.grad(function, argnums)).lower(*given).compile().as_text()
        for name in present:
            assert f"jax_knnconv_{family}_{name}_v1" in text
        for name in absent:
            assert f"jax_knnconv_{family}_{name}_v1" not in text


SUBSETS = [axes for axes in itertools.product((0, None), repeat=3) if axes != (None, None, None)]


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_vmap(axes):  # case 15
    rng = np.random.default_rng(1)
    size = 3
    x = jnp.asarray(calls.normal(rng, (size, 2, 7, 8), np.float16))
    weight = jnp.asarray(calls.normal(rng, (size, 3, 8, 16), np.float16))
    tables = [
        jkc.NeighborTable(rng.integers(-1, 8, (5, 3)), rng.integers(0, 3, (5, 3)), num_inputs=7, num_slots=3)
        for _ in range(size)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    operands = [
        value if axis == 0 else jax.tree.map(lambda leaf: leaf[0], value)
        for value, axis in zip((x, stacked, weight), axes, strict=True)
    ]

    def loss(x, table, w):
        return (jkc.knn_conv(x, w, table, preferred_element_type=jnp.float32) ** 2).sum()

    compute = jax.vmap(jax.value_and_grad(loss, (0, 2)), axes)
    text = jax.jit(compute).lower(*operands).compile().as_text()
    for name in "forward", "dinput", "dweight":
        assert text.count(f'custom_call_target="jax_knnconv_knn_{name}_v1"') == 1
    values, (dx, dw) = jax.jit(compute)(*operands)
    one = jax.jit(jax.value_and_grad(loss, (0, 2)))
    for i in range(size):
        row = [
            jax.tree.map(lambda leaf, i=i: leaf[i], value) if axis == 0 else value
            for value, axis in zip(operands, axes, strict=True)
        ]
        value, (row_dx, row_dw) = one(*row)
        np.testing.assert_allclose(values[i], value, rtol=1e-5)
        np.testing.assert_allclose(oracle.f64(dx[i]), oracle.f64(row_dx), rtol=2**-9, atol=1e-2)
        np.testing.assert_allclose(oracle.f64(dw[i]), oracle.f64(row_dw), rtol=2**-9, atol=1e-2)
