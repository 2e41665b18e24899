"""Convolution over a table whose source and output rows are sharded over devices."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_knnconv import _checks, _dtypes
from jax_knnconv._specs import KnnSpec
from jax_knnconv.config import KernelConfig
from jax_knnconv.spatial._on_device import Static, convolve_on_device
from jax_knnconv.spatial.table import ShardedTable


def knn_conv_sharded(
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike,
    table: ShardedTable,
    bias: jax.typing.ArrayLike | None = None,
    *,
    axis_name: str | tuple[str, ...],
    mesh: Mesh | None = None,
    batch_axis_name: str | tuple[str, ...] | None = None,
    empty_rows: str = "bias",
    compute_dtype: Any = None,
    preferred_element_type: Any = None,
    precision: Any = None,
    implementation: str = "auto",
    config: KernelConfig | None = None,
    forward_mode: bool = False,
) -> jax.Array:
    """y[b, m, :] = bias + sum over k of x[b, indices[m, k], :] @ weight[slots[m, k]], the rows of x and y sharded.

    `jax_knnconv.knn_conv` where one sample's nodes lie on many devices. Each device sends the rows of x that others
    name, in 16 bits where products have 16, in the rounds of `table.exchange`, then convolves its own output rows.
    Nothing is gathered whole. In the backward pass float32 cotangents of those rows travel the same way back, and are
    added in float32 in fixed order; dx, dw and db are rounded once. Values are those of one device.

    Rows in the padding of y are 0 and take no part in any gradient, whatever `empty_rows` says and whatever cotangent
    reaches them.

    Inside `shard_map` over `axis_name`, give each device its own part: x of [..., S, C_in], a table that came in by
    `PartitionSpec(axis_name)`. Elsewhere, eagerly or under `jit`, on Auto and Explicit meshes, give whole arrays; the
    call maps itself over the mesh.

    Args:
        x: [..., P * S, C_in] as `NodePartition.shard` orders it; any number of batch dimensions.
        weight: [V, C_in, C_out], the same on all devices.
        table: from `NodePartition.shard_table`.
        bias: [C_out], added in float32.
        axis_name: the mesh axis, or axes, over which nodes are sharded; of size P.
        mesh: the mesh; None: the one set by `jax.set_mesh`.
        batch_axis_name: the mesh axis over which the first dimension of x is sharded besides. On Explicit axes, the
            sharding of x's batch dimensions is kept without it.
        empty_rows: as in `jax_knnconv.knn_conv`.
        compute_dtype: as there.
        preferred_element_type: as there.
        precision: as there.
        implementation: as there.
        config: as there.
        forward_mode: as there; rows are then exchanged in float32.

    Returns:
        [..., P * S_out, C_out], sharded as x; `NodePartition.unshard` of the outputs' partition restores the order.

    Raises:
        ValueError: shapes, options or a mesh that do not fit, at trace time.
        TypeError: dtypes that do not fit, or a table that is none.
    """
    x, weight = _dtypes.as_operand("x", x), _dtypes.as_operand("weight", weight)
    bias = None if bias is None else _dtypes.as_operand("bias", bias)
    if not isinstance(table, ShardedTable):
        raise TypeError(f"table: got {type(table).__name__}, expected a ShardedTable, from NodePartition.shard_table")
    if not isinstance(empty_rows, str) or empty_rows not in ("bias", "zero"):
        raise ValueError(f"empty_rows: got {empty_rows!r}, expected 'bias' or 'zero'")
    exchange = table.exchange
    dtypes = _dtypes.resolve({"x": x, "weight": weight}, compute_dtype, preferred_element_type, precision)
    static = Static(
        KnnSpec(
            input_dims=(table.table.num_inputs,),
            output_dims=(exchange.output_size,),
            slot_dims=(table.table.num_slots,),
            zero_empty_rows=empty_rows == "zero",
            implementation=_checks.implementation(implementation),
            config=_checks.config(config),
        ),
        exchange,
        _axis_names("axis_name", axis_name),
        jnp.dtype(x.dtype),
        dtypes.compute,
        dtypes.out,
        forward_mode,
    )
    mapping = _mapping(static.axis_name, mesh, exchange.num_shards)
    shards = 1 if mapping is None else exchange.num_shards
    _check_operands(x, weight, bias, table, shards)
    if mapping is None:
        return convolve_on_device(static, x, weight, bias, table)
    spec = _row_spec(x, mapping, static.axis_name, batch_axis_name)
    return _mapped(static, mapping, spec, bias is not None)(
        *_reshard(mapping, (x, spec), (weight, PartitionSpec()), (bias, PartitionSpec())),
        *_reshard(mapping, (table, PartitionSpec(static.axis_name))),
    )


# ---- checks and meshes -----------------------------------------------------------------------------------------------


def _axis_names(name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple) or not names or not all(isinstance(axis, str) for axis in names):
        raise TypeError(f"{name}: got {value!r}, expected the name of a mesh axis or a tuple of them")
    return names


def _check_operands(x: Any, weight: Any, bias: Any, table: ShardedTable, shards: int) -> None:
    exchange = table.exchange
    groups = table.table.group_shape
    if groups != (shards,):
        raise ValueError(
            f"table: got parts of {groups} devices, expected {(shards,)}: inside shard_map a ShardedTable comes in by "
            "PartitionSpec(axis_name), elsewhere it is given whole"
        )
    _checks.rank("x", x, 2, "[..., rows, C_in]")
    where = "source_size of its exchange" if shards == 1 else "num_shards * source_size of its exchange"
    _checks.same(
        "x's rows (its second to last dimension)", x.shape[-2], f"the table's {where}", shards * exchange.source_size
    )
    _checks.exact_rank("weight", weight, 3, "[V, C_in, C_out]")
    _checks.same(
        "weight's slots (its first dimension)", weight.shape[0], "the table's num_slots", table.table.num_slots
    )
    _checks.same(
        "x's channels (its last dimension)", x.shape[-1], "weight's C_in (its second dimension)", weight.shape[1]
    )
    _checks.bias(bias, weight.shape[-1])


def _mapping(axis_name: tuple[str, ...], mesh: Mesh | None, num_shards: int) -> Any:
    """The mesh to map over; None inside a shard_map that has these axes."""
    context = jax.sharding.get_abstract_mesh()
    manual = {n for n, t in zip(context.axis_names, context.axis_types, strict=True) if t == AxisType.Manual}
    found = context if mesh is None or manual else mesh
    if found.empty:
        raise ValueError("mesh: got None outside shard_map and jax.set_mesh, expected a mesh that has axis_name")
    missing = [axis for axis in axis_name if axis not in found.axis_names]
    if missing:
        raise ValueError(f"axis_name: got {axis_name}, expected axes of the mesh, which has {found.axis_names}")
    size = 1
    for axis in axis_name:
        size *= found.shape[axis]
    _checks.same(f"the mesh's size along axis_name {axis_name}", size, "the table's num_shards", num_shards)
    inside = [axis in manual for axis in axis_name]
    if all(inside):
        return None
    if manual:
        raise ValueError(
            f"axis_name: got {axis_name} inside a shard_map over {tuple(sorted(manual))}, expected a shard_map over "
            "all of axis_name, or none"
        )
    return found


def _is_explicit(mesh: Any) -> bool:
    return any(kind == AxisType.Explicit for kind in mesh.axis_types)


def _row_spec(x: Any, mesh: Any, axis_name: tuple[str, ...], batch_axis_name: Any) -> PartitionSpec:
    """How x and y are sharded: rows over axis_name, batch dimensions as asked, or as an Explicit x already is."""
    batch: list[Any] = [None] * (x.ndim - 2)
    if batch_axis_name is not None:
        names = _axis_names("batch_axis_name", batch_axis_name)
        wrong = [axis for axis in names if axis not in mesh.axis_names or axis in axis_name]
        if wrong:
            raise ValueError(
                f"batch_axis_name: got {batch_axis_name!r}, expected axes of the mesh {mesh.axis_names} besides "
                f"axis_name {axis_name}"
            )
        if not batch:
            raise ValueError(
                f"batch_axis_name: got {batch_axis_name!r}, expected None: x of shape {tuple(x.shape)} has no batch"
            )
        batch[0] = names
    elif _is_explicit(mesh):
        spec = tuple(jax.typeof(x).sharding.spec)
        batch = [None if _shares(entry, axis_name) else entry for entry in spec[: x.ndim - 2]]
    return PartitionSpec(*batch, axis_name, None)


def _shares(entry: Any, axes: tuple[str, ...]) -> bool:
    return bool(set((entry,) if isinstance(entry, str) else entry or ()) & set(axes))


def _reshard(mesh: Any, *operands: tuple[Any, PartitionSpec]) -> list[Any]:
    """On an Explicit mesh, operands with the shardings that the mapped call declares."""
    if not _is_explicit(mesh):
        return [operand for operand, _ in operands]
    return [
        jax.tree.map(lambda leaf, spec=spec: jax.sharding.reshard(leaf, NamedSharding(mesh, spec)), operand)
        for operand, spec in operands
    ]


@functools.lru_cache(maxsize=1024)
def _mapped(static: Static, mesh: Any, spec: PartitionSpec, with_bias: bool) -> Any:
    """The call as a function of whole arrays; one object for equal calls, so that eager ones compile once."""
    replicated = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            functools.partial(convolve_on_device, static),
            mesh=mesh,
            in_specs=(spec, replicated, replicated if with_bias else None, PartitionSpec(static.axis_name)),
            out_specs=spec,
        )
    )
