"""Direct calls of the GPU targets, and random operands for them."""

import jax
import ml_dtypes
import numpy as np
import oracle

from jax_knnconv import _calls, _ffi

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
# Tensor cores truncate each partial sum of 16 products to fp32 where an adder would round it, so that long sums of few
# digits drift: by up to 8 eps32 of the sum of absolute products where these tests look, 1000 and more partial sums.
SUM_SLACK = 16
CELL_SLACK = 2**6  # 2^-17: what two bf16 parts of a sum leave out, in units of eps32
NONE = np.zeros((0,), np.float32)
NO_SLOTS = np.zeros((0,), np.int32)


def struct(shape, dtype=F32):
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def call(operation, operands, results, **attributes):
    """The results of one call, as NumPy arrays. Buffers are not cleared: what is not written may hold anything."""
    with jax.default_device(jax.devices("cuda")[0]):
        found = jax.jit(lambda *args: _ffi.call(operation, results, *args, **attributes))(*operands)
    return [np.asarray(value) for value in found]


def compiled_text(function, *operands):
    return jax.jit(function).lower(*operands).compile().as_text()


def choice(tile, kernel=None):
    """The attributes that force a tile or a family of kernels, where given."""
    tiles = {} if tile is None else {"tile": np.array(tile, np.int64)}
    return tiles if kernel is None else tiles | {"kernel": kernel}


def window_attributes(stride, padding, dilation):
    return {
        name: np.array(value, np.int64)
        for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation))
    }


def dense_forward(x, weight, bias, *, output_size, out_dtype, tile=None, kernel=None, lead=(), **window):
    shape = (*lead, *x.shape[len(lead) : -3], *output_size, weight.shape[-1])
    results = [struct(shape, out_dtype), struct((0,))]
    attributes = window_attributes(**window) | choice(tile, kernel)
    return call("dense_forward", [x, weight, NONE if bias is None else bias], results, **attributes)[0]


def dense_dinput(g, weight, *, input_size, out_dtype, tile=None, kernel=None, lead=(), **window):
    shape = (*lead, *g.shape[len(lead) : -3], *input_size, weight.shape[-2])
    results = [struct(shape, out_dtype), struct((0,))]
    return call("dense_dinput", [g, weight], results, **window_attributes(**window), **choice(tile, kernel))[0]


def knn_forward(
    x, weight, indices, slots=None, bias=None, *, out_dtype, zero_empty_rows=False, tile=None, kernel=None, lead=()
):
    shape = (*lead, *x.shape[len(lead) : -2], indices.shape[-2], weight.shape[-1])
    operands = [x, weight, NONE if bias is None else bias, indices, NO_SLOTS if slots is None else slots]
    attributes = {"zero_empty_rows": np.int64(zero_empty_rows)} | choice(tile, kernel)
    return call("knn_forward", operands, [struct(shape, out_dtype), struct((0,))], **attributes)[0]


def knn_dinput(g, weight, orders, *, num_inputs, out_dtype, tile=None, kernel=None, lead=()):
    """`orders` are (source_offsets, source_rows, source_slots)."""
    rank = len(lead)
    workspace = _calls.dinput_workspace(g, weight, *orders, rank=rank, platform="cuda", fixed=2)
    shape = (*lead, *g.shape[rank:-2], num_inputs, weight.shape[-2])
    results = [struct(shape, out_dtype), workspace]
    return call("knn_dinput", [g, weight, *orders], results, **choice(tile, kernel))[0]


def normal(rng, shape, dtype, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def random_table(rng, rows, taps, num_inputs, num_slots=None):
    """Indices [rows, taps] with holes and junk; with num_slots, slots too, ascending in a row and repeating."""
    indices = rng.integers(0, max(num_inputs, 1), (rows, taps))
    junk = rng.choice([-(2**31), -50_000_000, -1, num_inputs, num_inputs + 1, 2**31 - 1], indices.shape)
    indices = np.where(rng.random(indices.shape) < 0.15, junk, indices).astype(np.int32)
    if rows > 2:
        indices[1] = -1
    if num_slots is None:
        return indices, None
    return indices, np.sort(rng.integers(0, num_slots, (rows, taps)), -1).astype(np.int32)


def source_order(indices, slots, num_inputs, num_slots):
    orders = oracle.table_orders(indices, slots, num_inputs, num_slots)
    return orders.source_offsets, orders.source_rows, orders.source_slots
