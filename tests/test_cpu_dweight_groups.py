"""Groups of the CPU's weight gradients: one gradient a group, or their sum where the result has one group only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dweight_calls import DTYPES, dense_dweight, dense_oracle, knn_dweight, knn_oracle, slot_order
from handler_calls import (
    assert_close,
    grouped_source_order,
    knn_dinput_answer,
    packed_size,
    random,
    random_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_knnconv._ffi import load_backend, target_name

pytestmark = pytest.mark.skipif(load_backend("cpu").module is None, reason="the CPU module is not built")


@pytest.mark.parametrize("grouped", [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("slices", [1, 2, 16])
def test_dense_groups(grouped, slices):
    rng = np.random.default_rng(4)
    groups = 5
    x = random(rng, (groups if grouped[0] else 1, 3, 20, 10, 4), np.float32)
    g = random(rng, (groups if grouped[1] else 1, 3, 20, 10, 6), np.float32)
    dw, db = dense_dweight(x, g, (3, 1), padding=(1, 0), slices=slices, groups=1)
    assert dw.shape == (groups, 3, 1, 4, 6)
    for group in range(groups):
        answers = dense_oracle(x[group * grouped[0]], g[group * grouped[1]], (3, 1), (1, 1), (1, 0), (1, 1))
        assert_close(dw[group], *answers[:2])
        assert_close(db[group], *answers[2:])


@pytest.mark.parametrize("grouped", [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("has_slots", [False, True])
def test_knn_groups(grouped, has_slots):
    """Two group dimensions, either of them shared by any operand; batch dimensions behind them."""
    rng = np.random.default_rng(5)
    sizes = (2, 3)
    shown = [sizes if flag else (1, 3) for flag in grouped]
    x = random(rng, (*shown[0], 2, 2, 11, 4), np.float32)
    g = random(rng, (*shown[1], 2, 2, 13, 6), np.float32)
    indices = random_table(rng, 13 * shown[2][0] * 3, 5, 11).reshape(*shown[2], 13, 5)
    slots = rng.integers(-1, 8, indices.shape).astype(np.int32) if has_slots else None
    dw, db = knn_dweight(x, g, indices, slots, num_slots=7 if has_slots else None, groups=2, slices=3)
    full_slots = np.broadcast_to(np.arange(5), indices.shape) if slots is None else slots
    for i in range(2 if any(grouped) else 1):
        for j in range(3):
            at = [(i * flag, j) for flag in grouped]
            answers = knn_oracle(
                x[at[0]].reshape(4, 11, 4), g[at[1]].reshape(4, 13, 6), indices[at[2]], full_slots[at[2]], dw.shape[2]
            )
            assert_close(dw[i, j], *answers[:2])
            assert_close(db[i, j], *answers[2:])


def test_many_small_groups():
    """Per-example weight gradients: more groups than slices of the workspace."""
    rng = np.random.default_rng(6)
    x, g = random(rng, (256, 4, 4, 3), np.float16), random(rng, (256, 4, 4, 5), np.float16)
    dw, db = dense_dweight(x[:, None], g[:, None], (3, 3), padding=(1, 1), slices=16, groups=1)
    for group in range(0, 256, 15):
        answers = dense_oracle(x[group, None], g[group, None], (3, 3), (1, 1), (1, 1), (1, 1))
        assert_close(dw[group], *answers[:2])
        assert_close(db[group], *answers[2:])


def result_of(sizes, shared):
    """The result's group sizes where the dimensions in `shared` are summed."""
    return tuple(1 if flag else size for size, flag in zip(sizes, shared, strict=True))


def add_groups(answers, shared):
    """Answers by group number, added over the shared dimensions: {result number: sum}."""
    total = {}
    for number, answer in answers.items():
        result = tuple(0 if flag else i for i, flag in zip(number, shared, strict=True))
        total[result] = [a + b for a, b in zip(total[result], answer, strict=True)] if result in total else answer
    return total


group_sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
flags = st.tuples(st.booleans(), st.booleans())


def operand_groups(sizes, grouped):
    """An operand's group sizes: 1 in the dimensions in which it is not grouped."""
    return tuple(size if flag else 1 for size, flag in zip(sizes, grouped, strict=True))


