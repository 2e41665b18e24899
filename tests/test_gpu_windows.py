"""Windows that reach further than a GPU's kernels count: lowered for one without one."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_calls import lowered

import jax_knnconv as jkc
from jax_knnconv import _readiness
from jax_knnconv._specs import DenseSpec

FAR = 2**29
X, G, W = jnp.ones((1, 3, 5, 8), "bfloat16"), jnp.ones((1, 1, 1, 8), "bfloat16"), jnp.ones((1, 1, 8, 8), "bfloat16")


def passes(**window):
    """The passes of a convolution with one window, at the corner of x."""
    window["padding"] = "VALID"
    return {
        "dense_forward": lambda **given: jkc.conv2d(X, W, **window, **given),
        "dense_dinput": lambda **given: jkc.conv2d_dinput(G, W, X.shape, **window, **given),
        "dense_dweight": lambda **given: jkc.conv2d_dweight(X, G, (1, 1), **window, **given),
    }


def custom_calls(function):
    return lowered(function).count("stablehlo.custom_call")


@pytest.mark.parametrize(
    ("window", "handled"),
    [
        ({"stride": 2**26}, ("dense_forward", "dense_dinput", "dense_dweight")),
        ({"stride": 2**27}, ("dense_forward", "dense_dweight")),  # dinput counts a stride for each of five pixels
        ({"stride": FAR - 1}, ("dense_forward", "dense_dweight")),
        ({"stride": FAR}, ()),
        ({"stride": 5, "dilation": FAR}, ()),
        ({"stride": (5, 2**31 - 1)}, ()),
    ],
)
@pytest.mark.usefixtures("modules")
def test_auto_leaves_far_windows_to_xla(window, handled):
    for operation, call in passes(**window).items():
        assert custom_calls(call) == (operation in handled), operation


@pytest.mark.parametrize("operation", passes())
@pytest.mark.usefixtures("modules")
def test_a_named_implementation_says_why_it_cannot(operation):
    call = passes(stride=FAR)[operation]
    message = (
        rf"{operation} cannot run on cuda: its kernels take windows .* less than 2\*\*29 pixels, got stride {FAR} "
    )
    with pytest.warns(jkc.FallbackWarning, match=message + "along H.* Using the pure-JAX implementation"):
        assert custom_calls(lambda: call(implementation="wmma")) == 0


@pytest.mark.parametrize(
    ("operation", "given", "told"),
    [
        ("dense_forward", {}, None),
        ("dense_forward", {"padding": (-FAR, FAR - 1)}, None),
        ("dense_forward", {"padding": (0, FAR)}, f"low pad {FAR} along W"),
        ("dense_forward", {"padding": (-FAR - 1, 0)}, f"low pad {FAR} along H"),
        ("dense_dweight", {"input_dims": (8, FAR)}, f"pixels read {FAR} along W"),
        ("dense_dinput", {"input_dims": (8, FAR)}, f"pixels written times stride {FAR} along W"),
        ("dense_dinput", {"output_dims": (FAR, 8)}, f"pixels read {FAR} along H"),
        (
            "dense_forward",
            {"output_dims": (FAR // 4, 8), "stride": (4, 1)},
            f"pixels written times stride {FAR} along H",
        ),
        ("dense_dweight", {"slot_dims": (1, 2**20), "dilation": (1, 2**9)}, f"taps times dilation {FAR} along W"),
    ],
)
def test_what_handlers_check_is_checked_before(operation, given, told):
    """The limits of ReadPair and SetWindow in lib/gpu/window.h."""
    one = dict.fromkeys(("input_dims", "output_dims", "slot_dims", "stride", "padding", "dilation"), (1, 1))
    operands = [jax.ShapeDtypeStruct((8, 8), "bfloat16")] * 2
    reason = _readiness.takes(operation, "cuda", operands, DenseSpec(**(one | given)))
    assert reason == (told and f"its kernels take windows that reach less than 2**29 pixels, got {told}")
    assert _readiness.takes(operation, "cpu", operands, DenseSpec(**(one | given))) is None


def test_xla_computes_far_windows():
    """A stride of 2**30 has one window a dimension, whose one tap reads the corner."""
    x = jnp.asarray(np.arange(math.prod(X.shape)).reshape(X.shape), "bfloat16")
    y = jkc.conv2d(x, 2 * W, stride=2**30, padding="VALID", implementation="xla")
    np.testing.assert_array_equal(y, np.full((1, 1, 1, 8), 2.0 * sum(range(8))))
    dx = jkc.conv2d_dinput(G, W, X.shape, stride=2**30, padding="VALID", implementation="xla")
    np.testing.assert_array_equal(dx[0, 0, 0], np.full(8, 8))
    assert np.count_nonzero(dx) == 8
    dw, db = jkc.conv2d_dweight(x, G, (1, 1), stride=2**30, padding="VALID", implementation="xla")
    np.testing.assert_array_equal(dw[0, 0], np.arange(8)[:, None] * np.ones(8))
    np.testing.assert_array_equal(db, np.ones(8))


def test_default_config_names_the_reason():
    with pytest.raises(ValueError, match=rf"what no tensor-core kernel computes \(.* got stride {FAR} along H\)"):
        jkc.default_config(jkc.conv2d, X, W, stride=FAR, padding="VALID")
