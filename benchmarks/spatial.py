"""Spatial sharding: rows exchanged, and a gradient step against gathering. `python -m benchmarks.spatial --devices 8`.

On a machine without accelerators the devices are virtual ones that share its cores: their times tell what is computed
and copied, not what a network would cost. Rows exchanged are the same everywhere.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table
from scipy import sparse
from scipy.sparse import csgraph

import jax_knnconv as jkc
from benchmarks import ROOT, compare, harness, machine, memory
from jax_knnconv import spatial

Step = Callable[..., Any]


def load_example(name: str) -> ModuleType:
    """A module of `examples/`, which is a folder of scripts, not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Rows ----------------------------------------------------------------------------------------------------------------


def point_sets(level: int) -> dict[str, tuple[np.ndarray, jkc.NeighborTable]]:
    """Points and tables: a mesh of the sphere, a cloud in a cube, a flat scan; the clouds numbered at random."""
    icosphere = load_example("icosphere")
    vertices, triangles = icosphere.icosphere(level)
    table = jkc.NeighborTable(icosphere.neighbours(triangles, len(vertices)), num_inputs=len(vertices))
    random = np.random.default_rng(0)
    cloud = random.random((len(vertices), 3))
    scan = random.random((len(vertices), 3)) * [4, 1, 0.02]
    return {
        f"icosphere level {level}, K=7": (vertices, table),
        "cloud in a cube, K=16": (cloud, jkc.knn_table(cloud, k=16)),
        "flat scan, K=16": (scan, jkc.knn_table(scan, k=16)),
    }


def _cuthill_mckee(table: jkc.NeighborTable, num_shards: int) -> spatial.NodePartition:
    """Equal runs of the reverse Cuthill-McKee order, which keeps neighbours near in one dimension."""
    indices = np.asarray(table.indices)
    rows, columns = np.nonzero(indices >= 0)
    ends = (rows, indices[rows, columns])
    graph = sparse.csr_array((np.ones(len(rows), bool), ends), shape=(table.num_outputs, table.num_inputs))
    order = csgraph.reverse_cuthill_mckee((graph + graph.T).tocsr(), symmetric_mode=True)
    shards = np.empty(table.num_inputs, int)
    shards[order] = np.arange(table.num_inputs) * num_shards // table.num_inputs
    return spatial.NodePartition(shards, num_shards=num_shards)


def partitions(points: np.ndarray, table: jkc.NeighborTable, num_shards: int) -> dict[str, spatial.NodePartition]:
    """Ours by points and by the table alone, and what else one might do."""
    numbering = np.arange(len(points)) * num_shards // len(points)
    return {
        "points": spatial.partition_nodes(num_shards, points=points),
        "table": spatial.partition_nodes(num_shards, table=table),
        "Cuthill-McKee": _cuthill_mckee(table, num_shards),
        "as numbered": spatial.NodePartition(numbering, num_shards=num_shards),
    }


def count_rows(name: str, partition: spatial.NodePartition, by: str, table: jkc.NeighborTable) -> dict[str, Any]:
    """What one exchange moves over all devices: in rounds, by one padded all_to_all, by gathering x whole."""
    exchange = partition.shard_table(table).exchange
    largest = max((round_.width for round_ in exchange.rounds), default=0)
    others = exchange.num_shards - 1
    return {
        "points": name,
        "partition": by,
        "needed": exchange.total_needed,
        "rounds": len(exchange.rounds),
        "sent": exchange.total_received,
        "all_to_all": exchange.num_shards * others * largest,
        "all_gather": others * partition.num_nodes,
    }


# Steps ---------------------------------------------------------------------------------------------------------------


def _gradients(convolve: Callable[[Any, Any, Any], Any]) -> Step:
    """(x, weight, g, table) -> (y, dx, dw)."""

    def step(x: Any, weight: Any, g: Any, table: Any) -> Any:
        y, pullback = jax.vjp(lambda x, weight: convolve(x, weight, table), x, weight)
        return y, *pullback(g)

    return step


def steps(partition: spatial.NodePartition, table: jkc.NeighborTable, mesh: Mesh) -> dict[str, tuple[Step, Any, Any]]:
    """By name: the step, its table, and how x, g and the table lie on the devices."""
    sharded = partition.shard_table(table)
    indices = np.asarray(table.indices)
    # Indices into the rows of a sharded x that is gathered whole.
    renumbered = np.where(indices >= 0, partition.rows[indices], partition.num_rows)
    of_rows = np.full((partition.num_rows, table.num_taps), partition.num_rows)
    of_rows[partition.rows] = renumbered
    parts = of_rows.reshape(partition.num_shards, partition.shard_size, -1)
    gathered = jkc.NeighborTable(parts, num_inputs=partition.num_rows)
    rows = P(None, "space")

    def halo(x: Any, weight: Any, table: Any) -> Any:
        return spatial.knn_conv_sharded(x, weight, table, mesh=mesh, axis_name="space")

    def all_gather(x: Any, weight: Any, table: Any) -> Any:
        def local(x: Any, weight: Any, table: Any) -> Any:
            whole = jax.lax.all_gather(x, "space", axis=1, tiled=True)
            return jkc.knn_conv(whole, weight, jax.tree.map(lambda leaf: leaf[0], table))

        specs = (rows, P(), P("space"))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=rows)(x, weight, table)

    def plain(x: Any, weight: Any, indices: Any) -> Any:
        taken = x.at[:, indices].get(mode="fill", fill_value=0)
        precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
        return jnp.einsum("bmkc,kco->bmo", taken, weight, precision=precision)

    on_mesh, of_nodes = NamedSharding(mesh, P("space")), NamedSharding(mesh, rows)
    alone = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
    return {
        "halo exchange": (_gradients(halo), jax.device_put(sharded, on_mesh), of_nodes),
        "all-gather, knn_conv": (_gradients(all_gather), jax.device_put(gathered, on_mesh), of_nodes),
        "x[:, idx], einsum": (_gradients(plain), jax.device_put(of_rows, on_mesh), of_nodes),
        "one device, knn_conv": (_gradients(jkc.knn_conv), jax.device_put(table, alone), alone),
    }


