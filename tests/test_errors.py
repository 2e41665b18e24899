"""Bad input: an error at trace time that names the argument, what was given and what was expected."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import jax_knnconv as jkc

X, W = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5))
G = jnp.ones((2, 8, 8, 5))
TABLE = jkc.NeighborTable([[0, 1], [2, 3]], num_inputs=4)
KX, KW, KG = jnp.ones((2, 4, 3)), jnp.ones((2, 3, 5)), jnp.ones((2, 2, 5))

CASES = {
    # conv2d: shapes
    "x rank": (lambda: jkc.conv2d(X[0, 0], W), ValueError, r"x: got shape \(8, 3\), .*at least 3"),
    "weight rank": (lambda: jkc.conv2d(X, W[0]), ValueError, r"weight: got shape \(3, 3, 5\), .*4 dimensions"),
    "channels": (lambda: jkc.conv2d(X, W[:, :, :2]), ValueError, "x's channels .*got 3, expected 2"),
    "bias": (lambda: jkc.conv2d(X, W, jnp.ones(4)), ValueError, r"bias: got shape \(4,\), expected \(5,\)"),
    "stride too long": (
        lambda: jkc.conv2d(X, W, stride=2**31),
        ValueError,
        r"stride: got 2147483648, .*less than 2\*\*31",
    ),
    "dilation too long": (lambda: jkc.conv2d(X, W, dilation=2**63), ValueError, r"dilation: got .*less than 2\*\*31"),
    "padding too long": (
        lambda: jkc.conv2d(X, W, padding=((0, 0), (2**63, 0))),
        ValueError,
        r"padding: got .*less than 2\*\*31",
    ),
    "stride zero": (lambda: jkc.conv2d(X, W, stride=0), ValueError, "stride: got 0, expected a positive int"),
    "stride length": (lambda: jkc.conv2d(X, W, stride=(1, 2, 3)), ValueError, "stride"),
    "stride float": (lambda: jkc.conv2d(X, W, stride=1.5), ValueError, "stride: got 1.5, expected"),
    "dilation": (lambda: jkc.conv2d(X, W, dilation=(1, -1)), ValueError, "dilation"),
    "padding name": (lambda: jkc.conv2d(X, W, padding="FULL"), ValueError, "padding.*FULL"),
    "padding type": (lambda: jkc.conv2d(X, W, padding=1.5), TypeError, "padding.*1.5"),
    "padding length": (lambda: jkc.conv2d(X, W, padding=((1, 1),)), ValueError, "padding"),
    # conv2d: dtypes and options
    "two 16-bit types": (
        lambda: jkc.conv2d(X.astype("float16"), W.astype("bfloat16")),
        TypeError,
        "weight: got bfloat16, expected float32 or float16",
    ),
    "complex": (lambda: jkc.conv2d(X.astype("complex64"), W), TypeError, "x: got complex64, expected float32"),
    "sparse": (lambda: jkc.conv2d(sparse.eye_array(4), W), TypeError, "x: got a dia_array, expected a plain array"),
    "masked": (
        lambda: jkc.conv2d(X, np.ma.masked_equal(np.zeros(W.shape, np.float32), 0)),
        TypeError,
        "weight: got a MaskedArray, expected a plain array",
    ),
    "compute dtype": (lambda: jkc.conv2d(X, W, compute_dtype="int8"), TypeError, "compute_dtype: got int8, expected"),
    "compute against x": (
        lambda: jkc.conv2d(X.astype("float16"), W, compute_dtype="bfloat16"),
        TypeError,
        "x: got float16, expected float32 or bfloat16",
    ),
    "no dtype": (lambda: jkc.conv2d(X, W, compute_dtype="half-ish"), TypeError, "compute_dtype"),
    "output dtype": (
        lambda: jkc.conv2d(X, W, preferred_element_type="float64"),
        TypeError,
        "preferred_element_type: got float64, expected",
    ),
    "precision": (lambda: jkc.conv2d(X, W, precision="utmost"), ValueError, "precision: got 'utmost', expected"),
    "implementation": (
        lambda: jkc.conv2d(X, W, implementation="cudnn"),
        ValueError,
        "implementation: got 'cudnn', expected",
    ),
    "config": (lambda: jkc.conv2d(X, W, config={"bm": 64}), TypeError, "config: got dict, expected a KernelConfig"),
    # conv2d: gradients
    "kernel of no taps": (lambda: jkc.conv2d(X, W[:0]), ValueError, r"kernel's \(F_H, F_W\).*got \(0, 3\)"),
    "dinput shape type": (lambda: jkc.conv2d_dinput(G, W, 5), ValueError, "input_shape: got 5, expected a sequence"),
    "dweight kernel type": (
        lambda: jkc.conv2d_dweight(X, G, 3),
        ValueError,
        "kernel_shape: got 3, expected a sequence",
    ),
    "implementation type": (
        lambda: jkc.conv2d(X, W, implementation=np.array([1, 2])),
        ValueError,
        "implementation: got .*, expected one of",
    ),
    "precision type": (lambda: jkc.conv2d(X, W, precision=[1]), ValueError, r"precision: got \[1\], expected"),
    "key": (lambda: jkc.conv2d(jax.random.key(0), W), TypeError, r"x: got key<fry>, expected float32"),
    "dinput window": (lambda: jkc.conv2d_dinput(G, W, (9, 8, 3)), ValueError, r"g's .*\(8, 8\), expected \(9, 8\)"),
    "dinput channels": (
        lambda: jkc.conv2d_dinput(G, W, (8, 8, 4)),
        ValueError,
        "input_shape's channels.*4, expected 3",
    ),
    "dinput shape": (
        lambda: jkc.conv2d_dinput(G, W, (8, 8)),
        ValueError,
        r"input_shape: got \(8, 8\), expected 3 sizes",
    ),
    "dinput batch": (
        lambda: jkc.conv2d_dinput(G, W, (3, 8, 8, 3)),
        ValueError,
        r"input_shape: got \(3, 8, 8, 3\), expected",
    ),
    "dinput g": (lambda: jkc.conv2d_dinput(G[..., :4], W, (8, 8, 3)), ValueError, "g's channels.*4, expected 5"),
    "dweight kernel": (lambda: jkc.conv2d_dweight(X, G, (3,)), ValueError, r"kernel_shape: got \(3,\), expected 2"),
    "dweight channels": (lambda: jkc.conv2d_dweight(X, G, (3, 3, 3, 4)), ValueError, "kernel_shape's"),
    "dweight batch": (lambda: jkc.conv2d_dweight(X, G[:1], (3, 3)), ValueError, "g's batch dimensions"),
    "dweight window": (lambda: jkc.conv2d_dweight(X, G[:, :7], (3, 3)), ValueError, r"g's \(H', W'\)"),
    # knn_conv
    "no table": (
        lambda: jkc.knn_conv(KX, KW, np.zeros((2, 2), np.int32)),
        TypeError,
        "table: got ndarray, expected a NeighborTable",
    ),
    "index array for table": (
        lambda: jkc.knn_conv(KX, KW, TABLE.indices),
        TypeError,
        "table: .*expected a NeighborTable.*num_inputs.* makes one of indices",
    ),
    "weight and table swapped": (
        lambda: jkc.knn_conv(KX, TABLE, KW),
        TypeError,
        "table: got .*expected a NeighborTable",
    ),
    "table for an array": (
        lambda: jkc.cast_operands(TABLE, KX, "float16"),
        TypeError,
        "g: got NeighborTable, expected",
    ),
    "no array": (lambda: jkc.conv2d(None, W), TypeError, "x: got NoneType, expected an array of float32"),
    "ragged": (
        lambda: jkc.conv2d([[1.0], [1.0, 2.0]], W),
        ValueError,
        "x: got a list that makes no array, expected an array",
    ),
    "a shape alone": (
        lambda: jkc.conv2d(X, jax.ShapeDtypeStruct((3, 3, 3, 5), "float32")),
        TypeError,
        "weight: got a ShapeDtypeStruct, expected an array",
    ),
    "knn rank": (lambda: jkc.knn_conv(KX[0, 0], KW, TABLE), ValueError, r"x: got shape \(3,\), .*at least 2"),
    "knn rows": (lambda: jkc.knn_conv(KX[:, :3], KW, TABLE), ValueError, "x's rows.*got 3, expected 4"),
    "knn slots": (lambda: jkc.knn_conv(KX, KW[:1], TABLE), ValueError, "weight's slots.*got 1, expected 2"),
    "knn weight": (lambda: jkc.knn_conv(KX, KW[0], TABLE), ValueError, r"weight: got shape \(3, 5\), .*3 dimensions"),
    "knn channels": (lambda: jkc.knn_conv(KX[..., :2], KW, TABLE), ValueError, "x's channels.*got 2, expected 3"),
    "knn bias": (
        lambda: jkc.knn_conv(KX, KW, TABLE, jnp.ones((1, 5))),
        ValueError,
        r"bias: got shape \(1, 5\), expected \(5,\)",
    ),
    "empty rows": (
        lambda: jkc.knn_conv(KX, KW, TABLE, empty_rows="nan"),
        ValueError,
        "empty_rows: got 'nan', expected .*'zero'",
    ),
    "groups": (
        lambda: jkc.knn_conv(KX, KW, jkc.NeighborTable(np.zeros((3, 2, 2), np.int32), num_inputs=4)),
        ValueError,
        r"x: got shape \(2, 4, 3\), expected one that begins with the table's dimensions \(3,\)",
    ),
    "knn dtypes": (
        lambda: jkc.knn_conv(KX.astype("bfloat16"), KW.astype("float16"), TABLE),
        TypeError,
        "weight: got float16, expected float32 or bfloat16",
    ),
    "dinput rows": (lambda: jkc.knn_dinput(KG[:, :1], KW, TABLE), ValueError, "g's rows.*got 1, expected 2"),
    "dinput channels of g": (lambda: jkc.knn_dinput(KG[..., :4], KW, TABLE), ValueError, "g's channels"),
    "dweight rows": (lambda: jkc.knn_dweight(KX[:, :3], KG, TABLE), ValueError, "x's rows"),
    "dweight batches": (lambda: jkc.knn_dweight(KX[:1], KG, TABLE), ValueError, "g's batch dimensions"),
    "backward channels": (lambda: jkc.knn_backward(KG, KX, KW[:, :2], TABLE), ValueError, "weight's"),
    # cast_operands
    "cast dtype": (
        lambda: jkc.cast_operands(X, X, "float32"),
        TypeError,
        "dtype: got float32, expected float16 or bfloat16",
    ),
    "cast operand": (
        lambda: jkc.cast_operands(X.astype("float16"), X, "bfloat16"),
        TypeError,
        "g: got float16, expected float32 or",
    ),
    # KernelConfig
    "config type": (lambda: jkc.KernelConfig(bm=64.0), TypeError, "KernelConfig.bm: got 64.0, expected an int"),
    "config multiple": (
        lambda: jkc.KernelConfig(bn=40),
        ValueError,
        "KernelConfig.bn: got 40, expected a positive multiple of 16",
    ),
    "config positive": (
        lambda: jkc.KernelConfig(ksplit=0),
        ValueError,
        "KernelConfig.ksplit: got 0, expected a positive int",
    ),
    "config divides": (
        lambda: jkc.KernelConfig(bm=64, wm=48),
        ValueError,
        "KernelConfig.wm: got 48 with bm=64, expected a divisor of bm",
    ),
    "config int": (lambda: jkc.KernelConfig(vec=1), TypeError, "KernelConfig.vec: got 1, expected a bool"),
    "config kernel": (
        lambda: jkc.KernelConfig(kernel="cudnn"),
        ValueError,
        "KernelConfig.kernel: got 'cudnn', expected one of 'portable'",
    ),
    "config kernel type": (lambda: jkc.KernelConfig(kernel=1), TypeError, "KernelConfig.kernel: got 1, expected a str"),
    "config bool": (lambda: jkc.KernelConfig(vec="yes"), TypeError, "KernelConfig.vec: got 'yes', expected a bool"),
}


@pytest.mark.parametrize("name", CASES)
def test_error_names_argument_got_and_expected(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("name", ["x rank", "channels", "knn rows", "two 16-bit types", "dinput window"])
def test_errors_come_at_trace_time(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        jax.eval_shape(call)


def test_traced_slots_out_of_range_are_holes_and_concrete_ones_raise():
    indices, slots = np.array([[0, 1]]), np.array([[0, 5]])
    with pytest.raises(ValueError, match=r"slots.*5"):
        jkc.NeighborTable(indices, slots, num_inputs=2, num_slots=2)

    @jax.jit
    def run(indices, slots):
        table = jkc.NeighborTable(indices, slots, num_inputs=2, num_slots=2)
        return jkc.knn_conv(jnp.array([[1.0], [10.0]]), jnp.ones((2, 1, 1)), table)

    assert run(indices, slots).item() == 1
