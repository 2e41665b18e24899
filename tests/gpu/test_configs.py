"""What a KernelConfig forces, through the public operations: every tile and staging that ships, and ksplit."""

import functools

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("on_gpu")

# Tiles are 64 rows high wherever asynchronous copies do not fill them; dweight's that are filled by elements are not.
TILES = [{"bm": rows, "bn": columns} for rows in (16, 64, 128) for columns in (32, 64, 128)]
TILES += [
    {"bm": 64, "bn": columns, **staging}
    for columns in (32, 64, 128)
    for staging in ({"vec": False}, {"async_copy": False})
]
DWEIGHT_TILES = [{"bm": rows, "bn": columns} for rows in (32, 64, 128) for columns in (32, 64, 128)]
DWEIGHT_TILES += [{"bm": rows, "bn": columns, "vec": False} for rows in (32, 128) for columns in (32, 64, 128)]
DWEIGHT_TILES += [{"bm": 64, "bn": columns, "async_copy": False} for columns in (32, 64, 128)]
SAME = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
CALLS = 100


def _name(fields):
    return "-".join(f"{name}{value}" for name, value in fields.items())


def _repeated(function, *operands):
    """The one result of many calls."""
    compiled = jax.jit(function).lower(*operands).compile()
    assert "jax_knnconv_" in compiled.as_text()
    first = compiled(*operands)
    for _ in range(CALLS - 1):
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(compiled(*operands)), strict=True):
            assert jnp.array_equal(a, b)
    return first


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("fields", TILES, ids=_name)
def test_ones_count_taps(fields, dtype):  # case 6
    config = jkc.KernelConfig(**fields)
    x, weight = jnp.ones((40, 32, 32, 8), dtype), jnp.ones((3, 3, 8, 8), dtype)
    side = np.array([2] + [3] * 30 + [2])
    expected = np.broadcast_to((8 * side[:, None] * side)[..., None], x.shape)
    y = _repeated(functools.partial(jkc.conv2d, config=config), x, weight)
    np.testing.assert_array_equal(np.asarray(y, np.float32), expected)
    dx = _repeated(lambda g, w: jkc.conv2d_dinput(g, w, x.shape, config=config), x, weight)
    np.testing.assert_array_equal(np.asarray(dx, np.float32), expected)


@pytest.mark.parametrize("ksplit", [None, 1, 7])
@pytest.mark.parametrize("fields", DWEIGHT_TILES, ids=_name)
def test_ones_count_pairs(fields, ksplit):  # case 6
    config = jkc.KernelConfig(**fields, ksplit=ksplit)
    x = jnp.ones((40, 32, 32, 8), BF16)
    run = functools.partial(jkc.conv2d_dweight, kernel_shape=(3, 3), preferred_element_type=jnp.float32, config=config)
    dw, db = _repeated(run, x, x)
    side = np.array([31, 32, 31])
    np.testing.assert_array_equal(dw, np.broadcast_to(40 * np.outer(side, side)[..., None, None], dw.shape))
    np.testing.assert_array_equal(db, np.full(8, 40 * 32 * 32))


def _table(rng, slots):
    indices, given = calls.random_table(rng, 41, 9, 50, slots)
    return indices, given, jkc.NeighborTable(indices, given, num_inputs=50, num_slots=slots)


@pytest.mark.parametrize("slots", [None, 5], ids=["columns", "slots"])
@pytest.mark.parametrize("fields", TILES, ids=_name)
def test_table_passes(fields, slots):
    rng = np.random.default_rng(0)
    indices, given, table = _table(rng, slots)
    x, g = calls.normal(rng, (20, 50, 24), BF16), calls.normal(rng, (20, 41, 72), BF16)
    weight = calls.normal(rng, (slots or 9, 24, 72), BF16, 0.1)
    given_config = {"config": jkc.KernelConfig(**fields), "preferred_element_type": jnp.float32}
    y = jax.jit(lambda x, w: jkc.knn_conv(x, w, table, **given_config))(x, weight)
    exact = oracle.knn_forward(x, weight, indices, given)
    bound = oracle.knn_forward(abs(oracle.f64(x)), abs(oracle.f64(weight)), indices, given)
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, F32)
    dx = jax.jit(lambda g, w: jkc.knn_dinput(g, w, table, **given_config))(g, weight)
    exact = oracle.knn_dinput(g, weight, indices, given, num_inputs=50)
    bound = oracle.knn_dinput(abs(oracle.f64(g)), abs(oracle.f64(weight)), indices, given, num_inputs=50)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, F32)