def member(operand, number):
    """What an operand shows to a group."""
    return operand[tuple(i if size > 1 else 0 for i, size in zip(number, operand.shape, strict=False))]


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    sizes=group_sizes,
    shared=flags,
    x_grouped=flags,
    table_grouped=flags,
    batch=st.integers(0, 2),
    num_inputs=st.integers(0, 40),
    rows=st.one_of(st.integers(0, 70), st.integers(100, 400)),
    taps=st.integers(0, 6),
    channels=st.integers(1, 20),
    columns=st.integers(1, 40),
    num_slots=st.one_of(st.none(), st.integers(1, 9)),
    zero_empty_rows=st.integers(0, 1),
    slices=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_knn_sums_random(
    dtype, sizes, shared, x_grouped, table_grouped, batch, num_inputs, rows, taps, channels, columns, num_slots,
    zero_empty_rows, slices, seed,
):  # fmt: skip
    """Any of two group dimensions summed; every operand but g shared at will."""
    rng = np.random.default_rng(seed)
    x = random(rng, (*operand_groups(sizes, x_grouped), batch, num_inputs, channels), DTYPES[dtype])
    g = random(rng, (*sizes, batch, rows, columns), DTYPES[dtype])
    tables = operand_groups(sizes, table_grouped)
    indices = random_table(rng, rows * tables[0] * tables[1], taps, num_inputs).reshape(*tables, rows, taps)
    slots = None if num_slots is None else rng.integers(-1, num_slots + 1, indices.shape)
    full_slots = np.broadcast_to(np.arange(taps), indices.shape) if slots is None else slots
    options = {"num_slots": num_slots, "zero_empty_rows": zero_empty_rows, "slices": slices}
    dw, db = knn_dweight(x, g, indices, slots, groups=2, result_groups=result_of(sizes, shared), **options)
    answers = {
        number: knn_oracle(
            *(member(v, number) for v in (x, g, indices, full_slots)), dw.shape[2], zero_empty_rows=zero_empty_rows
        )
        for number in np.ndindex(sizes)
    }
    for result, answer in add_groups(answers, shared).items():
        assert_close(dw[result], *answer[:2])
        assert_close(db[result], *answer[2:])


@settings(max_examples=30, deadline=None)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    sizes=group_sizes,
    shared=flags,
    x_grouped=flags,
    channels=st.sampled_from([1, 3, 8, 9, 20]),
    columns=st.integers(1, 40),
    bias=st.booleans(),
    slices=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_dense_sums_random(dtype, sizes, shared, x_grouped, channels, columns, bias, slices, seed):
    rng = np.random.default_rng(seed)
    x = random(rng, (*operand_groups(sizes, x_grouped), 2, 9, 7, channels), DTYPES[dtype])
    g = random(rng, (*sizes, 2, 5, 7, columns), DTYPES[dtype])
    window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)}
    options = {"bias": bias, "slices": slices, "groups": 2, "result_groups": result_of(sizes, shared)}
    dw, db = dense_dweight(x, g, (3, 3), **window, **options)
    answers = {
        number: dense_oracle(member(x, number), member(g, number), (3, 3), *window.values())
        for number in np.ndindex(sizes)
    }
    for result, answer in add_groups(answers, shared).items():
        assert_close(dw[result], *answer[:2])
        if bias:
            assert_close(db[result], *answer[2:])


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize("slices", [1, 8])
def test_a_sum_of_groups_is_rounded_once(has_slots, slices):
    """512 groups of one tap: a bfloat16 sum of ones would stop at 256."""
    x, g = np.ones((512, 1, 1), DTYPES["bfloat16"]), np.ones((512, 1, 1), DTYPES["bfloat16"])
    indices = np.zeros((512, 1, 1), np.int32)
    slots = indices if has_slots else None
    dw, db = knn_dweight(x, g, indices, slots, num_slots=1, slices=slices, groups=1, result_groups=(1,))
    assert dw.astype(float).ravel().tolist() == [512]
    assert db.astype(float).ravel().tolist() == [512]


