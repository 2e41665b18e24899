import math
import subprocess
import sys

import flax
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

import jax_knnconv as jkc
from jax_knnconv import linen

F32, BF16, F16 = cases.DTYPES
INDICES = np.array([[0, 3, 9], [5, -1, 2], [-1, 7, -2], [4, 4, 1]])  # of 6 rows: 9, 7 and the negatives are holes
SLOTS = np.array([[0, 1, 4], [3, 2, 0], [0, 1, 2], [1, 1, 3]])


def run(layer, variables, x, cotangent, **call):
    """(y, dx, dkernel, dbias or None) of sum(y * cotangent)."""

    def loss(variables, x):
        y = layer.apply(variables, x, **call)
        return (y.astype(jnp.float32) * cotangent.astype(jnp.float32)).sum(), y

    (dvariables, dx), y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(variables, x)
    return y, dx, dvariables["params"]["kernel"], dvariables["params"].get("bias")


def conv(cls, kernel_size, window=None, **options):
    return cls(cases.FEATURES, kernel_size, bias_init=nn.initializers.normal(), **(window or {}), **options)


def uses_flax(layer, variables, x):
    return "conv_general_dilated" in str(jax.make_jaxpr(layer.apply)(variables, x))


# Conv ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.WINDOWS_FLAX_GETS_RIGHT)
def test_conv_equals_flax_with_flax_parameters(name):
    kernel_size, window = cases.WINDOWS[name]
    ours, theirs = (conv(cls, kernel_size, window) for cls in (linen.Conv, nn.Conv))
    x = cases.normal(0, *cases.CONV_SHAPE)
    variables = theirs.init(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, ours.init(jax.random.key(1), x), variables)
    assert not uses_flax(ours, variables, x)
    cotangent = cases.normal(2, *jax.eval_shape(theirs.apply, variables, x).shape)
    for got, expected in zip(run(ours, variables, x, cotangent), run(theirs, variables, x, cotangent), strict=True):
        if got is None:
            assert expected is None
            continue
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("name", ["valid, dilation", "negative pads", "circular"])
def test_conv_is_right_in_dtype(name, dtype):
    # Case 32: parameters and their gradients are float32, the latter never rounded to the computing dtype.
    kernel_size, window = cases.WINDOWS[name]
    layer = conv(linen.Conv, kernel_size, window, dtype=dtype)
    x = cases.normal(0, *cases.CONV_SHAPE)
    y, variables = layer.init_with_output(jax.random.key(1), x)
    cotangent = cases.normal(2, *y.shape, dtype=dtype)
    kernel, bias = variables["params"]["kernel"], variables["params"].get("bias")
    operands = x.astype(dtype), kernel.astype(dtype), bias
    exact = cases.dense_answer(*operands, window, cotangent)
    products = cases.dense_answer(*cases.magnitudes(*operands), window, *cases.magnitudes(cotangent))
    cases.assert_answers(run(layer, variables, x, cotangent), exact, products, (dtype, F32, F32, F32))


@pytest.mark.parametrize(
    ("x_dtype", "param_dtype", "dtype", "expected"),
    [
        (BF16, F32, None, F32),
        (F32, BF16, None, F32),
        (BF16, BF16, None, BF16),
        (F16, BF16, None, F32),
        (F16, F32, BF16, BF16),
        (BF16, F32, F32, F32),
        (jnp.uint8, F32, None, F32),
        (jnp.int32, BF16, None, BF16),
    ],
)
def test_conv_promotes_as_flax(x_dtype, param_dtype, dtype, expected):
    x = jnp.asarray(np.arange(48).reshape(1, 4, 4, 3) % 5, x_dtype)
    ours, theirs = (conv(cls, (3, 3), dtype=dtype, param_dtype=param_dtype) for cls in (linen.Conv, nn.Conv))
    variables = theirs.init(jax.random.key(0), x)
    got, reference = ours.apply(variables, x), theirs.apply(variables, x)
    assert not uses_flax(ours, variables, x)
    assert got.dtype == reference.dtype == expected
    rounding = jnp.finfo(dtype or expected).eps
    np.testing.assert_allclose(got.astype(F32), reference.astype(F32), rtol=2 * rounding, atol=8 * rounding)