def time_steps(
    name: str, points: np.ndarray, table: jkc.NeighborTable, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Forward and both gradients of one layer, each way in turns.

    Times: "call", waited for; away from the CPU also "loop", of calls that follow each other without waiting.
    """
    devices = jax.devices()[: options.devices]
    mesh = jax.make_mesh((options.devices,), ("space",), axis_types=(AxisType.Auto,), devices=devices)
    partition = spatial.partition_nodes(options.devices, points=points)
    random = np.random.default_rng(0)
    shape = (options.batch, len(points), options.channels)
    x, g = (random.standard_normal(shape, np.float32).astype(jnp.dtype(options.dtype)) for _ in range(2))
    weight = random.standard_normal((table.num_slots, *2 * shape[-1:]), np.float32) / shape[-1] ** 0.5
    weight = weight.astype(jnp.dtype(options.dtype))

    samplers: dict[tuple[str, str], Any] = {}
    compiled, results = {}, {}
    for way, (step, table_of, sharding) in steps(partition, table, mesh).items():
        alone = isinstance(sharding, jax.sharding.SingleDeviceSharding)
        order = (lambda values: values) if alone else partition.shard
        replicated = sharding if alone else NamedSharding(mesh, P())
        operands = (
            jax.device_put(order(x), sharding),
            jax.device_put(weight, replicated),
            jax.device_put(order(g), sharding),
            table_of,
        )
        compiled[way] = jax.jit(step).lower(*operands).compile()
        y, dx, dw = (np.asarray(value) for value in compiled[way](*operands))
        results[way] = (y, dx, dw) if alone else (partition.unshard(y), partition.unshard(dx), dw)
        samplers[way, "call"] = harness.WallSampler(compiled[way], [operands], sample_s=0.01)
        if jax.default_backend() != "cpu":
            samplers[way, "loop"] = harness.queued_sampler(
                lambda operands, way=way: compiled[way](*operands), [operands], sample_s=0.01
            )
    samples = harness.interleave(samplers, rounds=options.rounds, budget_s=options.budget)
    right = results["one device, knn_conv"]
    return [
        {
            "points": name,
            "dtype": options.dtype,
            "batch": options.batch,
            "channels": options.channels,
            "way": way,
            **{kind: harness.milliseconds(samples[name, kind]) for name, kind in samplers if name == way},
            "cpu": harness.milliseconds(samplers[way, "call"].cpu_samples),
            "temporary_bytes": memory.temporary_bytes(compiled[way]),
            "difference": max(compare.difference(*pair) for pair in zip(results[way], right, strict=True)),
        }
        for way in compiled
    ]


# Report --------------------------------------------------------------------------------------------------------------


def show(title: str, entries: Sequence[dict[str, Any]], console: Console) -> None:
    """One row an entry, one column a key; times by their least."""
    table = Table(title=title, title_justify="left")
    for key in entries[0]:
        table.add_column(
            {"call": "ms", "loop": "ms in a loop", "cpu": "cpu ms"}.get(key, key),
            justify="left" if key == "points" else "right",
        )
    for entry in entries:
        values = [value["min_ms"] if isinstance(value, dict) else value for value in entry.values()]
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values))
    console.print(table)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spatial", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--devices", type=int, default=8, help="devices to shard over; virtual ones on a CPU")
    add("--level", type=int, default=6, help="of the icosphere; the other point sets have as many points")
    add("--channels", type=int, default=32, help="C_in and C_out of the timed layer")
    add("--batch", type=int, default=1)
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--rounds", type=int, default=15, help="samples of each way, in turns")
    add("--budget", type=float, default=20, help="seconds after which the timing of a point set ends early")
    add("--out", type=pathlib.Path, default=None, help="a JSON file for the results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. 0, or 1 if a result is not that of one device."""
    options = parse(arguments)
    jax.config.update("jax_num_cpu_devices", options.devices)
    sets = point_sets(options.level)
    rows = [
        count_rows(name, partition, by, table)
        for name, (points, table) in sets.items()
        for by, partition in partitions(points, table, options.devices).items()
    ]
    timed = [entry for name, (points, table) in sets.items() for entry in time_steps(name, points, table, options)]
    console = Console(width=None if sys.stdout.isatty() else 160)
    show(f"Rows moved between {options.devices} devices in one exchange", rows, console)
    show("Forward and both gradients of one layer", timed, console)
    if options.out:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        facts = {"date": date, **machine.describe(), "devices": options.devices, "load": machine.load()}
        options.out.write_text(json.dumps({**facts, "rows": rows, "steps": timed}, indent=1) + "\n")
    return int(any(entry["difference"] > compare.TOLERANCE[options.dtype] for entry in timed))


if __name__ == "__main__":
    sys.exit(main())
