"""float32 x of 16-bit products on GPUs: rounded in a pass of its own where its lines are staged 16 bytes at a time.

Programs are lowered for CUDA and ROCm, which needs no GPU, and looked at.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jax_knnconv as jkc
from jax_knnconv import _ffi

TABLE = jkc.NeighborTable([[0, 1], [2, 0], [1, 1]], num_inputs=3)


pytestmark = pytest.mark.usefixtures("modules")


def operand_types(function, *operands, target, platform="cuda"):
    """Element types of the operands of a target's one call."""
    text = jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text()
    (line,) = [line for line in text.splitlines() if f"@jax_knnconv_{target}_v1" in line]
    return re.findall(r"tensor<(?:[\d?]+x)*(\w+)>", line.split(" : (")[1].split(") -> ")[0])


def dense(channels, **given):
    x, weight = np.ones((2, 5, 5, channels), np.float32), np.ones((3, 3, channels, 16), np.float32)
    return lambda x, weight: jkc.conv2d(x, weight, compute_dtype=jnp.bfloat16, **given), x, weight


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize(("channels", "x_type"), [(8, "bf16"), (24, "bf16"), (3, "f32"), (12, "f32")])
def test_dense(channels, x_type, platform):
    types = operand_types(*dense(channels), target="dense_forward", platform=platform)
    assert types == [x_type, "bf16", "f32"]


def test_staging_by_elements_rounds_as_it_reads():
    types = operand_types(*dense(8, config=jkc.KernelConfig(vec=False)), target="dense_forward")
    assert types[:2] == ["f32", "bf16"]


def test_tiles_of_asynchronous_copies_may_be_asked_for():
    """They take no float32, and need not."""
    types = operand_types(*dense(8, config=jkc.KernelConfig(bm=128, bn=32)), target="dense_forward")
    assert types[:2] == ["bf16", "bf16"]


def test_knn():
    x, weight = np.ones((4, 3, 8), np.float32), np.ones((2, 8, 16), np.float32)
    forward = functools.partial(jkc.knn_conv, table=TABLE, compute_dtype=jnp.float16)
    assert operand_types(forward, x, weight, target="knn_forward")[:2] == ["f16", "f16"]
    assert operand_types(jax.vmap(forward, (0, None)), x[None], weight, target="knn_forward")[:2] == ["f16", "f16"]


def test_weight_gradient():
    x, g = np.ones((4, 3, 8), np.float32), np.ones((4, 3, 16), np.float16)
    dweight = functools.partial(jkc.knn_dweight, table=TABLE, compute_dtype=jnp.float16)
    assert operand_types(dweight, x, g, target="knn_dweight")[:2] == ["f16", "f16"]


def training_step(channels, out_dtype):
    """Gradients of a layer whose x is float32 and whose products are bfloat16, lowered for CUDA."""
    function, x, weight = dense(channels, preferred_element_type=out_dtype)
    loss = jax.grad(lambda x, weight: function(x, weight).astype(jnp.float32).sum(), 1)
    return jax.jit(loss).trace(x, weight).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("channels", "x_type"), [(3, "f32"), (8, "bf16")])
def test_a_training_step_has_no_cast_where_cotangents_have_16_bits(channels, x_type):
    text = training_step(channels, jnp.bfloat16)
    assert "cast_operands" not in text
    (call,) = [line for line in text.splitlines() if "@jax_knnconv_dense_dweight_v1" in line]
    assert f" : (tensor<2x5x5x{channels}x{x_type}>, tensor<2x5x5x16xbf16>)" in call
    assert "@jax_knnconv_cast_operands_v1" in training_step(channels, jnp.float32)


def test_symbolic_batch():
    function, x, weight = dense(8)
    (batch,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)
    checks = [export.DisabledSafetyCheck.custom_call(_ffi.target_name("dense_forward"))]
    program = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=checks)(shape, weight)
    assert re.search(r"@jax_knnconv_dense_forward_v1.*\(tensor<\?x5x5x8xbf16>", program.mlir_module())
