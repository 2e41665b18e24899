"""Memory that handlers need beside their results: results themselves, so that XLA sees, places and reuses it.

How much is a rule on static shapes and the platform. docs/handlers.md says what each handler does with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv._primitive import ABSENT, group_sizes

_PANEL = 64  # packed weights are padded to this many columns
_HUB = 256  # on a GPU, taps of one source beyond which its sum is split (docs/handlers.md)
# Of the stem kernels of dinput (lib/gpu/stem_dinput.h): what they take of g and x, and how they order taps.
_STEM_CHANNELS, _STEM_DEPTH = 4, 96
_STEM_SUM_BYTES = 227 * 1024  # of shared memory, which holds all sums of a sample
_STEM_SOURCES = 64  # whose taps stand together
_STEM_ROWS, _STEM_MOST_STRETCHES = 8, 40  # of g in the shortest stretch; stretches at most
_STEM_FEW_STRETCHES = 8  # there may be so many where sources have fewer taps, if the kernel is forced
_PARTIAL_ELEMENTS = 1 << 21  # of all slices of dweight's partial sums together (8 MiB), unless one alone is larger
_MOST_SLICES = 64
_GPU_PARTIAL_ELEMENTS = 1 << 23  # the same on a GPU (32 MiB), whose many thread blocks each sum a slice
_MOST_GPU_SLICES = 1024


def _struct(shape: Sequence[Any], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def packed_weights(w: Any, *, reduced: int, columns: int, rank: int, platform: str) -> jax.ShapeDtypeStruct:
    """Room for weights as float32 panels: one matrix [reduced, columns padded] a slot and group. GPUs need none."""
    if platform != "cpu":
        return _struct(ABSENT, jnp.float32)
    slots = 1
    for size in (*w.shape[:rank], *w.shape[rank:-2]):
        slots = slots * size
    return _struct((slots * reduced * (-(-columns // _PANEL) * _PANEL),), jnp.float32)


def _hub_sums(g: Any, w: Any, source_rows: Any, *, batch: Any, groups: Any) -> Any:
    """Elements of a GPU's partial sums of dx over sources with many taps: two rows [batch, C] for every `_HUB` taps."""
    taps = source_rows.shape[-1]
    if isinstance(taps, int) and taps <= _HUB:
        return 0
    return groups * 2 * (-(-taps // _HUB)) * batch * w.shape[-2]


def _stem_order(g: Any, w: Any, source_offsets: Any, source_rows: Any, *, groups: Any) -> Any:
    """Elements of the order in which a GPU adds up the taps of a stem's dinput; 0 where no such kernel takes the call.

    Sources stand together in blocks, rows of g in stretches, in each of which a source has four taps in 8 bytes, and a
    list of further ones: where two sources' begin, in 8 bytes, and fours again, one for every fourth tap at most.
    `StemDinputPlan` in lib/gpu/stem_dinput.h; how long a stretch is depends on the GPU, but by shape sources have a tap
    in each, or the kernel does not run.
    """
    rows, (slots, channels, depth) = g.shape[-2], w.shape[-3:]
    sources, taps = source_offsets.shape[-2] - 1, source_rows.shape[-1]
    if not all(isinstance(size, int) for size in (rows, slots, channels, depth, sources, taps)):
        return 0
    fits = 0 < channels <= _STEM_CHANNELS and 0 < depth <= _STEM_DEPTH and depth % 8 == 0
    if not fits or slots == 0 or sources == 0 or sources * channels * 4 > _STEM_SUM_BYTES:
        return 0
    blocks = -(-sources // _STEM_SOURCES)
    stretches = min(max(_STEM_FEW_STRETCHES, taps // sources), -(-rows // _STEM_ROWS), _STEM_MOST_STRETCHES)
    lists = blocks * stretches * _STEM_SOURCES
    return groups * (3 * lists + 2 * (-(-taps // 4)))


def dinput_workspace(g: Any, w: Any, *source_order: Any, rank: int, platform: str, fixed: int) -> jax.ShapeDtypeStruct:
    """What a dinput handler needs; `fixed` dimensions of g follow its batch dimensions."""
    if platform == "cpu" or not source_order:
        return packed_weights(w, reduced=w.shape[-1], columns=w.shape[-2], rank=rank, platform=platform)
    offsets, rows, _ = source_order
    batch = groups = 1
    for size in g.shape[rank : g.ndim - fixed]:
        batch = batch * size
    for size in group_sizes(rank, (g, w, rows)):
        groups = groups * size
    hubs = _hub_sums(g, w, rows, batch=batch, groups=groups)
    order = _stem_order(g, w, offsets, rows, groups=groups) if platform == "cuda" else 0
    # Only one of them is used.
    known = isinstance(hubs, int) and isinstance(order, int)
    return _struct((max(hubs, order) if known else hubs + order,), jnp.float32)


def partial_sums(
    weight_size: int, columns: int, groups: Sequence[Any], *, platform: str, most: int | None = None
) -> jax.ShapeDtypeStruct:
    """Room for dweight's slices. Their number follows from static shapes, so that no result depends on the machine.

    A GPU sums each of the result's groups on its own, in a slice at least. One more holds what tiles sum of the bias.
    `most` is how many slices its kernel uses, where that is known. With more, a weight gradient may take more memory
    than it sets free: XLA then puts it off to the end of the backward pass, and keeps activations and cotangents.
    """
    one = weight_size + columns
    if platform == "cpu":
        return _struct((max(1, min(_MOST_SLICES, _PARTIAL_ELEMENTS // max(one, 1))), one), jnp.float32)
    count: Any = 1
    for size in groups:
        count = count * size
    each = one * count if isinstance(count, int) else _GPU_PARTIAL_ELEMENTS
    slices = 1 + max(1, min(_MOST_GPU_SLICES, _GPU_PARTIAL_ELEMENTS // max(each, 1)))
    return _struct((count * slices if most is None else most, one), jnp.float32)
