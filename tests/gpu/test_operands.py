"""Operands that are no plain arrays of the compute dtype: transposed and sliced ones, and wider ones."""

import functools

import gpu_calls as calls
import gpu_dweight_calls
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")

WINDOW = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
# Staged by elements, 16 bytes at a time, and by Hopper's copy engine.
CHANNELS = [(5, 7), (16, 24), (64, 64)]


def _turned(array):
    """The array as a transpose of one with its axes the other way round."""
    return array.transpose(), lambda turned: turned.transpose()


def _cut(array):
    """The array as every other row, from the second on, of one that is larger in all dimensions."""
    large = np.full([2 * size + 3 for size in array.shape], np.nan, array.dtype)
    inner = tuple(slice(1, 1 + 2 * size, 2) for size in array.shape)
    large[inner] = array
    return large, lambda given: given[inner]


def _moved(array):
    """The array as the part of a flat one behind its first element: XLA passes an address at a multiple of 2."""
    flat = np.concatenate([np.full(1, np.nan, array.dtype), array.ravel()])
    return flat, lambda given: given[1:].reshape(array.shape)


def _passes(rng, c, o, **options):
    """Each pass as a function of two operands, and the operands."""
    table = jkc.NeighborTable(calls.random_table(rng, 40, 9, 50)[0], num_inputs=50)
    image, pixels = calls.normal(rng, (2, 9, 8, c), BF16), calls.normal(rng, (2, 9, 8, o), BF16)
    kernel = calls.normal(rng, (3, 3, c, o), BF16, 0.1)
    x, g = calls.normal(rng, (70, 50, c), F16), calls.normal(rng, (70, 40, o), F16)
    weight = kernel.reshape(9, c, o).astype(F16)
    return {
        "dense forward": (functools.partial(jkc.conv2d, **options), image, kernel),
        "dense dinput": (functools.partial(jkc.conv2d_dinput, input_shape=image.shape, **options), pixels, kernel),
        "dense dweight": (functools.partial(jkc.conv2d_dweight, kernel_shape=(3, 3), **options), image, pixels),
        "KNN forward": (functools.partial(jkc.knn_conv, table=table, **options), x, weight),
        "KNN dinput": (functools.partial(jkc.knn_dinput, table=table, **options), g, weight),
        "KNN dweight": (functools.partial(jkc.knn_dweight, table=table, **options), x, g),
    }


@pytest.mark.parametrize("view", [_turned, _cut, _moved])
@pytest.mark.parametrize(("c", "o"), CHANNELS)
def test_views_are_read_as_copies_are(c, o, view):
    passes = _passes(np.random.default_rng(0), c, o, preferred_element_type=jnp.float32)
    for name, (compute, *operands) in passes.items():
        views = [view(operand) for operand in operands]
        found = jax.jit(lambda *given: compute(*(take(v) for (_, take), v in zip(views, given, strict=True))))(  # noqa: B023
            *(given for given, _ in views)
        )
        expected = jax.jit(compute)(*operands)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            # Kernels that copy 16 bytes at a time leave such addresses to others, which add in another order.
            slack = 2**-18 * float(jnp.abs(b).max()) if view is _moved else 0
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=slack, err_msg=name)


@pytest.mark.parametrize(("c", "o"), CHANNELS)
def test_results_go_to_any_address(c, o):
    """Results that XLA may let a call write behind the first element of a larger array, between what stands there."""

    def inserted(compute, *operands):
        results = jax.tree.leaves(compute(*operands))
        return [
            jax.lax.dynamic_update_slice(jnp.full(r.size + 3, 7, r.dtype), r.ravel(), (1,)) for r in results
        ], results

    for name, (compute, *operands) in _passes(np.random.default_rng(3), c, o).items():
        found, expected = jax.jit(functools.partial(inserted, compute))(*operands)
        alone = jax.jit(lambda *given: inserted(compute, *given)[0])(*operands)  # noqa: B023
        for array, other, result in zip(found, alone, expected, strict=True):
            exact = np.asarray(result, np.float32).ravel()
            close = {"rtol": 2**-7, "atol": 2**-10 * np.abs(exact).max(), "err_msg": name}
            for values in np.asarray(array, np.float32), np.asarray(other, np.float32):
                assert [values[0], *values[-2:]] == [7, 7, 7], name
                np.testing.assert_allclose(values[1:-2], exact, **close)


def _wide(rng, shape):
    """Float32 values, some of which are no numbers of float16's range."""
    x = calls.normal(rng, shape, F32) * 3
    x.reshape(-1)[:4] = 70000, np.nan, 1e-9, -65519.9
    return x


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("staging", [0, 1])
@pytest.mark.parametrize("c", [3, 8, 64])
def test_float32_input_is_rounded_as_read(c, staging, dtype):
    rng = np.random.default_rng(1)
    tile, dweight_tile = (64, 64, staging), (128, 64, staging)
    image, x = _wide(rng, (2, 9, 8, c)), _wide(rng, (3, 50, c))
    kernel, weight = calls.normal(rng, (3, 3, c, 16), dtype, 0.1), calls.normal(rng, (9, c, 16), dtype, 0.1)
    pixels, g = calls.normal(rng, (2, 9, 8, 16), dtype), calls.normal(rng, (3, 40, 16), dtype)
    tables = [(indices, slots) for slots in (None, 9) for indices, slots in [calls.random_table(rng, 40, 9, 50, slots)]]
    runs = [
        (functools.partial(calls.dense_forward, weight=kernel, bias=None, output_size=(9, 8), **WINDOW), image, tile),
        (
            functools.partial(gpu_dweight_calls.dense_dweight, g=pixels, kernel_size=(3, 3), **WINDOW),
            image,
            dweight_tile,
        ),
    ]
    for indices, slots in tables:
        knn = {"indices": indices, "slots": slots}
        runs.append((functools.partial(calls.knn_forward, weight=weight, **knn), x, tile))
        runs.append((functools.partial(gpu_dweight_calls.knn_dweight, g=g, num_slots=9, **knn), x, dweight_tile))
    for run, wide, forced in runs:
        with np.errstate(over="ignore"):
            narrow = wide.astype(dtype)
        for tiles in None, forced:
            found, expected = (run(x, out_dtype=F32, tile=tiles) for x in (wide, narrow))
            if tiles is not None:  # one kernel, so that sums have one order
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                    np.testing.assert_array_equal(a, b)
            else:
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("c", [3, 8])
def test_float64_input_goes_by_way_of_float32(c):
    """Values between neighbours of float16, which rounding once would take elsewhere."""
    rng = np.random.default_rng(2)
    base = calls.normal(rng, (2, 9, 8, c), F16)
    between = base.astype(np.float64) * (1 + 2.0**-12) + np.sign(base.astype(np.float64)) * 2.0**-40
    weight = calls.normal(rng, (3, 3, c, 16), F32, 0.1)
    once = between.astype(np.float32)
    with jax.enable_x64(True):
        found = jkc.conv2d(jnp.asarray(between), jnp.asarray(weight), compute_dtype="float16")
    expected = jkc.conv2d(jnp.asarray(once), jnp.asarray(weight), compute_dtype="float16")
    assert expected.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected))
