"""Which element types a call takes, computes in and gives back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_FLOATS = tuple(jnp.dtype(t) for t in (jnp.float32, jnp.float16, jnp.bfloat16))
_SIXTEEN = _FLOATS[1:]
_NAMES = "float32, float16 or bfloat16"


class Dtypes(NamedTuple):
    """Operands are rounded to `compute`; sums are float32; results are rounded once to `out`."""

    compute: Any
    out: Any


def as_operand(name: str, value: Any) -> jax.Array:
    """An array of one of the three floating types: integers, bools and float64 become float32."""
    if not hasattr(value, "dtype") and hasattr(value, "__jax_array__"):
        value = value.__jax_array__()
    if not hasattr(value, "dtype"):
        given = type(value).__name__
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name}: got a {given} that makes no array, expected an array ({error})") from error
        if value.dtype == object:
            raise TypeError(f"{name}: got {given}, expected an array of {_NAMES}")
    elif isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError(
            f"{name}: got a ShapeDtypeStruct, expected an array: jax.eval_shape takes shapes without values"
        )
    if not isinstance(value, jax.Array):
        is_array = any(hasattr(value, protocol) for protocol in ("__array__", "__jax_array__"))
        if not is_array or isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name}: got a {type(value).__name__}, expected a plain array of {_NAMES}")
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iub":
        value = value.astype(np.float32)  # before jax makes 32-bit integers of 64-bit ones
    try:
        dtype = jnp.dtype(value.dtype)
    except TypeError as error:
        raise TypeError(f"{name}: got {value.dtype}, expected {_NAMES}") from error
    if dtype in _FLOATS:
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    if dtype == jnp.float64 or jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_:
        return jnp.asarray(value).astype(jnp.float32)
    raise TypeError(f"{name}: got {dtype}, expected {_NAMES} (integers, bool and float64 are rounded to float32)")


def check_dtype(name: str, dtype: Any) -> Any:
    """A dtype argument as one of the three floating types."""
    try:
        found = jnp.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{name}: got {dtype!r}, expected {_NAMES}") from error
    if found not in _FLOATS:
        raise TypeError(f"{name}: got {found}, expected {_NAMES}")
    return found


def resolve(
    operands: dict[str, Any], compute_dtype: Any = None, preferred_element_type: Any = None, precision: Any = None
) -> Dtypes:
    """The dtypes of a call from its operands by name; the first one leads, bias takes no part."""
    check_precision(precision)
    (lead_name, lead), *others = operands.items()
    compute = lead.dtype if compute_dtype is None else check_dtype("compute_dtype", compute_dtype)
    for name, value in ((lead_name, lead), *others):
        if compute in _SIXTEEN and value.dtype in _SIXTEEN and value.dtype != compute:
            source = f"{lead_name} is {compute}" if compute_dtype is None else f"compute_dtype is {compute}"
            raise TypeError(f"{name}: got {value.dtype}, expected float32 or {compute}, since {source}")
    out = (
        lead.dtype if preferred_element_type is None else check_dtype("preferred_element_type", preferred_element_type)
    )
    return Dtypes(jnp.dtype(compute), jnp.dtype(out))


def check_precision(precision: Any) -> None:
    """Accept what `jax.lax` accepts. Sums are at least as precise as any setting asks, so none changes a result."""
    for entry in precision if isinstance(precision, tuple) else (precision,):
        try:
            if entry is not None:
                jax.lax.Precision(entry)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"precision: got {precision!r}, expected None, a jax.lax.Precision, its name, or a pair of them"
            ) from error
