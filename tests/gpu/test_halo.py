"""The halo kernels of few channels on the GPU, forced, against NumPy float64."""

import gpu_calls as calls
import gpu_dweight_calls
import gpu_problems
import jax
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

# B, H, W, C, O, kernel, stride, padding, dilation, output size
SHAPES = [
    (3, 32, 32, 32, 32, (3, 3), (1, 1), (1, 1), (1, 1), (32, 32)),
    (3, 33, 17, 3, 32, (3, 3), (1, 1), (1, 1), (1, 1), (33, 17)),
    (2, 16, 16, 32, 64, (3, 3), (1, 1), (1, 1), (1, 1), (16, 16)),
    (2, 41, 37, 3, 64, (7, 7), (2, 2), (2, 2), (1, 1), (21, 19)),
    (2, 19, 23, 16, 24, (3, 2), (2, 3), (1, 0), (2, 1), (8, 8)),
    (1, 40, 5, 8, 5, (5, 1), (1, 1), (2, 0), (1, 1), (40, 5)),
    (2, 13, 9, 12, 20, (2, 4), (1, 2), (-1, 3), (1, 2), (10, 5)),
    (1, 21, 22, 1, 100, (3, 3), (3, 1), (0, 0), (1, 1), (7, 20)),
    (1, 9, 9, 24, 16, (2, 2), (4, 3), (0, 0), (1, 1), (2, 3)),
    (2, 7, 6, 33, 4, (1, 1), (1, 1), (0, 0), (1, 1), (7, 6)),
]
DTYPES = [(F16, F16, F16), (BF16, BF16, F32), (F16, F32, F16), (BF16, F32, BF16)]  # products, x, results
HALO = {"kernel": "halo"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "x_dtype", "out_dtype"), DTYPES)
def test_forward(shape, dtype, x_dtype, out_dtype):
    x, weight, bias, _, _, window = gpu_problems.dense(shape, dtype, x_dtype)
    y = calls.dense_forward(x, weight, bias, output_size=shape[-1], out_dtype=out_dtype, **HALO, **window)
    operands = x.astype(dtype), weight, bias
    exact = oracle.dense_forward(*operands, output_size=shape[-1], **window)
    bound = gpu_problems.bound(oracle.dense_forward, *operands, output_size=shape[-1], **window)
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), [(F16, F16), (BF16, F32), (BF16, BF16)])
def test_dinput(shape, dtype, out_dtype):
    _, weight, _, g, _, window = gpu_problems.dense(shape, dtype)
    dx = calls.dense_dinput(g, weight, input_size=shape[1:3], out_dtype=out_dtype, **HALO, **window)
    exact = oracle.dense_dinput(g, weight, input_size=shape[1:3], **window)
    bound = gpu_problems.bound(oracle.dense_dinput, g, weight, input_size=shape[1:3], **window)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "x_dtype", "out_dtype"), DTYPES)
def test_dweight(shape, dtype, x_dtype, out_dtype):
    x, _, _, g, _, window = gpu_problems.dense(shape, dtype, x_dtype)
    window["kernel_size"] = shape[5]
    found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=out_dtype, **HALO, **window)
    x = x.astype(dtype)
    bound = gpu_problems.bound(oracle.dense_dweight, x, g, **window)
    gpu_dweight_calls.check(found, oracle.dense_dweight(x, g, **window), bound, out_dtype)


@pytest.mark.parametrize("slices", [2, 30])
def test_slices_and_chains(slices):
    # 11,520 positions: with little room for slices, each is longer than a chain.
    shape = (20, 24, 24, 16, 32, (3, 3), (1, 1), (1, 1), (1, 1), (24, 24))
    x, _, _, g, _, window = gpu_problems.dense(shape, BF16)
    window["kernel_size"] = shape[5]
    found = gpu_dweight_calls.dense_dweight(x, g, out_dtype=F32, slices=slices, **HALO, **window)
    gpu_dweight_calls.check(
        found, oracle.dense_dweight(x, g, **window), gpu_problems.bound(oracle.dense_dweight, x, g, **window), F32
    )


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_ones_count_taps(dtype):  # case 6
    side = np.array([2] + [3] * 30 + [2])
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    for c in 3, 8:
        x, weight = np.ones((4, 32, 32, c), dtype), np.ones((3, 3, c, 8), dtype)
        y = calls.dense_forward(x, weight, None, output_size=(32, 32), out_dtype=dtype, **HALO, **window)
        np.testing.assert_array_equal(
            y.astype(np.float32), np.broadcast_to((c * side[:, None] * side)[..., None], y.shape)
        )
        dx = calls.dense_dinput(y * 0 + 1, weight, input_size=(32, 32), out_dtype=dtype, **HALO, **window)
        np.testing.assert_array_equal(
            dx.astype(np.float32), np.broadcast_to((8 * side[:, None] * side)[..., None], dx.shape)
        )


