"""Reads what users pass where sizes, integers and host arrays are expected."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def check_size(name: str, size: Any, minimum: int = 0) -> int:
    """Read a static size: an integer of at least `minimum` that int32 index arithmetic can hold."""
    try:
        value = operator.index(size)
    except TypeError:
        value = None
    if value is None or isinstance(size, (bool, np.bool_)):
        raise TypeError(f"{name}: got {size!r} of type {type(size).__name__}, expected an integer")
    if not minimum <= value <= INT32_MAX:
        raise ValueError(f"{name}: got {value}, expected at least {minimum} and less than 2**31")
    return value


def is_concrete(value: Any) -> bool:
    """Whether this process can read a value's elements now."""
    if isinstance(value, jax.core.Tracer):
        return False
    return not isinstance(value, jax.Array) or value.is_fully_addressable


def as_array(name: str, value: Any) -> np.ndarray:
    """Read a concrete array or nested sequence into NumPy."""
    if not is_concrete(value):
        raise TypeError(f"{name}: got a traced array, expected concrete values: call this outside jit, on the host")
    given = type(value).__name__
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: got a {given}, whose mask would be lost, expected a plain array: fill it first")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: got what makes no array, expected rows of equal length ({error})") from error
    if array.dtype == object:
        what = "an array of objects" if isinstance(value, np.ndarray) else f"{given}, which makes no array of numbers"
        raise TypeError(f"{name}: got {what}, expected numbers in rows of equal length")
    return array


def as_integers(name: str, value: Any) -> Any:
    """Read an integer array: NumPy where its values are known, else the traced array; the dtype stays."""
    array = as_array(name, value) if is_concrete(value) else value
    if array.size == 0 and not hasattr(value, "dtype"):
        array = array.astype(np.int32)  # an empty list has no dtype of its own
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: got dtype {array.dtype}, expected an integer dtype")
    return array
