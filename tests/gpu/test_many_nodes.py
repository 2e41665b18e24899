"""More nodes and pixels than the 65,535 blocks of a grid's second dimension, in every pass and family of kernels.

And many nodes of which some are hubs.
"""

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16
from scipy import sparse

import jax_knnconv as jkc
from jax_knnconv import _ffi

pytestmark = pytest.mark.usefixtures("on_gpu")

NODES, SIDE = 70_001, 270


def _config(gpu, kernel):
    if kernel == "hopper" and (
        float(gpu.compute_capability) != 9 or "hopper" not in _ffi.load_backend("cuda").implementations
    ):
        pytest.skip("no Hopper GPU, or a module without its kernels")
    return {"config": jkc.KernelConfig(kernel=kernel)}


@pytest.mark.parametrize("with_slots", [False, True], ids=["columns", "slots"])
@pytest.mark.parametrize(("kernel", "batch"), [("portable", 1), ("portable", 20), ("hopper", 1), ("hopper", 64)])
def test_nodes(gpu, kernel, batch, with_slots):
    """A permutation of nodes, whose results are the operands' rows, and counts in dweight."""
    given = _config(gpu, kernel)
    rng = np.random.default_rng(0)
    order = rng.permutation(NODES).astype(np.int32)
    slots = np.ones((NODES, 1), np.int32) if with_slots else None
    table = jkc.NeighborTable(order[:, None], slots, num_inputs=NODES, num_slots=2 if with_slots else 1)
    weight = jnp.broadcast_to(jnp.eye(64, dtype=BF16), (table.num_slots, 64, 64))
    x = jax.random.normal(jax.random.key(0), (batch, NODES, 64), BF16)
    assert bool((jkc.knn_conv(x, weight, table, **given) == x[:, order]).all())
    dx = jkc.knn_dinput(x, weight, table, **given)
    assert bool((dx[:, order] == x).all())
    ones = jnp.ones_like(x)
    dw, db = jkc.knn_dweight(ones, ones, table, preferred_element_type=jnp.float32, **given)
    np.testing.assert_array_equal(dw[-1], np.full((64, 64), batch * NODES))
    np.testing.assert_array_equal(dw[:-1], np.zeros((table.num_slots - 1, 64, 64)))
    np.testing.assert_array_equal(db, np.full(64, batch * NODES))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "channels"), [("portable", 8), ("halo", 8), ("hopper", 64)])
def test_pixels(gpu, kernel, channels, stride):
    given = _config(gpu, kernel) | {"preferred_element_type": jnp.float32, "stride": stride, "padding": 1}
    rng = np.random.default_rng(1)
    out = (SIDE - 1) // stride + 1
    window = {"stride": (stride, stride), "dilation": (1, 1)}
    x = calls.normal(rng, (1, SIDE, SIDE, channels), F16)
    g = calls.normal(rng, (1, out, out, channels), F16)
    weight = calls.normal(rng, (3, 3, channels, channels), F16, 0.1)
    # The last corner of the image, with as much around it as its taps reach.
    y = jax.jit(lambda x, w: jkc.conv2d(x, w, **given))(x, weight)
    last = 6
    first = (out - last) * stride - 1
    exact = oracle.dense_forward(x[:, first:, first:], weight, output_size=(last, last), padding=(0, 0), **window)
    np.testing.assert_allclose(y[:, -last:, -last:], exact, rtol=0, atol=1e-3)
    dx = jax.jit(lambda g, w: jkc.conv2d_dinput(g, w, x.shape, **given))(g, weight)
    rows, least = 4 * stride, SIDE - 4 * stride  # a multiple of the stride
    least -= least % stride
    rows = SIDE - least
    exact = oracle.dense_dinput(
        g[:, least // stride - 1 :, least // stride - 1 :],
        weight,
        input_size=(rows + stride, rows + stride),
        padding=(1, 1),
        **window,
    )[:, stride:, stride:]
    np.testing.assert_allclose(dx[:, least:, least:], exact, rtol=0, atol=1e-3)
    ones = jnp.ones_like(x), jnp.ones_like(g)
    dw, db = jax.jit(lambda x, g: jkc.conv2d_dweight(x, g, (3, 3), **given))(*ones)
    side = np.array([sum(0 <= i * stride + f - 1 < SIDE for i in range(out)) for f in range(3)])
    np.testing.assert_array_equal(dw, np.broadcast_to(np.outer(side, side)[..., None, None], dw.shape))
    np.testing.assert_array_equal(db, np.full(channels, out * out))


def test_rows_of_a_stem():
    rng = np.random.default_rng(2)
    indices = rng.integers(-1, 100, (NODES, 9)).astype(np.int32)
    table = jkc.NeighborTable(indices, num_inputs=100)
    x, weight = calls.normal(rng, (2, 100, 3), F16), calls.normal(rng, (9, 3, 64), F16, 0.2)
    given = {"config": jkc.KernelConfig(kernel="halo"), "preferred_element_type": jnp.float32}
    y = jax.jit(lambda x, w: jkc.knn_conv(x, w, table, **given))(x, weight)
    some = np.r_[0:5, 65_534:65_540, NODES - 5 : NODES]
    exact = oracle.knn_forward(x, weight, indices[some])
    np.testing.assert_allclose(np.asarray(y)[:, some], exact, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("batch", [1, 10])
def test_hubs_among_many_nodes(batch, dtype):
    """Two sources have a tap of every other row each, in all slots. Integers, of which all sums are exact."""
    n, k, channels = 20_000, 9, 64
    rng = np.random.default_rng(3)
    rows = np.arange(n)
    indices = rng.integers(0, n, (n, k))
    indices[rows, rows % k] = rows % 2
    table = jkc.NeighborTable(indices, num_inputs=n)
    g = rng.integers(-3, 4, (batch, n, channels)).astype(np.float32)
    weight = rng.integers(-2, 3, (k, channels, channels)).astype(np.float32)
    dinput = jax.jit(lambda g, w: jkc.knn_dinput(g, w, table, preferred_element_type=jnp.float32))
    exact = np.zeros((batch, n, channels), np.float32)
    for slot in range(k):
        taps = sparse.csr_array((np.ones(n, np.float32), (indices[:, slot], rows)), shape=(n, n))
        exact += [taps @ products for products in g @ weight[slot].T]
    np.testing.assert_array_equal(dinput(g.astype(dtype), weight.astype(dtype)), exact)
