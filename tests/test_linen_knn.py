"""linen.KNNConv against the float64 oracle."""

import flax
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from flax import linen as nn
from linen_calls import run

import jax_knnconv as jkc
from jax_knnconv import linen

F32, BF16, F16 = cases.DTYPES
INDICES, SLOTS = cases.INDICES, cases.SLOTS


@pytest.mark.parametrize(
    ("dtype", "empty_rows", "at_call"),
    [(F32, "bias", False), (F32, "zero", True), (BF16, "zero", False), (F16, "bias", True)],
)
def test_knn_conv_is_right(dtype, empty_rows, at_call):
    table = jkc.NeighborTable(INDICES, SLOTS, num_inputs=6, num_slots=5)
    options = {"dtype": dtype, "empty_rows": empty_rows, "bias_init": nn.initializers.normal()}
    layer = linen.KNNConv(4, **options) if at_call else linen.KNNConv(4, table, **options)
    call = {"table": table} if at_call else {}
    x = cases.normal(0, 2, 6, 3)
    variables = layer.init(jax.random.key(0), x, **call)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"kernel": (5, 3, 4), "bias": (4,)}}
    cotangent = cases.normal(2, 2, 4, 4, dtype=dtype)
    operands = x.astype(dtype), variables["params"]["kernel"].astype(dtype), variables["params"]["bias"]
    rest = INDICES, SLOTS
    zero = empty_rows == "zero"
    exact = cases.knn_answer(*operands, *rest, cotangent, zero)
    products = cases.knn_answer(*cases.magnitudes(*operands), *rest, *cases.magnitudes(cotangent), zero)
    cases.assert_answers(run(layer, variables, x, cotangent, **call), exact, products, (dtype, F32, F32, F32))


def test_knn_conv_of_a_grid_equals_conv():
    table = jkc.grid_table((5, 4), (3, 3))
    x = cases.normal(0, 2, 5, 4, 3)
    dense, sparse = linen.Conv(6, (3, 3)), linen.KNNConv(6, table)
    by_dense, by_table = (
        layer.init(jax.random.key(3), value)["params"] for layer, value in ((dense, x), (sparse, x.reshape(2, 20, 3)))
    )
    # Nine slots of nine columns: the default initial kernel is the dense one's.
    np.testing.assert_allclose(by_table["kernel"], by_dense["kernel"].reshape(9, 3, 6), rtol=1e-6)
    y = sparse.apply({"params": by_table}, x.reshape(2, 20, 3))
    np.testing.assert_allclose(y.reshape(2, 5, 4, 6), dense.apply({"params": by_dense}, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("taps", "slots"), [(4, 64), (64, 4)])
def test_knn_conv_initial_variance_counts_taps(taps, slots):
    table = jkc.NeighborTable(np.zeros((3, taps), int), np.arange(taps) % slots, num_inputs=5, num_slots=slots)
    kernel = linen.KNNConv(64, table).init(jax.random.key(0), jnp.ones((5, 32)))["params"]["kernel"]
    # 8192 samples or more: the standard error of a variance is below 2 %.
    assert np.var(kernel) == pytest.approx(1 / (taps * 32), rel=0.08)


def test_knn_conv_one_table_a_sample():
    indices = np.array([[[0, 1], [2, -1]], [[2, 2], [1, 0]]])
    tables = jkc.NeighborTable(indices, num_inputs=3)
    x = cases.normal(0, 2, 3, 4)
    layer = linen.KNNConv(2)
    variables = layer.init(jax.random.key(0), x, tables)
    y = jax.jit(layer.apply)(variables, x, tables)
    for i in range(2):
        one = cases.oracle.knn_forward(x[i : i + 1], variables["params"]["kernel"], indices[i])
        np.testing.assert_allclose(y[i], one[0], rtol=1e-5, atol=1e-5)


def test_knn_conv_table_of_the_call_comes_first():
    own, given = (jkc.NeighborTable([[i]], num_inputs=2) for i in (0, 1))
    layer = linen.KNNConv(1, own, use_bias=False)
    variables = {"params": {"kernel": jnp.ones((1, 1, 1))}}
    x = jnp.array([[3.0], [5.0]])
    assert layer.apply(variables, x).item() == 3
    assert layer.apply(variables, x, given).item() == 5


def test_knn_conv_is_static_by_its_table():
    table, same_values = (jkc.NeighborTable([[0, 1]], num_inputs=2) for _ in range(2))
    layer = linen.KNNConv(3, table)
    assert layer == linen.KNNConv(3, table)
    assert hash(layer) == hash(linen.KNNConv(3, table))
    assert layer != linen.KNNConv(3, same_values)
    apply = jax.jit(lambda layer, variables, x: layer.apply(variables, x), static_argnums=0)
    x = jnp.ones((2, 2))
    variables = layer.init(jax.random.key(0), x)
    np.testing.assert_allclose(apply(layer, variables, x), layer.apply(variables, x), rtol=1e-6)


def test_knn_conv_without_taps_gives_the_bias():
    table = jkc.NeighborTable(np.zeros((4, 0), int), num_inputs=3)
    layer = linen.KNNConv(2, table, bias_init=nn.initializers.ones)
    y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((3, 5)))
    assert variables["params"]["kernel"].shape == (0, 5, 2)
    np.testing.assert_array_equal(y, np.ones((4, 2)))


