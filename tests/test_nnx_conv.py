"""nnx.Conv against Flax's own and the float64 oracle."""

import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax import lax
from nnx_calls import rngs, run

from jax_knnconv import nnx

F32, BF16, F16 = cases.DTYPES
NORMAL = flax_nnx.initializers.normal()


def conv(module, kernel_size, window=None, in_features=cases.CONV_SHAPE[-1], **options):
    return module.Conv(
        in_features, cases.FEATURES, kernel_size, bias_init=NORMAL, rngs=rngs(), **{**(window or {}), **options}
    )


def uses_flax(layer, x):
    graph, state = flax_nnx.split(layer)
    return "conv_general_dilated" in str(jax.make_jaxpr(lambda state, x: flax_nnx.merge(graph, state)(x))(state, x))


@pytest.mark.parametrize("name", ["same, stride 2", "valid, none for 1", "two ints", "circular", "reflect"])
def test_conv_equals_flax_with_flax_state(name):
    kernel_size, window = cases.WINDOWS[name]
    ours, theirs = (conv(module, kernel_size, window) for module in (nnx, flax_nnx))
    state = flax_nnx.state(theirs)
    jax.tree.map(np.testing.assert_array_equal, flax_nnx.state(ours), state)
    ours = flax_nnx.merge(flax_nnx.graphdef(ours), jax.tree.map(lambda p: p + 1, state))
    flax_nnx.update(ours, state)
    x = cases.normal(0, *cases.CONV_SHAPE)
    assert not uses_flax(ours, x)
    cotangent = cases.normal(2, *theirs(x).shape)
    for got, expected in zip(run(ours, x, cotangent), run(theirs, x, cotangent), strict=True):
        if got is None:
            assert expected is None
            continue
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("name", ["pairs", "circular"])
def test_conv_is_right_in_dtype(name, dtype):
    # Case 32: parameters and their gradients are float32, the latter never rounded to the computing dtype.
    kernel_size, window = cases.WINDOWS[name]
    layer = conv(nnx, kernel_size, window, dtype=dtype)
    x = cases.normal(0, *cases.CONV_SHAPE)
    bias = None if layer.bias is None else layer.bias[...]
    operands = x.astype(dtype), layer.kernel[...].astype(dtype), bias
    cotangent = cases.normal(2, *cases.dense_answer(*operands, window).y.shape, dtype=dtype)
    exact = cases.dense_answer(*operands, window, cotangent)
    products = cases.dense_answer(*cases.magnitudes(*operands), window, *cases.magnitudes(cotangent))
    cases.assert_answers(run(layer, x, cotangent), exact, products, (dtype, F32, F32, F32))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(
    ("x_dtype", "options"),
    [
        (BF16, {}),
        (F32, {"param_dtype": BF16}),
        (F16, {"param_dtype": BF16, "dtype": BF16}),
        (BF16, {"dtype": BF16, "preferred_element_type": F32}),
        (jnp.uint8, {"dtype": F16}),
    ],
)
def test_conv_promotes_as_flax(x_dtype, options, use_bias):
    x = jnp.asarray(np.arange(48).reshape(1, 4, 4, 3) % 5, x_dtype)
    ours, theirs = (conv(module, (3, 3), use_bias=use_bias, **options) for module in (nnx, flax_nnx))
    got, reference = ours(x), theirs(x)
    assert not uses_flax(ours, x)
    assert got.dtype == reference.dtype
    rounding = max(float(jnp.finfo(d).eps) for d in (got.dtype, options.get("dtype", F32), *options.values()))
    np.testing.assert_allclose(got.astype(F32), reference.astype(F32), rtol=2 * rounding, atol=8 * rounding)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_conv_batch_dimensions(batch):
    x = cases.normal(0, *batch, 5, 4, 3)
    layer = conv(nnx, (3, 3), {"padding": "REFLECT"})
    flat = x.reshape(-1, 5, 4, 3)
    exact = cases.dense_answer(flat, layer.kernel[...], layer.bias[...], {"padding": "REFLECT"}).y
    y = layer(x)
    assert y.shape == (*batch, 5, 4, cases.FEATURES)
    np.testing.assert_allclose(y.reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


def test_conv_mask():
    x, mask = cases.normal(0, 1, 5, 5, 3), jnp.asarray((np.arange(135) % 3 > 0).reshape(3, 3, 3, 5), F32)
    ours, theirs = (conv(module, (3, 3), mask=mask) for module in (nnx, flax_nnx))
    cotangent = cases.normal(1, 1, 5, 5, 5)
    got, expected = run(ours, x, cotangent), run(theirs, x, cotangent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)
    assert not np.any(np.asarray(got[2])[np.asarray(mask) == 0])
    with pytest.raises(ValueError, match=r"mask's shape.*\(3, 3, 3, 4\).*\(3, 3, 3, 5\)"):
        conv(nnx, (3, 3), mask=mask[..., :4])(x)


@pytest.mark.parametrize("name", cases.FLAX_ONLY)
def test_conv_leaves_the_rest_to_flax(name):
    shape, kernel_size, options = cases.FLAX_ONLY[name]
    ours, theirs = (module.Conv(shape[-1], 6, kernel_size, rngs=rngs(), **options) for module in (nnx, flax_nnx))
    x = cases.normal(0, *shape)
    assert uses_flax(ours, x)
    np.testing.assert_array_equal(ours(x), theirs(x))


def test_conv_leaves_own_functions_and_other_dtypes_to_flax():
    def doubled(*args, **kwargs):
        return 2 * lax.conv_general_dilated(*args, **kwargs)

    def cast(operands, dtype):
        return tuple(None if a is None else a.astype(BF16) for a in operands)

    x = cases.normal(0, 1, 4, 4, 3)
    plain = conv(nnx, (3, 3), use_bias=False)
    twice = conv(nnx, (3, 3), use_bias=False, conv_general_dilated=doubled)
    np.testing.assert_allclose(twice(x), 2 * plain(x), rtol=1e-5, atol=1e-5)
    assert conv(nnx, (3, 3), promote_dtype=cast)(x).dtype == BF16
    with jax.enable_x64(True):
        assert conv(nnx, (3, 3), preferred_element_type=np.float64, use_bias=False)(x).dtype == np.float64
        layer = nnx.Conv(1, 1, (1, 1), use_bias=False, kernel_init=flax_nnx.initializers.ones, rngs=rngs())
        wide = jnp.asarray(np.full((1, 2, 2, 1), 1 + 2.0**-40))
        np.testing.assert_array_equal(layer(wide), wide)


def test_conv_out_sharding():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        layer, x = conv(nnx, (3, 3)), cases.normal(0, 1, 4, 4, 3)
        y = layer(x, out_sharding=jax.P("data"))
    assert jax.typeof(y).sharding.spec[0] == "data"
    np.testing.assert_allclose(y, layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"padding": "CAUSAL"}, (1, 4, 4, 3), "(?i)causal padding"),
        ({"padding": "EVEN"}, (1, 4, 4, 3), r"padding.*'EVEN'"),
        ({"strides": (1, 2, 3)}, (1, 4, 4, 3), r"strides.*\(1, 2, 3\)"),
        ({"kernel_dilation": 0}, (1, 4, 4, 3), r"kernel_dilation.*0"),
        ({}, (4, 3), r"inputs.*\(4, 3\)"),
        ({}, (1, 4, 4, 2), r"inputs' channels.*got 2, expected 3, in_features"),
    ],
)
def test_conv_errors(options, shape, message):
    with pytest.raises(ValueError, match=message):
        conv(nnx, (3, 3), **options)(jnp.ones(shape))


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"implementation.*'cudnn'"):
        conv(nnx, (3, 3), implementation="cudnn")
    with pytest.raises(TypeError, match=r"config.*dict"):
        conv(nnx, (3, 3), config={})
    with pytest.raises(TypeError, match="rngs"):
        nnx.Conv(3, 4, (3, 3))
