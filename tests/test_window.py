"""Padding spellings and output sizes against jax.lax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_knnconv._window import output_size, resolve_padding

WINDOWS = list(itertools.product((1, 2, 5, 6, 12), (1, 2, 3, 4, 7), (1, 2, 3), (1, 2, 3)))


@pytest.mark.parametrize("mode", ["SAME", "SAME_LOWER", "VALID", "same", "Valid", "same_lower"])
def test_strings_are_those_of_lax(mode):
    for size, kernel, stride, dilation in WINDOWS:
        effective = (kernel - 1) * dilation + 1
        expected = lax.padtype_to_pads((size, 7), (effective, 2), (stride, 1), mode)
        got = resolve_padding(mode, (size, 7), (kernel, 2), (stride, 1), (dilation, 1))
        assert got == tuple(map(tuple, expected))


def lax_size(size, kernel, stride, dilation, pads):
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (stride,), (pads,), rhs_dilation=(dilation,))

    x, w = (jax.ShapeDtypeStruct((1, 1, n), jnp.float32) for n in (size, kernel))
    return jax.eval_shape(convolve, x, w).shape[2]


def test_output_size_is_that_of_lax():
    for size, kernel, stride, dilation in WINDOWS[::2]:
        for pads in ((0, 0), (1, 0), (2, 5), (-1, 0), (3, -2)):
            if size + sum(pads) >= 0:
                assert output_size(size, kernel, stride, dilation, pads) == lax_size(
                    size, kernel, stride, dilation, pads
                ), (size, kernel, stride, dilation, pads)


def test_output_size_of_small_inputs():
    assert output_size(2, 3, 1, 1, (0, 0)) == 0
    assert output_size(2, 9, 2, 3, (0, 0)) == 0
    assert output_size(0, 1, 1, 1, (0, 0)) == 0
    assert output_size(0, 3, 1, 1, (1, 2)) == 1
    assert output_size(5, 3, 2, 1, (1, 1)) == 3


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (2, ((2, 2), (2, 2))),
        (np.int64(-1), ((-1, -1), (-1, -1))),
        ((1, 2), ((1, 1), (2, 2))),
        ([0, 3], ((0, 0), (3, 3))),
        (((1, 2), (3, 4)), ((1, 2), (3, 4))),
        ([[1, -2], (-3, 4)], ((1, -2), (-3, 4))),
        ((1, (0, 2)), ((1, 1), (0, 2))),
        (np.array([[0, 1], [2, 3]]), ((0, 1), (2, 3))),
    ],
)
def test_numbers(padding, expected):
    got = resolve_padding(padding, (8, 8), (3, 3), (1, 1), (1, 1))
    assert got == expected
    assert all(type(pad) is int for pair in got for pad in pair)


@pytest.mark.parametrize(
    ("padding", "error", "says"),
    [
        ("CIRCULAR", ValueError, r"padding: got 'CIRCULAR', expected 'SAME', 'SAME_LOWER', 'VALID'"),
        ("", ValueError, "padding: got ''"),
        (None, TypeError, "padding: got None of type NoneType, expected"),
        (1.0, TypeError, "padding: got 1.0 of type float"),
        (True, TypeError, "padding: got True of type bool"),
        (b"SAME", TypeError, "of type bytes"),
        ((1,), ValueError, "with 1 entries"),
        ((1, 2, 3), ValueError, "with 3 entries"),
        ((1, 2.5), TypeError, "entry 2.5"),
        ((1, True), TypeError, "entry True"),
        (((1, 2), (3,)), ValueError, r"entry \(3,\)"),
        (((1, 2), (3, 4, 5)), ValueError, r"entry \(3, 4, 5\)"),
        (((1, 2), (3, 4.0)), TypeError, r"entry \(3, 4.0\)"),
        (("SAME", "VALID"), TypeError, "entry 'SAME'"),
        (((0, 0), (-5, -4)), ValueError, r"padding: got \(-5, -4\) for W, expected .* at most its 8 pixels"),
    ],
)
def test_errors(padding, error, says):
    with pytest.raises(error, match=says):
        resolve_padding(padding, (8, 8), (3, 3), (1, 1), (1, 1))
