"""What the tests of spatial sharding share: the sphere, and the exchange replayed in NumPy from a table's lists."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np

import jax_knnconv as jkc

_ICOSPHERE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "icosphere.py"


def load_icosphere():
    """The example's module."""
    spec = importlib.util.spec_from_file_location("icosphere", _ICOSPHERE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sphere(level):
    """(vertices [N, 3], table of self and neighbours, K = 7)."""
    icosphere = load_icosphere()
    vertices, triangles = icosphere.icosphere(level)
    return vertices, jkc.NeighborTable(icosphere.neighbours(triangles, len(vertices)), num_inputs=len(vertices))


def replay(sharded, values):
    """[P, S + halo] from values [P, S]: own rows and what arrives; -1 where nothing does."""
    exchange = sharded.exchange
    send_rows = np.asarray(sharded.send_rows)
    extended = [list(values[p]) for p in range(exchange.num_shards)]
    start = 0
    for width, pairs in exchange.rounds:
        senders, receivers = zip(*pairs, strict=True)
        assert len({*senders}) == len(senders)
        assert len({*receivers}) == len(receivers)
        arriving = dict(zip(receivers, senders, strict=True))
        for p in range(exchange.num_shards):
            sent = values[arriving[p]][send_rows[arriving[p], start : start + width]] if p in arriving else [-1] * width
            extended[p].extend(sent)
        start += width
    return np.array(extended)


def needed_rows(indices, sources, outputs):
    """[P] distinct sources outside a shard that its output rows name, counted one tap at a time."""
    owner = {int(node): p for p, nodes in enumerate(sources.nodes) for node in nodes if node >= 0}
    wanted = [set() for _ in range(sources.num_shards)]
    for p, rows in enumerate(outputs.nodes):
        for row in rows[rows >= 0]:
            wanted[p] |= {n for n in map(int, indices[row]) if n in owner and owner[n] != p}
    return [len(nodes) for nodes in wanted]
