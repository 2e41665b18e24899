"""The halo exchange of one device, and its transpose, as a pair of primitives.

    extend   E(x) = [x | rows received, round after round]
    fold     F(g) = own part of g, + the cotangents of the rows that were sent, as they come back

Each is the transpose of the other. Autodiff of a gather would add cotangents in their own dtype and in no fixed order;
F adds them in float32, a row's copies in the order of the rounds, and rounds once, to `out_dtype`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

from jax_knnconv import _primitive
from jax_knnconv.spatial.exchange import Exchange

_extend = _primitive.define("halo_extend")
_fold = _primitive.define("halo_fold")


def extend(x: Any, lists: Sequence[Any], *, exchange: Exchange, axis_name: Any) -> Any:
    """[..., S, C] -> [..., S + halo_size, C]; lists are the device's (send_rows, return_rows, return_places)."""
    return _primitive.bind(_extend, _extend_call, (x, *lists), exchange=exchange, axis_name=axis_name)[0]


def fold(g: Any, lists: Sequence[Any], *, exchange: Exchange, axis_name: Any, out_dtype: Any) -> Any:
    """[..., S + halo_size, C] -> [..., S, C] of out_dtype."""
    return _primitive.bind(
        _fold, _fold_call, (g, *lists), exchange=exchange, axis_name=axis_name, out_dtype=jnp.dtype(out_dtype)
    )[0]


def _slices(value: Any, exchange: Exchange) -> list[Any]:
    """One slice a round of the rows [..., halo_size, C]."""
    ends = list(itertools.accumulate(round_.width for round_ in exchange.rounds))
    return [
        lax.slice_in_dim(value, end - round_.width, end, axis=value.ndim - 2)
        for round_, end in zip(exchange.rounds, ends, strict=True)
    ]


def _take(value: Any, rows: Any, **options: Any) -> Any:
    return value.at[..., rows, :].get(indices_are_sorted=False, **options)


def _extend_call(
    x: Any, send_rows: Any, return_rows: Any, return_places: Any, *, exchange: Exchange, axis_name: Any
) -> Sequence[Any]:
    del return_rows, return_places
    if not exchange.rounds:
        return [x]
    sent = _take(x, send_rows, mode="promise_in_bounds")
    received = [
        lax.ppermute(rows, axis_name, round_.pairs)
        for rows, round_ in zip(_slices(sent, exchange), exchange.rounds, strict=True)
    ]
    return [jnp.concatenate([x, *received], axis=-2)]


def _fold_call(
    g: Any,
    send_rows: Any,
    return_rows: Any,
    return_places: Any,
    *,
    exchange: Exchange,
    axis_name: Any,
    out_dtype: Any,
) -> Sequence[Any]:
    del send_rows
    size, axis = exchange.source_size, g.ndim - 2
    own = lax.slice_in_dim(g, 0, size, axis=axis)
    if not exchange.rounds:
        return [own.astype(out_dtype)]
    halo = lax.slice_in_dim(g, size, g.shape[axis], axis=axis).astype(jnp.float32)
    back = jnp.concatenate(
        [
            lax.ppermute(rows, axis_name, [(receiver, sender) for sender, receiver in round_.pairs])
            for rows, round_ in zip(_slices(halo, exchange), exchange.rounds, strict=True)
        ],
        axis=-2,
    )
    total = None
    start = 0
    for length in exchange.return_layers:
        copy = _take(back, return_places[start : start + length], mode="fill", fill_value=0)
        start += length
        total = copy if total is None else total.at[..., :length, :].add(copy, unique_indices=True)
    # Only the rows that were sent are added to in float32: no float32 copy of all.
    total += _take(own, return_rows, mode="fill", fill_value=0).astype(jnp.float32)
    rounded = own.astype(out_dtype)
    return [rounded.at[..., return_rows, :].set(total.astype(out_dtype), mode="drop", unique_indices=True)]


def _extend_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    x, *lists = primals
    params = _primitive.without_call(params)
    out = extend(x, lists, **params)
    dx = tangents[0]
    return [out], [_primitive.zero_tangent(out) if type(dx) is ad.Zero else extend(dx, lists, **params)]


def _extend_transpose(cts: Any, x: Any, *lists: Any, call: Any, **params: Any) -> Any:
    del call
    (ct,) = cts
    dx = None if type(ct) is ad.Zero else fold(ct, lists, out_dtype=x.aval.dtype, **params)
    return [dx, None, None, None]


def _fold_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    g, *lists = primals
    params = _primitive.without_call(params)
    out = fold(g, lists, **params)
    dg = tangents[0]
    return [out], [_primitive.zero_tangent(out) if type(dg) is ad.Zero else fold(dg, lists, **params)]


def _fold_transpose(cts: Any, g: Any, *lists: Any, call: Any, out_dtype: Any, **params: Any) -> Any:
    del call, out_dtype
    (ct,) = cts
    dg = None if type(ct) is ad.Zero else extend(ct.astype(g.aval.dtype), lists, **params)
    return [dg, None, None, None]


def _batch(bind: Any, args: Any, dims: Any, params: Any) -> Any:
    value, *lists = args
    if any(dim is not None for dim in dims[1:]):
        raise NotImplementedError("a ShardedTable cannot be vmapped: its devices exchange rows under shard_map")
    return [bind(jnp.moveaxis(value, dims[0], 0), lists, **_primitive.without_call(params))], [0]


for primitive, bind, jvp, transpose in (
    (_extend, extend, _extend_jvp, _extend_transpose),
    (_fold, fold, _fold_jvp, _fold_transpose),
):
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = lambda args, dims, bind=bind, **params: _batch(bind, args, dims, params)
