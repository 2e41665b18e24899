"""The neighbour table: which taps, pairs of a source row and a weight slot, add to which output row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from jax_knnconv import _flax_state
from jax_knnconv._reading import INT32_MAX, INT32_MIN, as_integers, check_size
from jax_knnconv._table_orders import HOLE, derive_concrete, derive_traced

# The arrays of a table, in the order in which primitives take them.
LEAVES = (
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

    __slots__ = ("__weakref__", "num_inputs", "num_slots", *LEAVES)

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
            arrays = derive_concrete(indices, slots, num_inputs, num_slots)
            # A table built from constants inside jit is a constant too, and may be kept after the trace has ended.
            with jax.ensure_compile_time_eval():
                leaves = tuple(None if array is None else jnp.asarray(array) for array in arrays)
        else:
            if num_rows * num_taps > INT32_MAX:
                raise ValueError(
                    f"indices: got {num_rows} x {num_taps} traced taps, expected fewer than 2**31: build a larger "
                    "table outside jit, from concrete indices"
                )
            indices = jnp.asarray(indices)
            slots = slots if slots is None else jnp.asarray(slots)

            def derive(indices: jax.Array, slots: jax.Array | None) -> tuple[jax.Array | None, ...]:
                return derive_traced(indices, slots, num_inputs, num_slots)

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

    def split_rows(self, parts: int) -> NeighborTable:
        """The same rows in `parts` equal blocks, one table a block: [M, K] -> [parts, M / parts, K].

            y = jax.vmap(knn_conv, (None, None, 0), -3)(x, weight, table.split_rows(parts))   # [..., parts, M/parts, C]

        For output rows that are sharded over devices: where the blocks are (`table_shardings(..., samples=axis)`), each
        device has its own rows' derived orders, and nothing of the other rows is looked at in the backward pass.

        Args:
          parts: how many; it must divide M.

        Raises:
          TypeError: parts is no integer.
          ValueError: parts does not divide M; the table has groups already.
        """
        parts = check_size("parts", parts, minimum=1)
        if self.group_shape:
            raise ValueError(f"split_rows: got {self}, expected a table without groups")
        if self.num_outputs % parts:
            raise ValueError(
                f"parts: got {parts} for {self.num_outputs} output rows, expected a number that divides them"
            )
        # A slot out of range, which only a table built under jit can have, belongs to a hole.
        slots = None if self.slots is None else self.slots.clip(0, max(self.num_slots - 1, 0))
        indices, slots = (
            None if array is None else array.reshape(parts, self.num_outputs // parts, self.num_taps)
            for array in (self.indices, slots)
        )
        return NeighborTable(indices, slots, num_inputs=self.num_inputs, num_slots=self.num_slots)

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
        return _unflatten, (_sizes(self), tuple(getattr(self, name) for name in LEAVES))


def check_arrays(table: NeighborTable) -> None:
    """Raise unless a table's arrays belong together.

    A tree map may cut or cast them, and a `shard_map` shard some of them only. Kernels trust the derived orders, which
    would then lead them past the end of their operands.
    """
    shape: tuple[int, ...] = getattr(table.indices, "shape", ())
    *groups, rows, taps = shape if len(shape) >= 2 else (0, 0)
    order = (*groups, rows * taps)
    expected: dict[str, Any] = {
        "indices": shape if len(shape) >= 2 else "[..., M, K]",
        "source_offsets": (*groups, table.num_inputs + 1, 2),
        "source_rows": order,
        "source_slots": order,
    }
    if table.slots is not None or table.num_slots != taps:
        expected["slots"] = expected["indices"]
        expected["slot_offsets"] = (*groups, table.num_slots + 1, 2)
        expected["slot_rows"] = expected["slot_sources"] = order
    for name in LEAVES:
        array, wanted = getattr(table, name), expected.get(name)
        got = getattr(array, "shape", None), getattr(array, "dtype", None)
        if (array is not None) if wanted is None else got != (wanted, np.int32):
            what = "None" if array is None else type(array).__name__ if got[0] is None else f"{got[1]} {got[0]}"
            raise ValueError(
                f"table: got {what} as its {name}, expected {wanted and f'int32 {wanted}'}: the arrays of a "
                "NeighborTable cannot be cut, cast or sharded one by one; make a new table of the indices"
            )


def _sizes(table: NeighborTable) -> tuple[int, int]:
    return table.num_inputs, table.num_slots


def _fill(table: NeighborTable, leaves: Iterable[Any], sizes: tuple[int, int]) -> NeighborTable:
    for name, value in zip(("num_inputs", "num_slots", *LEAVES), (*sizes, *leaves), strict=True):
        object.__setattr__(table, name, value)
    _flax_state.tell()
    return table


def _unflatten(sizes: tuple[int, int], leaves: Iterable[Any]) -> NeighborTable:
    # No checks: under vmap and in_axes the leaves may be any object.
    return _fill(object.__new__(NeighborTable), leaves, sizes)


jax.tree_util.register_pytree_with_keys(
    NeighborTable,
    lambda table: (tuple((GetAttrKey(name), getattr(table, name)) for name in LEAVES), _sizes(table)),
    _unflatten,
    lambda table: (tuple(getattr(table, name) for name in LEAVES), _sizes(table)),
)
# Exported programs may take and return tables.
jax.export.register_pytree_node_serialization(
    NeighborTable,
    serialized_name="jax_knnconv.NeighborTable",
    serialize_auxdata=lambda sizes: json.dumps(sizes).encode(),
    deserialize_auxdata=lambda data: tuple(json.loads(data)),
)


def _arrays(table: NeighborTable) -> dict[str, Any]:
    """Those that there are, by name."""
    return {name: value for name in LEAVES if (value := getattr(table, name)) is not None}


def _restore(target: NeighborTable, state: Any) -> NeighborTable:
    arrays = _flax_state.read_parts(repr(target), _arrays(target), state)
    table = _unflatten(_sizes(target), [arrays.get(name) for name in LEAVES])
    for offsets, size in (("source_offsets", "num_inputs"), ("slot_offsets", "num_slots")):
        shape: tuple[int, ...] = getattr(arrays.get(offsets), "shape", ())
        if len(shape) >= 2 and shape[-2] != getattr(target, size) + 1:
            raise ValueError(f"state of {target!r}: got {size} {shape[-2] - 1}, expected {getattr(target, size)}")
    return table


_flax_state.offer(NeighborTable, lambda table: _flax_state.write_parts(_arrays(table)), _restore)


def _narrow(array: Any) -> Any:
    """Cast to int32; values that do not fit become holes instead of wrapping around."""
    limits = jnp.iinfo(array.dtype)
    if limits.min >= INT32_MIN and limits.max <= INT32_MAX:
        return array.astype(np.int32)
    fits = array <= array.dtype.type(INT32_MAX)
    if limits.min < INT32_MIN:
        fits &= array >= array.dtype.type(INT32_MIN)
    where = np.where if isinstance(array, np.ndarray) else jnp.where
    return where(fits, array.astype(np.int32), np.int32(HOLE))


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