@pytest.mark.parametrize(
    ("x_dtype", "options", "expected"),
    [
        (BF16, {}, F32),
        (BF16, {"param_dtype": BF16}, BF16),
        (jnp.int32, {}, F32),
        (F32, {"dtype": F16, "preferred_element_type": F32}, F32),
        (F16, {"dtype": BF16}, BF16),
    ],
)
def test_knn_conv_promotes(x_dtype, options, expected):
    table = jkc.NeighborTable([[0, 1], [1, 1]], num_inputs=2)
    layer = linen.KNNConv(1, table, kernel_init=nn.initializers.ones, **options)
    y, _ = layer.init_with_output(jax.random.key(0), jnp.array([[2], [3]], x_dtype))
    assert y.dtype == expected
    np.testing.assert_array_equal(y.astype(F32), [[5], [6]])


def test_knn_conv_float64_is_rounded():
    with jax.enable_x64(True):
        layer = linen.KNNConv(1, jkc.NeighborTable([[0]], num_inputs=1), kernel_init=nn.initializers.ones)
        y, _ = layer.init_with_output(jax.random.key(0), jnp.asarray([[1 + 2.0**-40]]))
        assert y.dtype == F32
        assert y.item() == 1


def test_knn_conv_errors():
    table, x, key = jkc.NeighborTable([[0, 1]], num_inputs=2), jnp.ones((2, 3)), jax.random.key(0)
    with pytest.raises(ValueError, match="table: got none, neither when the layer was constructed nor in this call"):
        linen.KNNConv(1).init(key, x)
    with pytest.raises(TypeError, match=r"table: got list, expected a NeighborTable"):
        linen.KNNConv(1).init(key, x, [[0, 1]])
    with pytest.raises(ValueError, match=r"rows.*got 4, expected 2, the table's num_inputs"):
        linen.KNNConv(1, table).init(key, jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"empty_rows.*'skip'"):
        linen.KNNConv(1, table, empty_rows="skip").init(key, x)
    with pytest.raises(TypeError, match=r"dtype.*float64"):
        linen.KNNConv(1, table, dtype=np.float64).init(key, x)
    with pytest.raises(TypeError, match=r"dtype.*complex64"):
        linen.KNNConv(1, table).init(key, x.astype(jnp.complex64))
    variables = linen.KNNConv(1, table).init(key, x)
    with pytest.raises(flax.errors.ScopeParamShapeError, match=r"\(3, 3, 1\)"):
        linen.KNNConv(1).apply(variables, x, jkc.NeighborTable([[0, 1, 1]], num_inputs=2))