@pytest.mark.parametrize("slices", [1, 7])
def test_twenty_million_taps_in_groups(slices):
    x, g = np.ones((1, 1, 1), np.float32), np.ones((20, 1_000_000, 1), np.float32)
    indices = np.zeros((1, 1_000_000, 1), np.int32)
    dw, db = knn_dweight(x, g, indices, slices=slices, groups=1, result_groups=(1,))
    assert (dw.item(), db.item()) == (20_000_000, 20_000_000)


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize("result", [(1, 2), (1, 1)])
def test_a_sum_of_no_groups_is_zero(has_slots, result):
    x, g = np.ones((0, 2, 3, 4), np.float32), np.ones((0, 2, 5, 6), np.float32)
    indices = np.zeros((0, 2, 5, 1), np.int32)
    slots = indices if has_slots else None
    dw, db = knn_dweight(x, g, indices, slots, num_slots=1, groups=2, result_groups=result)
    assert dw.shape == (*result, 1, 4, 6)
    assert not dw.any()
    assert not db.any()


def test_a_result_of_other_groups_is_refused():
    x, g = np.ones((4, 1, 3, 3, 2), np.float32), np.ones((4, 1, 3, 3, 2), np.float32)
    with pytest.raises(Exception, match=r"dims\[i\] == size"):
        dense_dweight(x, g, (1, 1), groups=1, result_groups=(2,))


@pytest.mark.parametrize("has_slots", [False, True])
def test_backward_sums_dw_but_not_dx(has_slots):
    rng = np.random.default_rng(8)
    groups, num_inputs, rows, taps, channels, columns = 3, 20, 40, 4, 5, 18
    num_slots = 6 if has_slots else taps
    x, g = (random(rng, s, jnp.float16) for s in ((groups, 2, num_inputs, channels), (groups, 2, rows, columns)))
    weight = random(rng, (1, num_slots, channels, columns), jnp.float16)
    indices = random_table(rng, groups * rows, taps, num_inputs).reshape(groups, rows, taps)
    indices[0, 4] = -1
    slots = rng.integers(-1, num_slots + 1, indices.shape).astype(np.int32) if has_slots else None
    absent = np.zeros([0], np.int32)
    results = [
        jax.ShapeDtypeStruct(x.shape, jnp.float16),
        jax.ShapeDtypeStruct(weight.shape, jnp.float32),
        jax.ShapeDtypeStruct((1, columns), jnp.float32),
        jax.ShapeDtypeStruct((packed_size(weight.shape, 3, -1),), jnp.float32),
        jax.ShapeDtypeStruct((2, weight.size + columns), jnp.float32),
    ]
    dx, dw, db, _, _ = jax.ffi.ffi_call(target_name("knn_backward"), results)(
        g,
        x,
        weight,
        indices,
        slots if has_slots else absent,
        *grouped_source_order(indices, slots, num_inputs, num_slots),
        *(slot_order(indices, slots, num_inputs, num_slots) if has_slots else (absent,) * 3),
        zero_empty_rows=np.int64(1),
    )
    full_slots = np.broadcast_to(np.arange(taps), indices.shape) if slots is None else slots
    answers = {}
    for i in range(groups):
        assert_close(
            np.asarray(dx[i]), *knn_dinput_answer(g[i], weight[0], indices[i], full_slots[i], num_inputs=num_inputs)
        )
        answers[i,] = knn_oracle(x[i], g[i], indices[i], full_slots[i], num_slots, zero_empty_rows=1)
    want = add_groups(answers, (True,))[0,]
    assert_close(np.asarray(dw[0]), *want[:2])
    assert_close(np.asarray(db[0]), *want[2:])


@pytest.mark.parametrize("operation", ["dense", "knn"])
def test_bits_of_a_sum_do_not_change(operation):
    rng = np.random.default_rng(9)
    x, g = random(rng, (6, 2, 20, 15, 9), np.float32), random(rng, (6, 2, 20, 15, 33), np.float32)
    indices = random_table(rng, 6 * 300, 9, 300).reshape(6, 300, 9)
    options = {"slices": 8, "groups": 1, "result_groups": (1,)}

    def run():
        if operation == "dense":
            return dense_dweight(x, g, (3, 3), padding=(1, 1), **options)
        return knn_dweight(x.reshape(6, 2, 300, 9), g.reshape(6, 2, 300, 33), indices, **options)

    first = run()
    for _ in range(5):
        for got, want in zip(run(), first, strict=True):
            np.testing.assert_array_equal(got, want)
