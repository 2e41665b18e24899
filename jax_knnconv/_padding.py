"""Channels that a GPU's call gets rounded up: zeros behind the last one, which no result shows.

Lines of a multiple of 16 bytes are what copies and Hopper's kernels take; others are staged by elements. A pass over an
operand and one over the result cost less than that, except in small calls. docs/handlers.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from jax_knnconv import _kernel_choice

_LINE = _kernel_choice.VECTOR
_LEAST_PRODUCTS = 2**26  # of a call
_MOST_GROWTH = 2  # of what x and y take in memory
_FEW, _FEW_BESIDE = 32, 64  # channels of the two sides up to which the kernels of few channels take dense calls
_FEW_OF_STEM = 4  # channels of x up to which those of stems take a table
_TAPS = {
    "forward": 3,
    "dinput": 3,
    "dweight": 2,
    "backward": 3,
}  # the operand that has as many elements as a table taps


def _round_up(size: int) -> int:
    return -(-size // _LINE) * _LINE


def padded(operation: str, operands: Sequence[Any], spec: Any) -> list[Any]:
    """The operands as the handler gets them: C and O rounded up to whole lines where that pays.

    Args:
      operation: the handler's, as "dense_forward".
      operands: of the handler; their shapes and dtypes are looked at.
      spec: of the call; its config is looked at: vec=False asks for the channels that there are.
    """
    layer, _, pass_name = operation.rpartition("_")
    named = _kernel_choice.named(operation, operands)
    if pass_name == "forward":
        named["bias"] = operands[len(named)]
    config = getattr(spec, "config", None)
    if spec is None or not named or (config is not None and config.vec is False):
        return list(operands)
    if not all(isinstance(size, int) for operand in operands for size in operand.shape):
        return list(operands)
    channels, outputs = _kernel_choice.channels_of(named)
    sizes = _round_up(channels), _round_up(outputs)
    if sizes == (channels, outputs) or not _pays(layer, pass_name, operands, spec, channels, outputs):
        return list(operands)
    lines = {"x": sizes[:1], "g": sizes[1:], "weight": sizes, "bias": sizes[1:]}
    given = list(operands)
    for at, (name, operand) in enumerate(named.items()):
        if math.prod(operand.shape):  # an absent bias has none
            shape = (*operand.shape[: -len(lines[name])], *lines[name])
            given[at] = jax.core.ShapedArray(shape, operand.dtype)
    return given


def _pays(layer: str, pass_name: str, operands: Sequence[Any], spec: Any, channels: int, outputs: int) -> bool:
    slots = math.prod(spec.slot_dims)
    if layer == "knn" and channels <= _FEW_OF_STEM:
        return False
    if layer == "dense" and slots > 1:
        few = channels <= _FEW and outputs <= _FEW_BESIDE
        if few or (pass_name != "dweight" and outputs <= _FEW and channels <= _FEW_BESIDE):
            return False
    rows, sources = math.prod(spec.output_dims), math.prod(spec.input_dims)
    have, take = (sources * c + rows * o for c, o in ((channels, outputs), (_round_up(channels), _round_up(outputs))))
    # Groups and batch, which stand before the rows and the channels.
    first = operands[0].shape
    batch = math.prod(first[: -1 - len(spec.input_dims)])
    taps = rows * slots if layer == "dense" else math.prod(operands[_TAPS[pass_name]].shape)
    return take <= _MOST_GROWTH * have and batch * taps * channels * outputs >= _LEAST_PRODUCTS
