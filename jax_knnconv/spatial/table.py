"""A neighbour table cut into one table a device, with the lists of rows that devices exchange."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jax_knnconv import _flax_state
from jax_knnconv.spatial.exchange import Exchange, Round, schedule
from jax_knnconv.table import NeighborTable

if TYPE_CHECKING:
    from jax_knnconv.spatial.partition import NodePartition


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedTable:
    """The tables of P devices, each over [own rows | received rows]; made by `NodePartition.shard_table`.

    A pytree whose every array has P as its first dimension: one sharding or `in_specs` entry, `PartitionSpec(axis)`,
    serves it all. What is static is in `exchange`. Two are equal only if they are the same object.

    Attributes:
      table: a NeighborTable with group_shape (P,) and num_inputs = source_size + halo_size.
      send_rows: [P, halo_size] own rows to send, round after round; 0 in the padding.
      return_rows: [P, L] own rows that were sent at all, those sent to most devices first; in the padding, numbers from
        source_size on.
      return_places: [P, ...] for each of them, where among the sent rows its first copy was, then for those with a
        second copy where that was, and so on; halo_size in the padding.
      row_counts: [P] rows of y that are no padding.
      exchange: sizes, rounds and row counts.
    """

    table: NeighborTable
    send_rows: jax.Array
    return_rows: jax.Array
    return_places: jax.Array
    row_counts: jax.Array
    exchange: Exchange = dataclasses.field(metadata={"static": True})


def _write_exchange(static: tuple[Exchange]) -> bytes:
    return json.dumps(dataclasses.asdict(static[0])).encode()


def _read_exchange(data: bytes | bytearray) -> tuple[Exchange]:
    fields: dict[str, Any] = json.loads(data)
    rounds = tuple(Round(width, tuple(map(tuple, pairs))) for width, pairs in fields.pop("rounds"))
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return (Exchange(**{**fields, **lists, "rounds": rounds}),)


# Exported programs may take and return sharded tables.
jax.export.register_pytree_node_serialization(
    ShardedTable,
    serialized_name="jax_knnconv.spatial.ShardedTable",
    serialize_auxdata=_write_exchange,
    deserialize_auxdata=_read_exchange,
)


_PARTS = ("table", "send_rows", "return_rows", "return_places", "row_counts")


def _parts(sharded: ShardedTable) -> dict[str, Any]:
    return {name: getattr(sharded, name) for name in _PARTS}


def _write_state(sharded: ShardedTable) -> dict[str, Any]:
    return {**_flax_state.write_parts(_parts(sharded)), "exchange": _write_exchange((sharded.exchange,)).decode()}


def _restore(target: ShardedTable, state: Any) -> ShardedTable:
    parts = {**_parts(target), "exchange": None}
    found = _flax_state.read_parts(repr(target.table), parts, state)
    exchange = found.pop("exchange")
    if exchange != _write_exchange((target.exchange,)).decode():
        raise ValueError(
            "state of a ShardedTable: got another exchange than the target's, expected the same partition and table: "
            "devices would send other rows than the table reads"
        )
    return ShardedTable(**found, exchange=target.exchange)


_flax_state.offer(ShardedTable, _write_state, _restore)


def shard_table(
    table: NeighborTable, indices: np.ndarray, sources: NodePartition, outputs: NodePartition
) -> ShardedTable:
    """Cut a concrete table; indices [M, K] are its own, holes as -1."""
    num_shards, size = sources.num_shards, sources.shard_size
    # Where a tap's source stands in the sharded x, by device: [P, S, K].
    rows = _by_shard(np.append(sources.rows, -1).astype(np.int32)[indices], outputs, hole=-1)
    owners = rows // size
    needed = [np.unique(rows[p][(rows[p] >= 0) & (owners[p] != p)]) for p in range(num_shards)]
    rounds = schedule(np.stack([np.bincount(of // size, minlength=num_shards) for of in needed], axis=1))
    width = sum(round_.width for round_ in rounds)

    send_rows = np.zeros((num_shards, width), np.int32)
    is_sent = np.zeros((num_shards, width), bool)
    places = [np.empty(len(of), np.int32) for of in needed]  # of needed rows among [own rows | received rows]
    received, sent = np.zeros((2, num_shards), np.int64)
    start = 0
    for round_ in rounds:
        for sender, receiver in round_.pairs:
            first, last = np.searchsorted(needed[receiver], (sender * size, (sender + 1) * size))
            end = start + last - first
            send_rows[sender, start:end] = needed[receiver][first:last] % size
            is_sent[sender, start:end] = True
            places[receiver][first:last] = size + np.arange(start, end)
            received[receiver] += round_.width
            sent[sender] += round_.width
        start += round_.width

    local = np.where(rows >= 0, rows % size, -1).astype(np.int32)
    for p in range(num_shards):
        off = (rows[p] >= 0) & (owners[p] != p)
        local[p][off] = places[p][np.searchsorted(needed[p], rows[p][off])]
    # A slot out of range, which only a table built under jit can have, belongs to a hole.
    slots = None if table.slots is None else np.clip(np.asarray(table.slots), 0, max(table.num_slots - 1, 0))
    returns = _return_lists(send_rows, is_sent, size)
    return ShardedTable(
        table=NeighborTable(
            local,
            None if slots is None else _by_shard(slots, outputs, hole=0),
            num_inputs=size + width,
            num_slots=table.num_slots,
        ),
        send_rows=jnp.asarray(send_rows),
        return_rows=jnp.asarray(returns.rows),
        return_places=jnp.asarray(returns.places),
        row_counts=jnp.asarray(outputs.counts, jnp.int32),
        exchange=Exchange(
            num_shards=num_shards,
            source_size=size,
            output_size=outputs.shard_size,
            rounds=rounds,
            needed=tuple(map(len, needed)),
            received=tuple(received.tolist()),
            sent=tuple(sent.tolist()),
            padded_rows=outputs.shard_size - int(outputs.counts.min()),
            return_layers=returns.layers,
        ),
    )


def _by_shard(values: np.ndarray, outputs: NodePartition, hole: int) -> np.ndarray:
    """[P, S, K] from values [M, K] of output rows; what stands in the padding is `hole`."""
    padding = np.full((1, values.shape[1]), hole, values.dtype)
    return np.concatenate([values, padding])[outputs.nodes]


class _Returns(NamedTuple):
    rows: np.ndarray
    places: np.ndarray
    layers: tuple[int, ...]


def _return_lists(send_rows: np.ndarray, is_sent: np.ndarray, size: int) -> _Returns:
    """By which the sender adds returning cotangents to its own: every row once, its copies in the order of rounds."""
    num_shards, width = send_rows.shape
    per_shard = []
    for shard in range(num_shards):
        places = np.flatnonzero(is_sent[shard])
        rows, inverse, copies = np.unique(send_rows[shard, places], return_inverse=True, return_counts=True)
        most_first = np.argsort(-copies, kind="stable")
        by_row = places[np.argsort(inverse, kind="stable")]
        starts = (np.cumsum(copies) - copies)[most_first]
        per_shard.append((rows[most_first], copies[most_first], starts, by_row))
    depth = max((int(copies.max(initial=0)) for _, copies, _, _ in per_shard), default=0)
    layers = tuple(max(int((copies > i).sum()) for _, copies, _, _ in per_shard) for i in range(depth))
    # Numbers past the last row are dropped by a scatter; they differ, so that all are unique.
    rows_of = np.tile(size + np.arange(layers[0] if layers else 0, dtype=np.int32), (num_shards, 1))
    places_of = np.full((num_shards, sum(layers)), width, np.int32)
    for shard, (rows, copies, starts, by_row) in enumerate(per_shard):
        rows_of[shard, : len(rows)] = rows
        begin = 0
        for i, length in enumerate(layers):
            having = int((copies > i).sum())
            places_of[shard, begin : begin + having] = by_row[starts[:having] + i]
            begin += length
    return _Returns(rows_of, places_of, layers)
