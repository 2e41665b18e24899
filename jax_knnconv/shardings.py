"""Where the arrays of a table live on a mesh."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_knnconv import _checks
from jax_knnconv.table import NeighborTable


def table_shardings(table: NeighborTable, mesh: Mesh, *, rows: Any = None, samples: Any = None) -> NeighborTable:
    """The shardings of a table's arrays, as a table of `NamedSharding`.

    For ``jax.device_put(table, ...)`` and the ``in_shardings`` of ``jax.jit``. `indices` and `slots` have a dimension
    of output rows, which may be sharded; the derived orders run over taps of all rows and are replicated. Each device
    then computes its rows of the output, and the gradients in x and weight are added over the devices.

    Args:
        table: one table [M, K], or one a sample [G..., M, K].
        mesh: the devices.
        rows: mesh axis, or tuple of axes, over which the output rows M are sharded.
        samples: mesh axis, or tuple of axes, over which the first dimension of a table of samples is sharded.

    Raises:
        TypeError: `table` is none.
        ValueError: `samples` of a table that has none; a dimension that the devices do not divide; an axis that the
            mesh does not have.
    """
    _checks.table(table)
    groups = table.group_shape
    if samples is not None and not groups:
        raise ValueError(f"samples: got {samples!r}, expected None: the table has no dimension of samples, {table}")
    _check_divides("rows", rows, "output rows", table.num_outputs, mesh)
    if groups:
        _check_divides("samples", samples, "samples", groups[0], mesh)
    lead = (samples, *(None,) * (len(groups) - 1)) if groups else ()

    def place(path: Any, leaf: Any) -> NamedSharding:
        del leaf
        has_rows = path[-1].name in ("indices", "slots")
        return NamedSharding(mesh, PartitionSpec(*lead, rows) if has_rows else PartitionSpec(*lead))

    return jax.tree_util.tree_map_with_path(place, table)


def _check_divides(name: str, axes: Any, what: str, size: int, mesh: Mesh) -> None:
    names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    devices = 1
    for axis in names:
        if axis not in mesh.shape:
            raise ValueError(f"{name}: got axis {axis!r}, expected one of the mesh's, {tuple(mesh.shape)}")
        devices *= mesh.shape[axis]
    if size % devices:
        raise ValueError(f"{name}: got {devices} devices for {size} {what}, expected a number that divides them")