@pytest.mark.parametrize("slots", [None, 5], ids=["columns", "slots"])
@pytest.mark.parametrize("ksplit", [1, 2, 3, 40])
def test_ksplit(ksplit, slots):
    rng = np.random.default_rng(1)
    indices, given, table = _table(rng, slots)
    x, g = calls.normal(rng, (60, 50, 24), F16), calls.normal(rng, (60, 41, 72), F16)
    run = functools.partial(
        jkc.knn_dweight, table=table, preferred_element_type=jnp.float32, config=jkc.KernelConfig(ksplit=ksplit)
    )
    found = _repeated(lambda x, g: run(x, g), jnp.asarray(x), jnp.asarray(g))
    exact = oracle.knn_dweight(x, g, indices, given, num_slots=table.num_slots)
    bound = oracle.knn_dweight(abs(oracle.f64(x)), abs(oracle.f64(g)), indices, given, num_slots=table.num_slots)
    for value, answer, limit, name in zip(found, exact, bound, ("dw", "db"), strict=True):
        oracle.assert_within_ulp(value, answer, 2 * limit, F32, name)


def test_ksplit_changes_the_order_of_the_sum():
    """Positive numbers whose sum rounds another way in parts: the split is done, and unsplit means one chain."""
    rng = np.random.default_rng(2)
    x, g = jnp.asarray(rng.random((1, 64, 64, 8)) + 1, F16), jnp.asarray(rng.random((1, 64, 64, 8)) + 1, F16)
    found = [
        np.asarray(
            jkc.conv2d_dweight(x, g, (1, 1), preferred_element_type=jnp.float32, config=jkc.KernelConfig(ksplit=n))[0]
        )
        for n in (1, 3, 16)
    ]
    assert len({value.tobytes() for value in found}) == 3
    exact = np.einsum("bhwc,bhwo->co", np.asarray(x, np.float64), np.asarray(g, np.float64))
    for value in found:  # a truncated sum of one sign is short by up to an eps32 for each of 128 partial sums
        np.testing.assert_allclose(value[0, 0], exact, rtol=2**-16)


def test_ksplit_beyond_the_room_for_partial_sums():
    x = jnp.ones((1, 8, 8, 8), F16)
    with pytest.raises(ValueError, match=r"ksplit=100000, .*partials have room"):
        jkc.conv2d_dweight(x, x, (3, 3), config=jkc.KernelConfig(ksplit=100_000))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(("c", "o"), [(8, 24), (24, 32), (32, 8), (3, 40), (3, 64)])  # 3: K_TOTAL = 27
def test_widths_of_tiles_do_not_change_a_bit(c, o, dtype):
    rng = np.random.default_rng(3)
    x, g = (jnp.asarray(calls.normal(rng, (3, 15, 14, size), dtype)) for size in (c, o))
    weight = jnp.asarray(calls.normal(rng, (3, 3, c, o), dtype, 0.1))
    options = {"preferred_element_type": jnp.float32}
    passes = {
        "forward": lambda config: [jkc.conv2d(x, weight, config=config, **options)],
        "dinput": lambda config: [jkc.conv2d_dinput(g, weight, x.shape, config=config, **options)],
        "dweight": lambda config: jkc.conv2d_dweight(x, g, (3, 3), config=config, **options),
    }
    exact = {
        "forward": [oracle.dense_forward(x, weight, None, output_size=(15, 14), **SAME)],
        "dinput": [oracle.dense_dinput(g, weight, input_size=(15, 14), **SAME)],
        "dweight": oracle.dense_dweight(x, g, kernel_size=(3, 3), **SAME),
    }
    for name, run in passes.items():
        ksplit = 1 if name == "dweight" else None
        rows = 32 if name == "dweight" else 64
        narrow, wide = (run(jkc.KernelConfig(bm=rows, bn=columns, ksplit=ksplit)) for columns in (32, 64))
        np.testing.assert_array_equal(np.asarray(narrow[0]), np.asarray(wide[0]), err_msg=name)
        for values in narrow, wide:  # threads share out the columns of db's tile: its order depends on the width
            for value, answer in zip(values, exact[name], strict=True):
                np.testing.assert_allclose(value, answer, rtol=0, atol=1e-5 * np.abs(answer).max(), err_msg=name)
