"""Window arithmetic of a dense convolution: padding spellings and output sizes, in plain Python integers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jax_knnconv._reading import INT32_MAX

if TYPE_CHECKING:
    from jax_knnconv._specs import DenseSpec

Pads = tuple[tuple[int, int], tuple[int, int]]

_GPU_REACH = 2**29  # pixels: kReach of lib/gpu/window.h

_EXPECTED = "'SAME', 'SAME_LOWER', 'VALID', an integer, two integers, or two (low, high) pairs of integers"


def output_size(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """floor((size + low + high - ((kernel - 1) * dilation + 1)) / stride) + 1, or 0 where the kernel does not fit.

    Args:
      size: pixels along the dimension.
      kernel: taps along the dimension.
      stride: pixels between two windows.
      dilation: pixels between two taps.
      pads: the (low, high) pads, which may be negative.

    Returns:
      The number of windows.
    """
    low, high = pads
    span = size + low + high - ((kernel - 1) * dilation + 1)
    return max(0, span // stride + 1)


def beyond_gpus(pass_name: str, spec: DenseSpec) -> str | None:
    """What of a window is too far for a GPU's kernels, which compute positions in 32 bits; None if nothing is.

    Args:
      pass_name: "forward", "dinput" or "dweight".
      spec: of the call.
    """
    read, written = spec.input_dims, spec.output_dims
    if pass_name == "dinput":
        read, written = written, read
    for d, name in enumerate("HW"):
        reaches = {
            "stride": spec.stride[d],
            "dilation": spec.dilation[d],
            "low pad": max(spec.padding[d], -spec.padding[d] - 1),
            "pixels read": read[d],
            "pixels written times stride": written[d] * spec.stride[d],
            "taps times dilation": spec.slot_dims[d] * spec.dilation[d],
        }
        for what, reach in reaches.items():
            if reach >= _GPU_REACH:
                return f"its kernels take windows that reach less than 2**29 pixels, got {what} {reach} along {name}"
    return None


def resolve_padding(
    padding: Any, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Pads:
    """The ((low, high), (low, high)) pads of H and W that a spelling of padding stands for.

    Args:
      padding: "SAME", "SAME_LOWER" or "VALID" in any case, as in `jax.lax`; an integer for all four pads; or one entry
        for each of H and W, an integer for both of its pads or a (low, high) pair. Numbers may be negative.
      sizes: H and W of the input.
      kernel: taps along H and W.
      stride: pixels between two windows.
      dilation: pixels between two taps.

    Returns:
      Two (low, high) pairs.

    Raises:
      TypeError: padding is neither a string nor made of integers.
      ValueError: an unknown string, a wrong number of entries, negative pads that cut away more than the input, or pads
        of 2**31 and more.
    """
    if isinstance(padding, str):
        mode = padding.upper()
        if mode == "VALID":
            return (0, 0), (0, 0)
        if mode not in ("SAME", "SAME_LOWER"):
            raise ValueError(f"padding: got {padding!r}, expected {_EXPECTED}")
        total_h, total_w = (_same_total(*window) for window in zip(sizes, kernel, stride, dilation, strict=True))
        return _split(total_h, mode), _split(total_w, mode)
    pads = _explicit(padding)
    check_pads(padding, pads)
    for name, size, (low, high) in zip("HW", sizes, pads, strict=True):
        if size + low + high < 0:
            raise ValueError(
                f"padding: got ({low}, {high}) for {name}, expected pads that cut away at most its {size} pixels"
            )
    return pads


def _same_total(size: int, kernel: int, stride: int, dilation: int) -> int:
    windows = -(-size // stride)
    return max(0, (windows - 1) * stride + (kernel - 1) * dilation + 1 - size)


def _split(total: int, mode: str) -> tuple[int, int]:
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME" else (large, small)


def _explicit(padding: Any) -> Pads:
    """The pads that numbers stand for."""
    number = _integer(padding)
    if number is not None:
        return (number, number), (number, number)
    entries = _entries(padding)
    if entries is None:
        raise TypeError(f"padding: got {padding!r} of type {type(padding).__name__}, expected {_EXPECTED}")
    if len(entries) != 2:
        raise ValueError(f"padding: got {padding!r} with {len(entries)} entries, expected {_EXPECTED}")
    return _pair(entries[0], padding), _pair(entries[1], padding)


def _pair(entry: Any, padding: Any) -> tuple[int, int]:
    """One dimension's pads; `padding` is the whole argument, for the error."""
    number = _integer(entry)
    if number is not None:
        return number, number
    entries = _entries(entry)
    if entries is None:
        raise TypeError(f"padding: got {padding!r} with entry {entry!r}, expected {_EXPECTED}")
    if len(entries) != 2:
        raise ValueError(f"padding: got {padding!r} with entry {entry!r}, expected {_EXPECTED}")
    low, high = (_integer(value) for value in entries)
    if low is None or high is None:
        raise TypeError(f"padding: got {padding!r} with entry {entry!r}, expected {_EXPECTED}")
    return low, high


def check_pads(padding: Any, pairs: Iterable[tuple[int, int]]) -> None:
    """Raise unless index arithmetic can hold the pads that `padding` stands for."""
    if not all(abs(side) <= INT32_MAX for pair in pairs for side in pair):
        raise ValueError(f"padding: got {padding!r}, expected integers greater than -2**31 and less than 2**31")


def _entries(value: Any) -> list[Any] | None:
    """The entries of a list, tuple or array; None for what is no sequence of numbers."""
    if isinstance(value, (str, bytes, dict, set)):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def _integer(value: Any) -> int | None:
    """`value` as an int when it is an integer of Python or NumPy; booleans are none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
