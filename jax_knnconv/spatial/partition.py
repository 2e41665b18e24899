"""Which device owns which nodes, and where each node's row stands in a sharded array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_knnconv import _checks
from jax_knnconv._reading import as_array, as_integers, check_size, is_concrete
from jax_knnconv.spatial import _bisection
from jax_knnconv.spatial._following import follow_sources
from jax_knnconv.spatial.table import ShardedTable, shard_table
from jax_knnconv.table import NeighborTable


class NodePartition:
    """Nodes 0..N-1 distributed over P shards of S rows each.

        sharded[p * S + i] = values[nodes[p, i]],    0 where nodes[p, i] is -1

    An array of nodes in this order, sharded evenly over P devices, has on each device the nodes that it owns. Shards
    are padded to one size S; what stands in the padding is never read by a convolution.

    Args:
      shards: [N] integers in [0, num_shards): the shard of each node. `partition_nodes` finds good ones; labels of
        METIS and the like serve as well.
      num_shards: P.
      order: [N] sort keys: within a shard, nodes stand in ascending order of these, equal ones by their number. Nodes
        read together should stand together.

    Attributes:
      num_nodes, num_shards, shard_size: N, P, S.
      counts: [P], the nodes of each shard; S is the largest, and at least 1.
      nodes: [P, S] int64, the node of each row, -1 in the padding.
      rows: [N] int64, the row p * S + i of each node.

    A partition lives on the host: use it outside jit, or inside as a constant.

    Raises:
      TypeError: shards are no concrete integers.
      ValueError: shards outside [0, num_shards), shapes that do not fit.
    """

    def __init__(self, shards: Any, *, num_shards: int, order: Any = None):
        num_shards = check_size("num_shards", num_shards, minimum=1)
        if not is_concrete(shards):
            raise TypeError("shards: got a traced array, expected concrete values: call this outside jit, on the host")
        shards = as_integers("shards", shards)
        if shards.ndim != 1:
            raise ValueError(f"shards: got shape {shards.shape}, expected [N], one shard a node")
        outside = (shards < 0) | (shards >= num_shards)
        if outside.any():
            node = int(outside.argmax())
            raise ValueError(f"shards: got {shards[node]} at node {node}, expected [0, num_shards) = [0, {num_shards})")
        if order is None:
            by_shard = np.argsort(shards, kind="stable")
        else:
            order = as_array("order", order)
            if order.shape != shards.shape:
                raise ValueError(f"order: got shape {order.shape}, expected shards' shape {shards.shape}")
            by_shard = np.lexsort((order, shards))
        self._fill(by_shard, np.bincount(shards.astype(np.int64), minlength=num_shards))

    @classmethod
    def _from_order(cls, order: np.ndarray, counts: np.ndarray) -> NodePartition:
        """From the nodes, shard after shard, and the size of each shard."""
        partition = object.__new__(cls)
        partition._fill(order, counts)
        return partition

    def _fill(self, order: np.ndarray, counts: np.ndarray) -> None:
        self.num_nodes, self.num_shards, self.shard_size = len(order), len(counts), max(int(counts.max()), 1)
        check_size("num_shards * shard_size", self.num_shards * self.shard_size)
        shards = np.repeat(np.arange(self.num_shards), counts)
        places = np.arange(self.num_nodes) - np.repeat(np.cumsum(counts) - counts, counts)
        self.counts = counts.astype(np.int64)
        self.nodes = np.full((self.num_shards, self.shard_size), -1, np.int64)
        self.nodes[shards, places] = order
        self.rows = np.empty(self.num_nodes, np.int64)
        self.rows[order] = shards * self.shard_size + places
        for array in (self.counts, self.nodes, self.rows):
            array.setflags(write=False)

    @property
    def num_rows(self) -> int:
        """P * S, the rows of a sharded array, padding included."""
        return self.num_shards * self.shard_size

    @property
    def row_mask(self) -> np.ndarray:
        """[P * S] booleans: which rows are nodes, not padding."""
        return (self.nodes >= 0).ravel()

    def shard(self, values: Any, *, axis: int = -2) -> Any:
        """Values of nodes in the order of the shards: N becomes P * S along `axis`, with 0 in the padding.

        NumPy arrays stay on the host, so that `jax.device_put` can send every device its shard alone; others become jax
        arrays, whose nodes are replicated first if they are sharded. `axis` is -2 for features [..., N, C]; say -1 for
        one value a node.
        """
        values, axis = _read_nodes(values, axis, self.num_nodes, "num_nodes")
        module: Any = np if isinstance(values, np.ndarray) else jnp
        nodes = self.nodes.ravel()
        padding = nodes < 0
        if not self.num_nodes:
            return module.zeros((*values.shape[:axis], self.num_rows, *values.shape[axis + 1 :]), values.dtype)
        taken = module.take(values, np.where(padding, 0, nodes), axis=axis)
        if not padding.any():
            return taken
        mask = padding.reshape(-1, *(1,) * (values.ndim - axis - 1))
        return module.where(mask, module.zeros((), values.dtype), taken)

    def unshard(self, values: Any, *, axis: int = -2) -> Any:
        """The inverse of `shard`: P * S becomes N along `axis`, the padding is dropped."""
        values, axis = _read_nodes(values, axis, self.num_rows, "num_rows, padding included,")
        module: Any = np if isinstance(values, np.ndarray) else jnp
        return module.take(values, self.rows, axis=axis)

    def follow(self, table: NeighborTable) -> NodePartition:
        """A partition of the table's M output rows: each goes where most of its sources are, as far as there is room.

        For layers onto other nodes (coarser or finer ones) of which only the table is known. Shards differ by at most
        one row.

        Raises:
          TypeError, ValueError: as `shard_table`.
        """
        indices = self._read_table(table)
        return NodePartition._from_order(*follow_sources(indices, self.rows, self.num_shards, self.shard_size))

    def shard_table(self, table: NeighborTable, outputs: NodePartition | None = None) -> ShardedTable:
        """The table of every device, and the exchange that brings it the rows of x that it lacks.

        Args:
          table: a concrete table without group dimensions whose sources are this partition's nodes.
          outputs: the partition of the table's output rows; this one by default, where M = N.

        Returns:
          A ShardedTable for `knn_conv_sharded`, on the default device: `jax.device_put(sharded,
          NamedSharding(mesh, PartitionSpec(axis_name)))` sends each device its part.

        Raises:
          TypeError: no NeighborTable, a traced one, or outputs that are no NodePartition.
          ValueError: sizes that do not match; a table with group dimensions.
        """
        indices = self._read_table(table)
        outputs = self if outputs is None else outputs
        if not isinstance(outputs, NodePartition):
            raise TypeError(f"outputs: got {type(outputs).__name__}, expected a NodePartition or None")
        if outputs.num_nodes != table.num_outputs:
            raise ValueError(
                f"outputs: got a partition of {outputs.num_nodes} nodes, expected the table's num_outputs "
                f"{table.num_outputs}"
            )
        if outputs.num_shards != self.num_shards:
            raise ValueError(f"outputs: got {outputs.num_shards} shards, expected the sources' {self.num_shards}")
        return shard_table(table, indices, self, outputs)

    def _read_table(self, table: Any) -> np.ndarray:
        """The indices of a table that belongs to these nodes, holes as -1."""
        indices = read_indices(table)
        if table.num_inputs != self.num_nodes:
            raise ValueError(
                f"table: got num_inputs {table.num_inputs}, expected the partition's {self.num_nodes} nodes"
            )
        return indices

    def __repr__(self) -> str:
        return f"NodePartition(num_nodes={self.num_nodes}, num_shards={self.num_shards}, shard_size={self.shard_size})"


def partition_nodes(num_shards: int, *, points: Any = None, table: NeighborTable | None = None) -> NodePartition:
    """Compact shards of nodes: neighbours mostly share one, so that few rows need to be exchanged.

    With points, recursive coordinate bisection: the nodes are halved across their longest side until there are
    num_shards parts, whose sizes differ by at most one; seconds a million nodes. With a table alone, the same on
    coordinates that hop counts in the graph of its taps give; up to a minute a million nodes, and up to 40 % more rows
    exchanged (fewer on a mesh). The same input gives the same partition in every process of the same software.

    Args:
      num_shards: P, the number of devices.
      points: [N, D] coordinates of the nodes, concrete and finite.
      table: a concrete table without group dimensions; its sources are partitioned.

    Returns:
      The partition of the N nodes.

    Raises:
      TypeError: traced or non-numeric arrays, no NeighborTable.
      ValueError: not exactly one of points and table; shapes that do not fit; points that are not finite.
    """
    num_shards = check_size("num_shards", num_shards, minimum=1)
    if (points is None) == (table is None):
        given = "neither" if points is None else "both"
        raise ValueError(f"points, table: got {given}, expected exactly one of the two")
    if table is not None:
        coordinates = _bisection.hop_coordinates(read_indices(table), table.num_inputs)
    else:
        coordinates = as_array("points", points)
        if coordinates.dtype.kind not in "iuf" and not jnp.issubdtype(coordinates.dtype, jnp.floating):
            raise TypeError(f"points: got dtype {coordinates.dtype}, expected real numbers")
        if coordinates.ndim != 2 or coordinates.shape[1] < 1:
            raise ValueError(f"points: got shape {coordinates.shape}, expected [N, D] with D >= 1")
        coordinates = coordinates.astype(np.float64)
        if not np.isfinite(coordinates).all():
            raise ValueError("points: got values that are not finite, expected finite ones")
    return NodePartition._from_order(*_bisection.bisect(coordinates, num_shards))


def read_indices(table: Any) -> np.ndarray:
    """[M, K] int32 indices of a concrete table without groups; holes as -1."""
    _checks.table(table)
    if isinstance(table.indices, jax.core.Tracer):
        raise TypeError("table: got a traced table, expected a concrete one: call this outside jit, on the host")
    if table.group_shape:
        raise ValueError(f"table: got group dimensions {table.group_shape}, expected one table [M, K] for all samples")
    indices = np.asarray(table.indices)
    return np.where((indices >= 0) & (indices < table.num_inputs), indices, np.int32(-1))


def _read_nodes(values: Any, axis: int, size: int, name: str) -> tuple[Any, int]:
    if not hasattr(values, "ndim"):
        values = np.asarray(values)
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis: got {axis}, expected a dimension of values, whose shape is {tuple(values.shape)}")
    axis %= values.ndim
    if values.shape[axis] != size:
        raise ValueError(
            f"values: got {values.shape[axis]} rows along axis {axis} of shape {tuple(values.shape)}, expected the "
            f"partition's {name} {size}"
        )
    return _replicated(values, axis), axis


def _replicated(values: Any, axis: int) -> Any:
    """Values whose type shards a dimension over Explicit mesh axes cannot be taken from along it."""
    if not isinstance(values, jax.Array):
        return values
    sharding = jax.typeof(values).sharding
    spec = tuple(sharding.spec)
    if axis >= len(spec) or spec[axis] is None:
        return values
    replicated = PartitionSpec(*spec[:axis], None, *spec[axis + 1 :])
    return jax.sharding.reshard(values, NamedSharding(sharding.mesh, replicated))
