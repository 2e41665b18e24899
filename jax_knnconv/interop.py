"""Tables, weights and activations of existing KNN-convolution code, read into this package's layout and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_knnconv._reading import as_array, as_integers, check_size
from jax_knnconv.table import NeighborTable

# Linear tables are padded to a multiple of this many entries a row.
_LINEAR_BLOCK = 64
_HOLE = -1


def from_linear(
    input_linear: Any, weight_linear: Any, *, num_inputs: int, in_channels: int, num_slots: int
) -> NeighborTable:
    """Read the linear tables of a KNN convolution whose channels and taps are flattened into one sum.

        y[b, n, o] = sum over p of x[b].ravel()[input_linear[n, p]] * weight[o].ravel()[weight_linear[n, p]]

    with x [B, C_in, N_in] and weight [C_out, C_in, V] (`channels_last`, `weight_from_linear` convert them). Entry
    p = c * K + k holds c * N_in + index and c * V + slot. An entry of C_in * N_in, one past the end of x, is padding: a
    tap that is padding in every channel is a hole, and all entries from C_in * K on are padding.

    Args:
      input_linear, weight_linear: [N_out, P], any integer dtype, concrete, P = C_in * K rounded up to a multiple of 64.
      num_inputs: N_in.
      in_channels: C_in.
      num_slots: V.

    Returns:
      A NeighborTable [N_out, K] with slots; K is the least number of columns that explains the entries.

    Raises:
      TypeError: an array that is traced or not of an integer dtype; a size that is no integer.
      ValueError: shapes that do not match; a P that no K gives; entries that are not one (index, slot) pair a tap, the
        same in every channel: the error names the first such row and entry.
    """
    inputs = as_integers("input_linear", as_array("input_linear", input_linear))
    weights = as_integers("weight_linear", as_array("weight_linear", weight_linear))
    num_inputs = check_size("num_inputs", num_inputs)
    in_channels = check_size("in_channels", in_channels, minimum=1)
    num_slots = check_size("num_slots", num_slots, minimum=1)
    if inputs.ndim != 2:
        raise ValueError(f"input_linear: got shape {inputs.shape}, expected [N_out, P]")
    if weights.shape != inputs.shape:
        raise ValueError(f"weight_linear: got shape {weights.shape}, expected input_linear's {inputs.shape}")
    width = inputs.shape[1]
    fewest = -(-max(width - _LINEAR_BLOCK + 1, 0) // in_channels)
    candidates = range(fewest, width // in_channels + 1)
    if width % _LINEAR_BLOCK or not candidates:
        raise ValueError(
            f"input_linear: got {width} entries a row, expected in_channels * K = {in_channels} * K rounded up to a "
            f"multiple of {_LINEAR_BLOCK}"
        )

    num_taps = _columns_of_linear(inputs, weights, candidates, num_inputs, in_channels, num_slots)
    indices, slots = _first_channel(inputs, weights, num_taps)
    holes = indices == in_channels * num_inputs
    slots = np.where(holes & ((slots < 0) | (slots >= num_slots)), 0, slots)
    return NeighborTable(np.where(holes, _HOLE, indices), slots, num_inputs=num_inputs, num_slots=num_slots)


def from_fovi(knn_indices: Any, local_rf: Any, *, num_inputs: int) -> NeighborTable:
    """Read the neighbour lists and one-hot receptive fields of a foveated KNN convolution.

        y[b, n, :] = sum over k, v of local_rf[n, k, v] * x[b, knn_indices[k, n], :] @ weight[v]

    Args:
      knn_indices: [K, N_out], any integer dtype, concrete; num_inputs (or anything else outside [0, num_inputs)) marks
        a padded tap, which becomes a hole.
      local_rf: [N_out, K, V], bool, integer or float, concrete: 1 at each tap's slot, 0 elsewhere. A padded tap's row
        may be all zero.
      num_inputs: N_in.

    Returns:
      A NeighborTable [N_out, K] with slots; V is local_rf's last dimension.

    Raises:
      TypeError: a traced array; knn_indices of no integer dtype; num_inputs is no integer.
      ValueError: shapes that do not match; a row of local_rf that is not one-hot.
    """
    indices = as_integers("knn_indices", as_array("knn_indices", knn_indices))
    fields = as_array("local_rf", local_rf)
    num_inputs = check_size("num_inputs", num_inputs)
    if indices.ndim != 2:
        raise ValueError(f"knn_indices: got shape {indices.shape}, expected [K, N_out]")
    indices = indices.T
    if fields.ndim != 3 or fields.shape[:2] != indices.shape or not fields.shape[2]:
        raise ValueError(f"local_rf: got shape {fields.shape}, expected {indices.shape} + (V,) with V >= 1")
    set_entries = np.count_nonzero(fields, axis=2)
    slots = (fields != 0).argmax(axis=2)
    holes = (indices < 0) | (indices >= num_inputs)
    one_hot = (set_entries == 1) & (np.take_along_axis(fields, slots[..., None], axis=2)[..., 0] == 1)
    wrong = ~(one_hot | (holes & (set_entries == 0)))
    if wrong.any():
        row, tap = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"local_rf: got {fields[row, tap].tolist()} at row {row}, tap {tap}, expected a one-hot row")
    return NeighborTable(indices, slots, num_inputs=num_inputs, num_slots=fields.shape[2])


def weight_from_linear(weight: Any, *, num_slots: int) -> jax.Array:
    """[C_out, C_in * V], channel-major columns c * V + v, to [V, C_in, C_out].

        result[v, c, o] = weight[o, c * V + v]

    Any dtype, kept; may be traced. Raises ValueError for another rank or columns that V does not divide.
    """
    weight = jnp.asarray(weight)
    num_slots = check_size("num_slots", num_slots, minimum=1)
    if weight.ndim != 2 or weight.shape[1] % num_slots:
        raise ValueError(
            f"weight: got shape {weight.shape}, expected [C_out, C_in * V] with V = num_slots = {num_slots}"
        )
    return weight.reshape(weight.shape[0], weight.shape[1] // num_slots, num_slots).transpose(2, 1, 0)


def weight_to_linear(weight: Any) -> jax.Array:
    """[V, C_in, C_out] to [C_out, C_in * V], channel-major columns c * V + v: the inverse of `weight_from_linear`.

        result[o, c * V + v] = weight[v, c, o]

    Any dtype, kept; may be traced. Raises ValueError for another rank.
    """
    weight = jnp.asarray(weight)
    if weight.ndim != 3:
        raise ValueError(f"weight: got shape {weight.shape}, expected [V, C_in, C_out]")
    num_slots, in_channels, out_channels = weight.shape
    return weight.transpose(2, 1, 0).reshape(out_channels, in_channels * num_slots)


def channels_last(x: Any) -> jax.Array:
    """[..., C, N], channel-major activations, to [..., N, C].

        result[..., n, c] = x[..., c, n]

    Any dtype, kept; may be traced. Raises ValueError for fewer than two dimensions.
    """
    return _swap_channels(x, "[..., C, N]")


def channels_first(x: Any) -> jax.Array:
    """[..., N, C] to [..., C, N], channel-major activations: the inverse of `channels_last`.

        result[..., c, n] = x[..., n, c]

    Any dtype, kept; may be traced. Raises ValueError for fewer than two dimensions.
    """
    return _swap_channels(x, "[..., N, C]")


def _swap_channels(x: Any, layout: str) -> jax.Array:
    x = jnp.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x: got shape {x.shape}, expected {layout}")
    return jnp.swapaxes(x, -1, -2)


def _first_channel(inputs: np.ndarray, weights: np.ndarray, num_taps: int) -> tuple[np.ndarray, np.ndarray]:
    return inputs[:, :num_taps].astype(np.int64), weights[:, :num_taps].astype(np.int64)


def _columns_of_linear(
    inputs: np.ndarray, weights: np.ndarray, candidates: range, num_inputs: int, in_channels: int, num_slots: int
) -> int:
    """The least K among the candidates that explains every entry, or the error that the most fitting K gives.

    The width alone leaves up to 64 / C_in candidates.
    """
    best, best_wrong = candidates[0], np.ones(inputs.shape, bool)
    for num_taps in candidates:
        wrong = _wrong_entries(inputs, weights, num_taps, num_inputs, in_channels, num_slots)
        if not wrong.any():
            return num_taps
        if wrong.sum() < best_wrong.sum():
            best, best_wrong = num_taps, wrong
    row, entry = (int(i) for i in np.argwhere(best_wrong)[0])
    channel, tap = divmod(entry, best) if best else (in_channels, 0)
    padding = in_channels * num_inputs
    if channel >= in_channels:
        expected = f"padding, input_linear = {padding}"
    elif channel == 0:
        expected = f"an index in [0, {num_inputs}) and a slot in [0, {num_slots}), or padding, input_linear = {padding}"
    elif inputs[row, tap] == padding:
        expected = f"padding, input_linear = {padding}, as in channel 0"
    else:
        pair = int(inputs[row, tap]) + channel * num_inputs, int(weights[row, tap]) + channel * num_slots
        expected = f"{pair}, the index and slot of channel 0"
    raise ValueError(
        f"input_linear, weight_linear: got {(int(inputs[row, entry]), int(weights[row, entry]))} at row {row}, entry "
        f"{entry} (with K = {best}, channel {channel}, tap {tap}), expected {expected}"
    )


def _wrong_entries(
    inputs: np.ndarray, weights: np.ndarray, num_taps: int, num_inputs: int, in_channels: int, num_slots: int
) -> np.ndarray:
    """[N_out, P] bool: the entries that do not follow from channel 0's taps."""
    padding = in_channels * num_inputs
    indices, slots = _first_channel(inputs, weights, num_taps)
    holes = indices == padding
    wrong = inputs != padding
    for channel in range(in_channels):
        block = slice(channel * num_taps, (channel + 1) * num_taps)
        as_first = inputs[:, block] == np.where(holes, padding, indices + channel * num_inputs)
        wrong[:, block] = ~(as_first & (holes | (weights[:, block] == slots + channel * num_slots)))
    in_range = (indices >= 0) & (indices < num_inputs) & (slots >= 0) & (slots < num_slots)
    wrong[:, :num_taps] = ~(holes | in_range)
    return wrong