@pytest.mark.parametrize("c", [3, 8, 12])
def test_what_no_tap_reads_does_not_matter(c):
    # VALID with stride 3: the last row and column are read by no tap, but lie in the halo of pixels that do not exist.
    window = {"stride": (3, 3), "padding": (0, 0), "dilation": (1, 1)}
    rng = np.random.default_rng(1)
    x, g = calls.normal(rng, (2, 9, 9, c), BF16), calls.normal(rng, (2, 2, 2, 16), BF16)
    weight = calls.normal(rng, (3, 3, c, 16), BF16)
    x[:, 6:], x[:, :, 6:] = np.nan, np.inf
    y = calls.dense_forward(x, weight, None, output_size=(2, 2), out_dtype=F32, **HALO, **window)
    x[:, 6:], x[:, :, 6:] = 0, 0
    np.testing.assert_allclose(y, oracle.dense_forward(x, weight, None, output_size=(2, 2), **window), atol=1e-4)
    exact = oracle.dense_dweight(x, g, kernel_size=(3, 3), **window)
    x[:, 6:], x[:, :, 6:] = np.nan, np.inf
    found = gpu_dweight_calls.dense_dweight(x, g, kernel_size=(3, 3), out_dtype=F32, **HALO, **window)
    np.testing.assert_allclose(found[0], exact[0], atol=1e-4)


@pytest.mark.parametrize("c", [1, 8, 24])
def test_infinity_stays_infinite(c):
    """Depth that only fills a step up multiplies zeros with zeros."""
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x, weight = np.ones((1, 5, 5, c), F16), np.ones((3, 3, c, 8), F16)
    x[0, 2, 2] = np.inf
    y = calls.dense_forward(x, weight, None, output_size=(5, 5), out_dtype=F16, **HALO, **window)
    assert not np.isnan(y).any()
    np.testing.assert_array_equal(np.isinf(y[0, 1:4, 1:4]), True)


def test_groups_share_or_own():
    rng = np.random.default_rng(3)
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x = calls.normal(rng, (2, 1, 4, 5, 6, 8), F16)  # groups 2 and 1, batch 4
    weight = calls.normal(rng, (1, 3, 3, 3, 8, 16), F16)
    bias = calls.normal(rng, (2, 3, 16), F32)
    y = calls.dense_forward(x, weight, bias, output_size=(5, 6), out_dtype=F32, lead=(2, 3), **HALO, **window)
    g = calls.normal(rng, (1, 3, 4, 5, 6, 16), F16)
    dx = calls.dense_dinput(g, weight, input_size=(5, 6), out_dtype=F32, lead=(1, 3), **HALO, **window)
    dw, db = gpu_dweight_calls.dense_dweight(x, g, kernel_size=(3, 3), out_dtype=F32, lead=(2, 3), **HALO, **window)
    for i, j in np.ndindex(2, 3):
        exact = oracle.dense_forward(x[i, 0], weight[0, j], bias[i, j], output_size=(5, 6), **window)
        np.testing.assert_allclose(y[i, j], exact, rtol=0, atol=2e-4)
        exact = oracle.dense_dinput(g[0, j], weight[0, j], input_size=(5, 6), **window)
        np.testing.assert_allclose(dx[0, j], exact, rtol=0, atol=2e-4)
        exact = oracle.dense_dweight(x[i, 0], g[0, j], kernel_size=(3, 3), **window)
        np.testing.assert_allclose(dw[i, j], exact[0], rtol=0, atol=2e-4)
        np.testing.assert_allclose(db[i, j], exact[1], rtol=0, atol=2e-4)