def test_conv_bias_is_added_before_rounding():
    # In bfloat16 256 + 1 is 256, whatever is added one by one; 258 is a bfloat16.
    layer = linen.Conv(1, (1, 1), dtype=BF16)
    variables = {"params": {"kernel": jnp.array([256.0, 1]).reshape(1, 1, 2, 1), "bias": jnp.ones(1)}}
    assert layer.apply(variables, jnp.ones((1, 1, 1, 2))).item() == 258


@pytest.mark.parametrize("batch", [(), (2, 3), (0,), (2, 0)])
def test_conv_batch_dimensions(batch):
    x = cases.normal(0, *batch, 5, 4, 3)
    layer = conv(linen.Conv, (3, 3), {"padding": "CIRCULAR"})
    variables = layer.init(jax.random.key(0), x)
    y = layer.apply(variables, x)
    assert y.shape == (*batch, 5, 4, cases.FEATURES)
    flat = x.reshape(math.prod(batch), 5, 4, 3)
    exact = cases.dense_answer(flat, *(variables["params"][n] for n in ("kernel", "bias")), {"padding": "CIRCULAR"}).y
    np.testing.assert_allclose(y.reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


def test_conv_mask():
    x, mask = cases.normal(0, 1, 5, 5, 3), (np.arange(135) % 3 > 0).reshape(3, 3, 3, 5).astype(np.float32)
    ours, theirs = (conv(cls, (3, 3), mask=mask) for cls in (linen.Conv, nn.Conv))
    variables = ours.init(jax.random.key(0), x)
    cotangent = cases.normal(1, 1, 5, 5, 5)
    got, expected = run(ours, variables, x, cotangent), run(theirs, variables, x, cotangent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)
    assert not np.any(np.asarray(got[2])[mask == 0])
    with pytest.raises(ValueError, match=r"mask's shape.*\(3, 3, 3, 4\).*\(3, 3, 3, 5\)"):
        conv(linen.Conv, (3, 3), mask=mask[..., :4]).init(jax.random.key(0), x)


@pytest.mark.parametrize("name", cases.FLAX_ONLY)
def test_conv_leaves_the_rest_to_flax(name):
    shape, kernel_size, options = cases.FLAX_ONLY[name]
    ours, theirs = (cls(6, kernel_size, **options) for cls in (linen.Conv, nn.Conv))
    x = cases.normal(0, *shape)
    variables = ours.init(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, variables, theirs.init(jax.random.key(0), x))
    assert uses_flax(ours, variables, x)
    np.testing.assert_array_equal(ours.apply(variables, x), theirs.apply(variables, x))


def test_conv_leaves_own_functions_to_flax():
    def doubled(*args, **kwargs):
        return 2 * lax.conv_general_dilated(*args, **kwargs)

    def cast(*operands, dtype):
        return [None if a is None else a.astype(BF16) for a in operands]

    x = cases.normal(0, 1, 4, 4, 3)
    plain = linen.Conv(2, (3, 3), use_bias=False)
    variables = plain.init(jax.random.key(0), x)
    twice = plain.clone(conv_general_dilated=doubled).apply(variables, x)
    np.testing.assert_allclose(twice, 2 * plain.apply(variables, x), rtol=1e-5, atol=1e-5)
    by_class = plain.clone(conv_general_dilated_cls=lambda: doubled).apply(variables, x)
    np.testing.assert_array_equal(by_class, twice)
    assert plain.clone(promote_dtype=cast).apply(variables, x).dtype == BF16


def test_conv_leaves_float64_to_flax():
    with jax.enable_x64(True):
        layer, exact = linen.Conv(1, (1, 1), use_bias=False), np.full((1, 1, 1, 1), 1 + 2.0**-40)
        narrow, wide = jnp.ones((1, 1, 1, 1), F32), jnp.asarray(exact)
        np.testing.assert_array_equal(layer.apply({"params": {"kernel": narrow}}, wide), exact)
        # A float64 checkpoint decides as well, though the layer would make float32 parameters.
        np.testing.assert_array_equal(layer.apply({"params": {"kernel": wide}}, narrow), exact)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"padding": "CAUSAL"}, (1, 4, 4, 3), "(?i)causal padding"),
        ({"padding": "EVEN"}, (1, 4, 4, 3), "padding.*'EVEN'"),
        ({"padding": (1, 2, 3)}, (1, 4, 4, 3), r"padding.*\(1, 2, 3\)"),
        ({"strides": (1, 2, 3)}, (1, 4, 4, 3), r"strides.*\(1, 2, 3\)"),
        ({"kernel_dilation": 0}, (1, 4, 4, 3), "kernel_dilation.*0"),
        ({}, (4, 3), r"inputs.*\(4, 3\)"),
        ({"implementation": "cudnn"}, (1, 4, 4, 3), "implementation.*'cudnn'"),
    ],
)
def test_conv_errors(options, shape, message):
    with pytest.raises(ValueError, match=message):
        linen.Conv(2, (3, 3), **options).init(jax.random.key(0), jnp.ones(shape))


