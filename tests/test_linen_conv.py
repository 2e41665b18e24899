"""linen.Conv against Flax's own and the float64 oracle."""

import math

import flax
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from linen_calls import run

from jax_knnconv import linen

F32, BF16, F16 = cases.DTYPES


def conv(cls, kernel_size, window=None, **options):
    return cls(cases.FEATURES, kernel_size, bias_init=nn.initializers.normal(), **(window or {}), **options)


def uses_flax(layer, variables, x):
    return "conv_general_dilated" in str(jax.make_jaxpr(layer.apply)(variables, x))


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
