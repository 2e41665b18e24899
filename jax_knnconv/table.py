"""The neighbour table: which taps, pairs of a source row and a weight slot, add to which output row."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import GetAttrKey
from scipy import sparse

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
# What stands for a tap that no int32 describes, and in the derived orders for entries past the last tap.
_HOLE = -1

_LEAVES = (
    "indices",
    "slots",
    "source_offsets",
    "source_rows",
    "source_slots",
    "slot_offsets",
    "slot_rows",
    "slot_sources",
)


class NeighborTable:
    """The taps of every output row of a KNN convolution.

        y[n, :] = sum over k of x[indices[n, k], :] @ weight[slots[n, k]]

    Args:
      indices: [M, K] or, one table a sample, [G..., M, K]; any integer dtype, concrete or traced. The source row of
        each tap. A tap whose index lies outside [0, num_inputs), whatever its value, is a hole: it reads nothing.
      slots: the weight slot of each tap, any integer dtype, of indices' shape or broadcastable to it ([K], [M, K]).
        None: the slot is the column k.
      num_inputs: N, the number of source rows.
      num_slots: V, the number of weight slots. Without slots it defaults to K; with slots it must be given.

    Attributes:
      indices: [G..., M, K] int32. Where slots are given, the taps of a row stand in ascending slot order (equal slots
        and holes, which keep their slot, as given). Values that int32 cannot hold are stored as -1, a hole.
      slots: [G..., M, K] int32, or None where the slot is the column and V = K.
      source_offsets: [G..., N+1, 2] int32, where the taps of each source row begin below; a 64-bit number as two words,
        low word first.
      source_rows, source_slots: [G..., M*K] int32, output row and slot of each tap that is no hole, sorted by source,
        then slot, then row; -1 from source_offsets[N] on.
      slot_offsets, slot_rows, slot_sources: the same taps sorted by slot, then row; None where slots is None.

    Concrete indices are sorted here in NumPy, in linear time; traced ones (inside jit, vmap, shard_map) by XLA. Both
    give the same arrays. Traced indices that are sharded over an Explicit mesh must be given inside shard_map.

    A table is an immutable pytree of those arrays; num_inputs and num_slots are static. Two tables are equal only if
    they are the same object.

    Raises:
      TypeError: indices or slots are not of an integer dtype; a size is no integer; slots are given without num_slots.
      ValueError: indices have fewer than two dimensions; slots do not broadcast to them; a concrete slot lies outside
        [0, num_slots) (a traced one makes its tap a hole); num_slots < K without slots; a size is negative or too
        large for int32, or M*K is, for traced indices.
    """

    __slots__ = ("__weakref__", "num_inputs", "num_slots", *_LEAVES)

    num_inputs: int
    num_slots: int
    indices: jax.Array
    slots: jax.Array | None
    source_offsets: jax.Array
    source_rows: jax.Array
    source_slots: jax.Array
    slot_offsets: jax.Array | None
    slot_rows: jax.Array | None
    slot_sources: jax.Array | None

    def __init__(self, indices: Any, slots: Any = None, *, num_inputs: int, num_slots: int | None = None):
        indices = as_integers("indices", indices)
        if indices.ndim < 2:
            raise ValueError(f"indices: got shape {indices.shape}, expected [M, K] or [G..., M, K]")
        num_rows, num_taps = indices.shape[-2:]
        num_inputs = check_size("num_inputs", num_inputs)
        check_size("indices, number of rows M", num_rows)
        if slots is None:
            num_slots = num_taps if num_slots is None else check_size("num_slots", num_slots)
            if num_slots < num_taps:
                raise ValueError(
                    f"num_slots: got {num_slots}, expected at least {num_taps}: without slots, each of the "
                    f"{num_taps} columns of indices is a slot"
                )
            if num_slots > num_taps:
                slots = np.arange(num_taps, dtype=np.int32)
        elif num_slots is None:
            raise TypeError("num_slots: got None, expected an integer: it is required where slots are given")
        else:
            num_slots = check_size("num_slots", num_slots)
        if slots is not None:
            slots = _read_slots(slots, indices, num_slots)
        indices = _narrow(indices)

        if isinstance(indices, np.ndarray) and (slots is None or isinstance(slots, np.ndarray)):
            arrays = _derive_concrete(indices, slots, num_inputs, num_slots)
            # A table built from constants inside jit is a constant too, and may be kept after the trace has ended.
            with jax.ensure_compile_time_eval():
                leaves = tuple(None if array is None else jnp.asarray(array) for array in arrays)
        else:
            if num_rows * num_taps > _INT32_MAX:
                raise ValueError(
                    f"indices: got {num_rows} x {num_taps} traced taps, expected fewer than 2**31: build a larger "
                    "table outside jit, from concrete indices"
                )
            indices = jnp.asarray(indices)
            slots = slots if slots is None else jnp.asarray(slots)

            def derive(indices: jax.Array, slots: jax.Array | None) -> tuple[jax.Array | None, ...]:
                return _derive_traced(indices, slots, num_inputs, num_slots)

            for _ in indices.shape[:-2]:
                derive = jax.vmap(derive)
            leaves = derive(indices, slots)
        _fill(self, leaves, (num_inputs, num_slots))

    @property
    def num_outputs(self) -> int:
        """M, the number of output rows."""
        return self.indices.shape[-2]

    @property
    def num_taps(self) -> int:
        """K, the number of columns: taps of a row, holes included."""
        return self.indices.shape[-1]

    @property
    def group_shape(self) -> tuple[int, ...]:
        """G..., the leading dimensions: () for one table, (B,) for one a sample."""
        return self.indices.shape[:-2]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"NeighborTable is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"NeighborTable is immutable: cannot delete {name}")

    def __repr__(self) -> str:
        sizes = f"num_inputs={self.num_inputs}, num_slots={self.num_slots}"
        if getattr(self.indices, "ndim", 0) >= 2:
            sizes = f"num_outputs={self.num_outputs}, num_taps={self.num_taps}, {sizes}"
            if self.group_shape:
                sizes = f"group_shape={self.group_shape}, {sizes}"
        return f"NeighborTable({sizes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unflatten, (_sizes(self), tuple(getattr(self, name) for name in _LEAVES))


def _sizes(table: NeighborTable) -> tuple[int, int]:
    return table.num_inputs, table.num_slots


def _fill(table: NeighborTable, leaves: Iterable[Any], sizes: tuple[int, int]) -> NeighborTable:
    for name, value in zip(("num_inputs", "num_slots", *_LEAVES), (*sizes, *leaves), strict=True):
        object.__setattr__(table, name, value)
    return table


def _unflatten(sizes: tuple[int, int], leaves: Iterable[Any]) -> NeighborTable:
    # No checks: under vmap and in_axes the leaves may be any object.
    return _fill(object.__new__(NeighborTable), leaves, sizes)


jax.tree_util.register_pytree_with_keys(
    NeighborTable,
    lambda table: (tuple((GetAttrKey(name), getattr(table, name)) for name in _LEAVES), _sizes(table)),
    _unflatten,
    lambda table: (tuple(getattr(table, name) for name in _LEAVES), _sizes(table)),
)


def check_size(name: str, size: Any, minimum: int = 0) -> int:
    """Read a static size: an integer of at least `minimum` that int32 index arithmetic can hold."""
    try:
        value = operator.index(size)
    except TypeError:
        value = None
    if value is None or isinstance(size, (bool, np.bool_)):
        raise TypeError(f"{name}: got {size!r} of type {type(size).__name__}, expected an integer")
    if not minimum <= value <= _INT32_MAX:
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
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: got what makes no array, expected rows of equal length ({error})") from error


def as_integers(name: str, value: Any) -> Any:
    """Read an integer array: NumPy where its values are known, else the traced array; the dtype stays."""
    array = as_array(name, value) if is_concrete(value) else value
    if array.size == 0 and not hasattr(value, "dtype"):
        array = array.astype(np.int32)  # an empty list has no dtype of its own
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: got dtype {array.dtype}, expected an integer dtype")
    return array


def _narrow(array: Any) -> Any:
    """Cast to int32; values that do not fit become holes instead of wrapping around."""
    limits = jnp.iinfo(array.dtype)
    if limits.min >= _INT32_MIN and limits.max <= _INT32_MAX:
        return array.astype(np.int32)
    fits = array <= array.dtype.type(_INT32_MAX)
    if limits.min < _INT32_MIN:
        fits &= array >= array.dtype.type(_INT32_MIN)
    where = np.where if isinstance(array, np.ndarray) else jnp.where
    return where(fits, array.astype(np.int32), np.int32(_HOLE))


def _read_slots(slots: Any, indices: Any, num_slots: int) -> Any:
    """Slots as int32 of indices' shape; those whose values are known lie in range."""
    slots = as_integers("slots", slots)
    if isinstance(slots, np.ndarray):
        outside = (slots < 0) | (slots >= num_slots)
        if outside.any():
            where = tuple(int(i) for i in np.argwhere(outside)[0])
            places = [f"row {where[-2]}"] if len(where) > 1 else []
            places = [f"group {where[:-2]}", *places] if len(where) > 2 else places
            place = ", ".join([*places, f"column {where[-1]}"] if where else ["every tap"])
            raise ValueError(f"slots: got {slots[where]} at {place}, expected [0, num_slots) = [0, {num_slots})")
    concrete = isinstance(slots, np.ndarray) and isinstance(indices, np.ndarray)
    broadcast_to = np.broadcast_to if concrete else jnp.broadcast_to
    try:
        return broadcast_to(_narrow(slots), indices.shape)
    except ValueError:
        raise ValueError(
            f"slots: got shape {slots.shape}, expected indices' shape {indices.shape} or one that broadcasts to it"
        ) from None