def test_same_bits_every_time():  # case 11
    for shape in SHAPES[:2]:
        x, weight, bias, g, _, window = gpu_problems.dense(shape, BF16)
        first = None
        for _ in range(10):
            y = calls.dense_forward(x, weight, bias, output_size=shape[-1], out_dtype=F32, **HALO, **window)
            dx = calls.dense_dinput(g, weight, input_size=shape[1:3], out_dtype=F32, **HALO, **window)
            dw, db = gpu_dweight_calls.dense_dweight(x, g, kernel_size=shape[5], out_dtype=F32, **HALO, **window)
            found = [value.tobytes() for value in (y, dx, dw, db)]
            first = first or found
            assert found == first


def test_refuses_what_does_not_fit():
    x, weight = np.ones((1, 8, 8, 64), F16), np.ones((7, 7, 64, 64), F16)
    window = {"stride": (1, 1), "padding": (3, 3), "dilation": (1, 1)}
    with pytest.raises(jax.errors.JaxRuntimeError, match='kernel="halo" does not take this call'):
        calls.dense_forward(x, weight, None, output_size=(8, 8), out_dtype=F16, **HALO, **window)


# Batch, N, M, K, C, O
STEMS = [(5, 200, 70, 30, 3, 96), (2, 61, 33, 9, 4, 40), (1, 90, 17, 5, 1, 128), (3, 4085, 40, 121, 3, 64)]


@pytest.mark.parametrize("shape", STEMS, ids=str)
@pytest.mark.parametrize(("dtype", "x_dtype", "out_dtype"), DTYPES)
def test_stem_forward(shape, dtype, x_dtype, out_dtype):
    batch, n, m, k, c, o = shape
    rng = np.random.default_rng(4)
    x = calls.normal(rng, (batch, n, c), x_dtype)
    weight, bias = calls.normal(rng, (k, c, o), dtype, (k * c) ** -0.5), calls.normal(rng, (o,), F32)
    indices, _ = calls.random_table(rng, m, k, n)
    x[:, 0], indices[indices == 0] = np.nan, 1  # what is read by no tap does not matter
    for zero in False, True:
        y = calls.knn_forward(x, weight, indices, bias=bias, out_dtype=out_dtype, zero_empty_rows=zero, **HALO)
        clean = np.nan_to_num(x.astype(dtype))
        exact = oracle.knn_forward(clean, weight, indices, None, bias, zero_empty_rows=zero)
        bound = oracle.knn_forward(abs(oracle.f64(clean)), abs(oracle.f64(weight)), indices, None, abs(bias))
        oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)


def test_stem_groups():
    rng = np.random.default_rng(5)
    x, weight = calls.normal(rng, (2, 1, 3, 50, 3), F16), calls.normal(rng, (1, 3, 9, 3, 16), F16)
    indices, bias = rng.integers(-1, 50, (2, 1, 20, 9)).astype(np.int32), calls.normal(rng, (2, 3, 16), F32)
    y = calls.knn_forward(x, weight, indices, bias=bias, out_dtype=F32, lead=(2, 3), **HALO)
    for i, j in np.ndindex(2, 3):
        exact = oracle.knn_forward(x[i, 0], weight[0, j], indices[i, 0], None, bias[i, j])
        np.testing.assert_allclose(y[i, j], exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("shape", STEMS, ids=str)
@pytest.mark.parametrize(("dtype", "x_dtype", "out_dtype"), DTYPES)
def test_stem_dweight(shape, dtype, x_dtype, out_dtype):
    batch, n, m, k, c, o = shape
    rng = np.random.default_rng(6)
    x, g = calls.normal(rng, (batch, n, c), x_dtype), calls.normal(rng, (batch, m, o), dtype)
    indices, _ = calls.random_table(rng, m, k, n)
    x[:, 0], indices[indices == 0] = np.nan, 1
    found = gpu_dweight_calls.knn_dweight(x, g, indices, num_slots=k, out_dtype=out_dtype, **HALO)
    clean = np.nan_to_num(x.astype(dtype))
    exact = oracle.knn_dweight(clean, g, indices, None, num_slots=k)
    bound = oracle.knn_dweight(abs(oracle.f64(clean)), abs(oracle.f64(g)), indices, None, num_slots=k)
    gpu_dweight_calls.check(found, exact, bound, out_dtype)
