"""CPU forward handlers, dense and KNN, against NumPy float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from handler_calls import (
    BF16,
    CHANNELS,
    DTYPES,
    EXAMPLES,
    UNIT,
    assert_close,
    dense_forward,
    flat_pixels,
    flat_slots,
    knn_forward,
    knn_forward_answer,
    needs_memory,
    random,
    random_table,
    window_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    channels=st.tuples(CHANNELS, CHANNELS),
    batch=st.sampled_from([(), (1,), (2, 2), (9,), (130,)]),
    explicit=st.booleans(),
    with_bias=st.booleans(),
    zero_empty=st.booleans(),
)
def test_knn_random(seed, dtype, channels, batch, explicit, with_bias, zero_empty):
    rng = np.random.default_rng(seed)
    (n, m, k), (c, o) = rng.integers([1, 1, 1], [40, 40, 9]), channels
    v = int(rng.integers(1, 7)) if explicit else int(k)
    x, weight = random(rng, (*batch, n, c), dtype), random(rng, (v, c, o), dtype)
    bias = random(rng, (o,), np.float32) if with_bias else None
    indices = random_table(rng, m, k, n)
    # Slots -1 and v are holes as well.
    slots = np.sort(rng.integers(-1, v + 1, (m, k)).astype(np.int32), axis=1) if explicit else None
    y = knn_forward(x, weight, indices, slots, bias, zero_empty_rows=zero_empty)
    assert_close(y, *knn_forward_answer(x, weight, indices, slots, bias, zero_empty))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    channels=st.tuples(CHANNELS, CHANNELS),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(-2, 4), st.integers(-2, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_dense_random(seed, dtype, channels, kernel, stride, padding, dilation):
    rng = np.random.default_rng(seed)
    size, out_size = tuple(rng.integers(1, 14, 2)), tuple(rng.integers(1, 10, 2))
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    x = random(rng, (2, *size, channels[0]), dtype)
    weight, bias = random(rng, (*kernel, *channels), dtype), random(rng, channels[1:], np.float32)
    y = dense_forward(x, weight, out_size, bias, **window)
    table = window_table(size, out_size, kernel, **window)
    assert_close(flat_pixels(y), *knn_forward_answer(flat_pixels(x), flat_slots(weight), table, None, bias))


@pytest.mark.parametrize("compute", [np.float16, BF16])
@pytest.mark.parametrize("columns", [2, 40])
def test_float32_source_is_rounded_to_16_bit_weights(compute, columns):
    rng = np.random.default_rng(1)
    x, weight = random(rng, (3, 20, 37), np.float32), random(rng, (4, 37, columns), compute)
    x[0, 0, 0] = 70000.0
    indices = random_table(rng, 11, 4, 20)
    indices[:, 0] = np.where(indices[:, 0] == 0, 1, indices[:, 0])
    y = knn_forward(x, weight, indices, dtype=np.float32)
    with np.errstate(over="ignore"):
        rounded = x.astype(compute)
    finite = np.where(np.isfinite(rounded.astype(np.float32)), rounded, compute(0))
    used = np.any(indices == 0, axis=1)
    value, size = knn_forward_answer(finite, weight, indices)
    assert_close(y[:, ~used], value[:, ~used], size[:, ~used])
    if compute is np.float16 and used.any():
        assert not np.isfinite(y[0, used]).any()


def test_holes_read_nothing():
    x = np.array([[np.nan], [2], [3]], np.float32)
    indices = np.array([[-1, -1], [1, 2]], np.int32)
    np.testing.assert_array_equal(knn_forward(x, np.ones((2, 1, 1), np.float32), indices), [[0], [5]])


@pytest.mark.parametrize("channels", [(1, 1), (24, 1), (1, 24), (300, 40)])
def test_junk_indices_are_holes_in_every_form(channels):
    x = np.full((2, 3, channels[0]), np.nan, np.float32)
    x[:, 1] = 1
    junk = np.array([[-(2**31), 1, -50_000_000, -1, 3, 4, 2**31 - 1]], np.int32).repeat(30, 0)
    weight = np.ones((7, *channels), np.float32)
    np.testing.assert_array_equal(knn_forward(x, weight, junk), np.full((2, 30, channels[1]), channels[0]))
    slots = np.arange(7, dtype=np.int32)[None].repeat(30, 0)
    np.testing.assert_array_equal(knn_forward(x, weight, junk, slots), np.full((2, 30, channels[1]), channels[0]))


def test_shared_slots():
    x = np.array([[1], [10], [100]], np.float32)
    weight = np.array([2, 3], np.float32).reshape(2, 1, 1)
    y = knn_forward(x, weight, np.array([[0, 1, 2]], np.int32), np.array([[0, 0, 1]], np.int32))
    np.testing.assert_array_equal(y, [[322]])


def test_slots_out_of_order_still_add_every_tap():
    x = np.arange(1, 4, dtype=np.float32)[:, None]
    weight = np.array([1, 10], np.float32).reshape(2, 1, 1)
    y = knn_forward(x, weight, np.array([[0, 1, 2, 0]], np.int32), np.array([[1, 0, 1, 1]], np.int32))
    np.testing.assert_array_equal(y, [[10 + 2 + 30 + 10]])


def test_empty_rows_give_bias_or_zero():
    x, weight, bias = np.ones((2, 1), np.float32), np.ones((2, 1, 1), np.float32), np.array([5], np.float32)
    indices = np.array([[-1, -1], [0, 1]], np.int32)
    for slots in (None, np.array([[0, 1], [0, 1]], np.int32)):
        np.testing.assert_array_equal(knn_forward(x, weight, indices, slots, bias), [[5], [7]])
        np.testing.assert_array_equal(knn_forward(x, weight, indices, slots, bias, zero_empty_rows=1), [[0], [7]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity_is_bitwise(dtype):
    x = np.arange(512, dtype=np.float32).reshape(32, 16).astype(dtype)
    y = knn_forward(x, np.eye(16, dtype=np.float32).astype(dtype)[None], np.arange(32, dtype=np.int32)[:, None])
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))


def test_sums_of_16_bit_are_float32():
    x = np.full((1, 3, 3, 64), 100, np.float16)
    weight = np.full((3, 3, 64, 4), 100, np.float16)
    weight[:, :, 32:] = -100
    np.testing.assert_array_equal(dense_forward(x, weight, (1, 1), **UNIT), np.zeros((1, 1, 1, 4), np.float16))
    over = dense_forward(x[:, :1, :1, :16], weight[:1, :1, :16], (1, 1), **UNIT)
    np.testing.assert_array_equal(over, np.full((1, 1, 1, 4), np.inf, np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ones_count_the_window(dtype):
    y = dense_forward(
        np.ones((3, 12, 12, 8), dtype), np.ones((3, 3, 8, 8), dtype), (12, 12), **{**UNIT, "padding": (1, 1)}
    )
    rows = np.array([2] + [3] * 10 + [2])
    np.testing.assert_array_equal(y.astype(np.float32), np.broadcast_to((rows[:, None] * rows * 8)[..., None], y.shape))


@pytest.mark.parametrize("n", [5, 6])
def test_same_padding_with_stride_two(n):
    weight = np.array([1, 10, 100], np.float32).reshape(1, 3, 1, 1)
    x = np.arange(1, n + 1, dtype=np.float32).reshape(1, 1, n, 1)
    y = dense_forward(x, weight, (1, 3), stride=(1, 2), padding=(0, n % 2), dilation=(1, 1))
    np.testing.assert_array_equal(y.ravel(), [210, 432, 54] if n == 5 else [321, 543, 65])


EMPTY = [(0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4), (2, 3, 2, 0)]  # batch, rows or pixels, C, O


@pytest.mark.parametrize(("b", "n", "c", "o"), EMPTY)
def test_empty_sizes_give_the_bias(b, n, c, o):
    bias = np.arange(o, dtype=np.float32)
    indices = np.zeros((3, 2), np.int32)
    y = knn_forward(np.ones((b, n, c), np.float32), np.ones((2, c, o), np.float32), indices, bias=bias)
    expected = np.broadcast_to(bias + (2 * c if n else 0), (b, 3, o))
    np.testing.assert_array_equal(y, expected)
    y = dense_forward(np.ones((b, n, n, c), np.float32), np.ones((1, 1, c, o), np.float32), (2, 2), bias, **UNIT)
    np.testing.assert_array_equal(y, np.broadcast_to(bias + (c if n else 0), (b, 2, 2, o)))


def test_no_rows_and_no_columns():
    x, bias = np.ones((2, 3, 4), np.float32), np.ones(5, np.float32)
    assert knn_forward(x, np.ones((2, 4, 5), np.float32), np.zeros((0, 2), np.int32), bias=bias).shape == (2, 0, 5)
    y = knn_forward(x, np.ones((0, 4, 5), np.float32), np.zeros((7, 0), np.int32), bias=bias)
    np.testing.assert_array_equal(y, np.ones((2, 7, 5)))


@pytest.mark.parametrize("columns", [3, 40])
def test_groups_of_any_operand(columns):
    rng = np.random.default_rng(2)
    sizes = {"x": (2, 1), "weight": (1, 3), "indices": (2, 3), "slots": (2, 1), "bias": (1, 3)}
    x, weight = random(rng, (*sizes["x"], 4, 10, 20), np.float32), random(rng, (*sizes["weight"], 5, 20, columns), BF16)
    weight = weight.astype(np.float32)
    indices = random_table(rng, 6 * 7, 3, 10).reshape(2, 3, 7, 3)
    slots = np.sort(rng.integers(0, 5, (2, 1, 7, 3)).astype(np.int32), axis=-1)
    bias = random(rng, (*sizes["bias"], columns), np.float32)
    y = knn_forward(x, weight, indices, slots, bias)
    assert y.shape == (2, 3, 4, 7, columns)
    for i, j in np.ndindex(2, 3):
        answer = knn_forward_answer(x[i, 0], weight[0, j], indices[i, j], slots[i, 0], bias[0, j])
        assert_close(y[i, j], *answer)
    # One image for all groups, one kernel for each.
    image, kernels = random(rng, (1, 2, 6, 6, 4), np.float32), random(rng, (3, 3, 3, 4, columns), np.float32)
    y = dense_forward(image, kernels, (4, 4), **UNIT)
    for g in range(3):
        np.testing.assert_array_equal(y[g], dense_forward(image[0], kernels[g], (4, 4), **UNIT))


@pytest.mark.parametrize("channels", [(64, 64), (3, 40), (300, 70), (40, 3), (2, 17)])
@pytest.mark.parametrize("explicit", [False, True])
def test_a_row_has_the_same_bits_in_any_batch(channels, explicit):
    rng = np.random.default_rng(3)
    x, weight = random(rng, (37, 50, channels[0]), np.float32), random(rng, (6, *channels), np.float32)
    indices = random_table(rng, 150, 6, 50)
    slots = np.sort(rng.integers(0, 6, (150, 6)).astype(np.int32), axis=1) if explicit else None
    y = knn_forward(x, weight, indices, slots)
    for b in (0, 36):
        np.testing.assert_array_equal(knn_forward(x[b : b + 1], weight, indices, slots)[0], y[b])
    # Slots that spell out the column are the same convolution.
    columns = np.broadcast_to(np.arange(6, dtype=np.int32), indices.shape).copy()
    np.testing.assert_array_equal(knn_forward(x, weight, indices, columns), knn_forward(x, weight, indices))


def test_dense_rows_have_the_same_bits_in_any_batch_and_table():
    rng = np.random.default_rng(4)
    x, weight = random(rng, (5, 9, 11, 20), np.float16), random(rng, (3, 3, 20, 40), np.float16)
    window = {**UNIT, "padding": (1, 1)}
    y = dense_forward(x, weight, (9, 11), **window)
    np.testing.assert_array_equal(dense_forward(x[3:4], weight, (9, 11), **window)[0], y[3])
    table = window_table((9, 11), (9, 11), (3, 3), **window)
    np.testing.assert_array_equal(knn_forward(flat_pixels(x), flat_slots(weight), table), flat_pixels(y))


@needs_memory
def test_offsets_beyond_2_31_elements():
    n, c = 2**23 + 8, 256
    x = np.zeros((n, c), np.float16)
    x[-1] = 1
    y = knn_forward(x, np.ones((1, c, 1), np.float16), np.array([[n - 1]], np.int32))
    np.testing.assert_array_equal(y, [[256]])


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_other_instruction_sets(isa):
    """The instruction set is chosen once a process: run this file's random tests in another one."""
    if os.environ.get("JAX_KNNCONV_CPU_ISA"):
        pytest.skip("already inside")
    here = Path(__file__)
    files = [str(here), str(here.with_name("test_cpu_dinput_handlers.py"))]
    select = "random or bits or identity or rounded or junk"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", select, *files],
        cwd=here.parents[1],
        env={**os.environ, "JAX_KNNCONV_CPU_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]


THREADS_PROGRAM = """
import os, sys
if sys.argv[1] == "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[2])
import hashlib
import numpy as np
from handler_calls import BF16, dense_dinput, dense_forward, knn_dinput, knn_forward, random, random_table
rng, digest = np.random.default_rng(7), hashlib.sha256()
window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)}
for dtype in (np.float32, BF16):
    for c, o in ((40, 300), (3, 70), (64, 5)):
        x, g, w = random(rng, (3, 90, c), dtype), random(rng, (3, 200, o), dtype), random(rng, (9, c, o), dtype)
        table = random_table(rng, 200, 9, 90)
        digest.update(knn_forward(x, w, table).tobytes())
        digest.update(knn_dinput(g, w, table, num_inputs=90).tobytes())
        image, kernel = random(rng, (2, 15, 13, c), dtype), w.reshape(3, 3, c, o)
        digest.update(dense_forward(image, kernel, (8, 13), **window).tobytes())
        digest.update(dense_dinput(random(rng, (2, 8, 13, o), dtype), kernel, (15, 13), **window).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to set a process's processors")
def test_results_do_not_depend_on_the_thread_count():
    def digest(single: str) -> str:
        here = Path(__file__).parent
        command = [sys.executable, "-c", THREADS_PROGRAM, single, str(here)]
        run = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-4000:]
        return run.stdout

    assert digest("1") == digest("0")