def _counting_sort(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The stable order that sorts keys in [0, num_keys), and the offsets of each key's run, in linear time.

    A matrix with a one at (position, key) lists, in compressed column form, each key's positions in ascending order.
    """
    if not keys.size:
        return np.zeros(0, np.int64), np.zeros(num_keys + 1, np.int64)
    ones = np.ones(keys.size, np.int8)
    columns = sparse.csr_array((ones, keys, np.arange(keys.size + 1)), shape=(keys.size, num_keys)).tocsc()
    return columns.indices, columns.indptr


def _sort_rows_by_slot(indices: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not slots.size or (slots[..., 1:] >= slots[..., :-1]).all():
        return indices, slots
    by_slot, _ = _counting_sort(slots.ravel(), int(slots.max()) + 1)
    num_rows = slots.size // slots.shape[-1]
    by_row, _ = _counting_sort(by_slot // slots.shape[-1], num_rows)
    order = by_slot[by_row]
    return indices.ravel()[order].reshape(indices.shape), slots.ravel()[order].reshape(slots.shape)


def _to_words(offsets: np.ndarray) -> np.ndarray:
    """[...] int64 -> [..., 2] int32, low word first."""
    return np.ascontiguousarray(offsets, "<i8")[..., None].view("<i4")


def _derive_concrete(
    indices: np.ndarray, slots: np.ndarray | None, num_inputs: int, num_slots: int
) -> tuple[np.ndarray | None, ...]:
    """The leaves of a table in NumPy; a derived order is one stable counting sort of the one before."""
    if slots is not None:
        indices, slots = _sort_rows_by_slot(indices, slots)
    *groups, num_rows, num_taps = indices.shape
    source_offsets = np.zeros((*groups, num_inputs + 1), np.int64)
    slot_offsets = np.zeros((*groups, num_slots + 1), np.int64)
    source_rows, source_slots, slot_rows, slot_sources = np.full((4, *groups, num_rows * num_taps), _HOLE, np.int32)
    for group in np.ndindex(*groups):
        # Column after column is slot order where the slot is the column.
        flat = indices[group].ravel() if slots is not None else indices[group].T.ravel()
        taps = np.flatnonzero((flat >= 0) & (flat < num_inputs))
        if slots is None:
            tap_slots, tap_rows = np.divmod(taps, max(num_rows, 1))
        else:
            flat_slots = slots[group].ravel()
            order, slot_offsets[group] = _counting_sort(flat_slots[taps], num_slots)
            taps = taps[order]
            tap_slots, tap_rows = flat_slots[taps], taps // max(num_taps, 1)
        tap_sources = flat[taps]
        order, source_offsets[group] = _counting_sort(tap_sources, num_inputs)
        source_rows[group][: taps.size] = tap_rows[order]
        source_slots[group][: taps.size] = tap_slots[order]
        slot_rows[group][: taps.size] = tap_rows
        slot_sources[group][: taps.size] = tap_sources
    source_order = _to_words(source_offsets), source_rows, source_slots
    slot_order = (None, None, None) if slots is None else (_to_words(slot_offsets), slot_rows, slot_sources)
    return indices, slots, *source_order, *slot_order


def _derive_traced(
    indices: jax.Array, slots: jax.Array | None, num_inputs: int, num_slots: int
) -> tuple[jax.Array | None, ...]:
    """The leaves of one table [M, K] in XLA: comparison sorts, whose ties are equal or stand in column order."""
    tap_rows, tap_slots = (lax.broadcasted_iota(np.int32, indices.shape, axis) for axis in (0, 1))
    if slots is not None:
        indices = jnp.where((slots >= 0) & (slots < num_slots), indices, _HOLE)
        slots, indices = lax.sort((slots, indices), dimension=1, is_stable=True, num_keys=1)
        tap_slots = slots
    is_tap = ((indices >= 0) & (indices < num_inputs)).ravel()
    sources, tap_rows, tap_slots = indices.ravel(), tap_rows.ravel(), tap_slots.ravel()

    def order(keys: jax.Array, num_keys: int, *others: jax.Array, num_sorted: int) -> tuple[jax.Array, ...]:
        keys = jnp.where(is_tap, keys, num_keys)  # holes go behind the last tap
        keys, *payload = lax.sort((keys, *others), is_stable=True, num_keys=num_sorted)
        offsets = jnp.searchsorted(keys, jnp.arange(num_keys + 1, dtype=np.int32)).astype(np.int32)
        past = keys == num_keys
        words = jnp.stack([offsets, jnp.zeros_like(offsets)], axis=-1)
        return words, *(jnp.where(past, _HOLE, array) for array in payload)

    source_offsets, source_slots, source_rows = order(sources, num_inputs, tap_slots, tap_rows, num_sorted=3)
    source_order = source_offsets, source_rows, source_slots
    if slots is None:
        return indices, slots, *source_order, None, None, None
    slot_order = order(tap_slots, num_slots, tap_rows, sources, num_sorted=2)
    return indices, slots, *source_order, *slot_order