def test_conv_error_names_channels():
    layer = linen.Conv(2, (3, 3))
    variables = layer.init(jax.random.key(0), jnp.ones((1, 4, 4, 3)))
    with pytest.raises(flax.errors.ScopeParamShapeError, match=r"\(3, 3, 4, 2\)"):
        layer.apply(variables, jnp.ones((1, 4, 4, 4)))


def test_checkpoint_of_a_flax_model_loads():
    class Model(nn.Module):
        module: object

        @nn.compact
        def __call__(self, x):
            x = nn.relu(self.module.Conv(4, (3, 3), strides=2)(x))
            return self.module.Conv(3, (3,), padding="CAUSAL")(self.module.Conv(2, (2, 2), padding="REFLECT")(x))

    x = cases.normal(0, 2, 6, 6, 3)
    saved, empty = Model(nn).init(jax.random.key(1), x), Model(linen).init(jax.random.key(2), x)
    loaded = flax.serialization.from_bytes(empty, flax.serialization.to_bytes(saved))
    np.testing.assert_allclose(Model(linen).apply(loaded, x), Model(nn).apply(saved, x), rtol=1e-5, atol=1e-5)
    back = flax.serialization.from_bytes(saved, flax.serialization.to_bytes(empty))
    np.testing.assert_allclose(Model(nn).apply(back, x), Model(linen).apply(empty, x), rtol=1e-5, atol=1e-5)


def test_conv_under_lifted_transforms():
    # One set of parameters a copy, mapped over the leading axis; and recomputation in the backward pass.
    mapped = nn.vmap(linen.Conv, variable_axes={"params": 0}, split_rngs={"params": True})(2, (3, 3))
    x = cases.normal(0, 3, 1, 4, 4, 2)
    variables = mapped.init(jax.random.key(0), x)
    y = mapped.apply(variables, x)
    for i in range(3):
        one = jax.tree.map(lambda p, i=i: p[i], variables)
        np.testing.assert_allclose(y[i], linen.Conv(2, (3, 3)).apply(one, x[i]), rtol=1e-6, atol=1e-6)
    cotangent = cases.normal(1, 1, 4, 4, 2)
    kept, recomputed = (run(cls(2, (3, 3)), one, x[2], cotangent) for cls in (linen.Conv, nn.remat(linen.Conv)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), kept, recomputed)


# KNNConv ------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"rows.*num_inputs.*got 4, expected 2"):
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


# Flax is optional ---------------------------------------------------------------------------------------------------

_WITHOUT_FLAX = """
import sys
import jax_knnconv
assert not [name for name in sys.modules if name.split(".")[0] == "flax"], "flax was imported"
sys.modules["flax"] = None
for module in ("linen", "nnx"):
    try:
        __import__(f"jax_knnconv.{module}")
    except ImportError as error:
        assert str(error) == (
            f'jax_knnconv.{module} needs Flax, which is not installed: pip install "jax_knnconv[flax]"'
        ), error
    else:
        raise AssertionError(f"{module} was imported without flax")
"""


def test_without_flax():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_FLAX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
