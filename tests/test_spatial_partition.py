"""Spatial sharding on the host: partitions, the exchange that a table needs, and the tables of each device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spatial_cases import load_icosphere, needed_rows, replay, sphere

import jax_knnconv as jkc
from jax_knnconv import spatial
from jax_knnconv.spatial.exchange import schedule

RNG = np.random.default_rng(0)
RING = jkc.NeighborTable([[(n - 1) % 12, n, (n + 1) % 12] for n in range(12)], num_inputs=12)


def check_sharded(table, sources, outputs, sharded):
    """Every device finds under its local indices the nodes that the table names; counts are what they must be."""
    exchange = sharded.exchange
    indices = np.asarray(table.indices)
    extended = replay(sharded, np.asarray(sources.nodes))
    local = np.asarray(sharded.table.indices)
    assert local.shape == (*outputs.nodes.shape, table.num_taps)
    found = np.where(local >= 0, np.take_along_axis(extended[:, None], np.maximum(local, 0), axis=2), -1)
    is_tap = (indices >= 0) & (indices < table.num_inputs)
    expected = np.full_like(local, -1)
    expected[outputs.nodes >= 0] = np.where(is_tap, indices, -1)[outputs.nodes[outputs.nodes >= 0]]
    np.testing.assert_array_equal(found, expected)
    if table.slots is not None:
        rows = outputs.nodes >= 0
        slots = np.asarray(table.slots)[outputs.nodes[rows]]
        np.testing.assert_array_equal(np.asarray(sharded.table.slots)[rows], slots)

    assert list(exchange.needed) == needed_rows(indices, sources, outputs)
    for side, end in ((exchange.sent, 0), (exchange.received, 1)):
        assert list(side) == [
            sum(width for width, pairs in exchange.rounds if p in [pair[end] for pair in pairs])
            for p in range(exchange.num_shards)
        ]
    assert exchange.total_received == sum(exchange.received) == sum(exchange.sent)
    assert exchange.total_needed <= exchange.total_received <= 1.1 * exchange.total_needed
    np.testing.assert_array_equal(sharded.row_counts, outputs.counts)
    assert exchange.padded_rows == max(np.count_nonzero(nodes < 0) for nodes in outputs.nodes)


# Partitions -----------------------------------------------------------------------------------------------------------


def test_bisection_of_a_line():
    points = np.array([[5.0], [1], [7], [0], [2], [6], [3]])
    partition = spatial.partition_nodes(3, points=points)
    assert [set(nodes[nodes >= 0]) for nodes in partition.nodes] == [{3, 1, 4}, {6, 0}, {5, 2}]
    assert partition.counts.tolist() == [3, 2, 2]


def test_bisection_cuts_the_longest_side():
    points = np.stack(np.meshgrid(np.arange(8.0), np.arange(2.0), indexing="ij"), -1).reshape(-1, 2)
    partition = spatial.partition_nodes(4, points=points)
    assert [set(points[nodes, 0]) for nodes in partition.nodes] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


@pytest.mark.parametrize("num_shards", [1, 3, 8, 50])
def test_partition_is_balanced_and_inverse(num_shards):
    partition = spatial.partition_nodes(num_shards, points=RNG.normal(size=(41, 3)))
    assert partition.counts.sum() == 41
    assert np.ptp(partition.counts) <= 1
    assert sorted(partition.nodes[partition.nodes >= 0]) == list(range(41))
    values = RNG.normal(size=(2, 41, 3)).astype("float32")
    sharded = partition.shard(values)
    assert isinstance(sharded, np.ndarray)
    assert sharded.shape == (2, partition.num_rows, 3)
    for row, node in enumerate(partition.nodes.ravel()):
        np.testing.assert_array_equal(sharded[:, row], values[:, node] if node >= 0 else 0)
    np.testing.assert_array_equal(partition.row_mask, (sharded != 0).all((0, 2)))
    np.testing.assert_array_equal(partition.unshard(sharded), values)
    traced = jax.jit(partition.shard)(values)
    np.testing.assert_array_equal(traced, sharded)
    np.testing.assert_array_equal(jax.jit(partition.unshard)(traced), values)


def test_one_value_a_node():
    partition = spatial.NodePartition([1, 0, 1], num_shards=2)
    labels = np.array([7, 8, 9])
    assert partition.shard(labels, axis=-1).tolist() == [8, 0, 7, 9]
    assert partition.unshard(partition.shard(labels, axis=0), axis=0).tolist() == [7, 8, 9]
    assert partition.row_mask.tolist() == [True, False, True, True]


def test_labels_of_other_code_and_an_order():
    partition = spatial.NodePartition(np.array([2, 0, 2, 0, 2]), num_shards=4, order=[0, 9, 5, 1, 2])
    assert partition.nodes.tolist() == [[3, 1, -1], [-1, -1, -1], [0, 4, 2], [-1, -1, -1]]
    assert partition.counts.tolist() == [2, 0, 3, 0]


def test_partition_by_table_finds_the_ring():
    """Four arcs of a ring: eight neighbours outside, the least there can be."""
    shuffled = RNG.permutation(12)
    table = jkc.NeighborTable(np.argsort(shuffled)[np.asarray(RING.indices)][shuffled], num_inputs=12)
    partition = spatial.partition_nodes(4, table=table)
    assert partition.shard_table(table).exchange.total_needed == 8


def test_partition_of_a_table_that_is_not_connected():
    table = jkc.NeighborTable([[n ^ 1] for n in range(16)], num_inputs=16)
    partition = spatial.partition_nodes(2, table=table)
    assert partition.counts.tolist() == [8, 8]
    empty = spatial.partition_nodes(2, table=jkc.NeighborTable(np.full((5, 2), -1), num_inputs=5))
    assert empty.counts.tolist() == [3, 2]


def test_outputs_follow_their_sources():
    """Blocks of sources, and output rows in any order that read one block each."""
    sources = spatial.NodePartition(np.repeat(np.arange(4), 6), num_shards=4)
    blocks = RNG.permutation(np.repeat(np.arange(4), 3))
    table = jkc.NeighborTable(blocks[:, None] * 6 + RNG.integers(0, 6, (12, 5)), num_inputs=24)
    outputs = sources.follow(table)
    for p, rows in enumerate(outputs.nodes):
        assert set(blocks[rows]) == {p}
    assert sources.shard_table(table, outputs).exchange.total_needed == 0
    assert sources.shard_table(table, outputs).exchange.rounds == ()


# Exchange ------------------------------------------------------------------------------------------------------------


def test_ring_exchange_by_hand():
    """Shards 0-3, 4-7, 8-11: each needs the one row before and the one after."""
    partition = spatial.NodePartition(np.repeat(np.arange(3), 4), num_shards=3)
    sharded = partition.shard_table(RING)
    exchange = sharded.exchange
    assert exchange.needed == exchange.sent == exchange.received == (2, 2, 2)
    assert [(width, len(pairs)) for width, pairs in exchange.rounds] == [(1, 3), (1, 3)]
    assert exchange.halo_size == 2
    check_sharded(RING, partition, partition, sharded)
    assert str(exchange).startswith("3 devices: 6 rows exchanged in 2 rounds, 1.000 of the 6 needed")


def test_sphere_of_level_6_on_8_devices():
    vertices, table = sphere(6)
    assert len(vertices) == 40962
    for partition in (spatial.partition_nodes(8, points=vertices), spatial.partition_nodes(8, table=table)):
        sharded = partition.shard_table(table)
        check_sharded(table, partition, partition, sharded)
        # Octants of the sphere have 3 great circles between them, of about 240 vertices, needed on both sides.
        assert sharded.exchange.total_needed < 2600
        assert len(sharded.exchange.rounds) <= 8


@settings(settings.get_profile("brief"))
@given(
    seed=st.integers(0, 2**32 - 1),
    num_shards=st.integers(1, 6),
    sizes=st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 4)),
    slotted=st.booleans(),
)
def test_any_table(seed, num_shards, sizes, slotted):
    rng = np.random.default_rng(seed)
    n, m, k = sizes
    indices = rng.integers(-2, n + 2, (m, k))
    table = jkc.NeighborTable(indices, rng.integers(0, 3, (m, k)) if slotted else None, num_inputs=n, num_slots=5)
    sources = spatial.NodePartition(rng.integers(0, num_shards, n), num_shards=num_shards)
    followed = sources.follow(table)
    assert np.ptp(followed.counts) <= 1
    for outputs in (followed, spatial.NodePartition(rng.integers(0, num_shards, m), num_shards=num_shards)):
        check_sharded(table, sources, outputs, sources.shard_table(table, outputs))
    assert spatial.partition_nodes(num_shards, table=table).num_nodes == n


@pytest.mark.parametrize("num_shards", [2, 5, 16])
def test_schedule_of_random_counts(num_shards):
    counts = np.where(RNG.random((num_shards, num_shards)) < 0.6, RNG.geometric(0.01, (num_shards, num_shards)), 0)
    np.fill_diagonal(counts, 0)
    rounds = schedule(counts)
    carried = np.zeros_like(counts)
    for width, pairs in rounds:
        for pair in pairs:
            assert 0 < counts[pair] <= width
            carried[pair] += counts[pair]
    np.testing.assert_array_equal(carried, counts)  # each once
    assert sum(width * len(pairs) for width, pairs in rounds) <= 1.1 * counts.sum()


def test_table_is_a_pytree_of_parts():
    partition = spatial.partition_nodes(3, points=np.arange(12.0)[:, None])
    sharded = partition.shard_table(RING)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(sharded)} == {3}
    copy = jax.tree.map(jnp.asarray, sharded)
    assert copy.exchange == sharded.exchange
    assert hash(copy.exchange) == hash(sharded.exchange)


def test_icosphere_of_the_example():
    vertices, triangles = load_icosphere().icosphere(3)
    assert (len(vertices), len(triangles)) == (642, 1280)
    np.testing.assert_allclose(np.linalg.norm(vertices, axis=1), 1)
    table = load_icosphere().neighbours(triangles, len(vertices))
    assert ((table >= 0).sum(1) == 6).sum() == 12
    assert (table >= 0).all(1).sum() == 630
    for n, row in enumerate(table):
        near = np.argsort(np.linalg.norm(vertices - vertices[n], axis=1))[: (row >= 0).sum()]
        assert set(row[row >= 0]) == set(near)


# Errors --------------------------------------------------------------------------------------------------------------

TWELVE = spatial.NodePartition(np.repeat(np.arange(3), 4), num_shards=3)
GROUPED = jkc.NeighborTable(np.zeros((2, 12, 1), int), num_inputs=12)
LARGER = jkc.NeighborTable([[0]], num_inputs=13)
ERRORS = {
    "no input": (lambda: spatial.partition_nodes(2), ValueError, "points, table: got neither, expected exactly one"),
    "both": (
        lambda: spatial.partition_nodes(2, points=[[0.0]], table=RING),
        ValueError,
        "points, table: got both, expected exactly one",
    ),
    "no shards": (
        lambda: spatial.partition_nodes(0, points=[[0.0]]),
        ValueError,
        "num_shards: got 0, expected at least",
    ),
    "points shape": (
        lambda: spatial.partition_nodes(2, points=[0.0, 1.0]),
        ValueError,
        r"points: got shape \(2,\), expected \[N, D\]",
    ),
    "points dtype": (lambda: spatial.partition_nodes(2, points=[["a"]]), TypeError, "points: got dtype"),
    "points finite": (lambda: spatial.partition_nodes(2, points=[[np.nan]]), ValueError, "points: got values that are"),
    "points traced": (
        lambda: jax.jit(lambda p: spatial.partition_nodes(2, points=p).counts)(jnp.ones((2, 1))),
        TypeError,
        "points: got a traced array",
    ),
    "no table": (
        lambda: TWELVE.shard_table(RING.indices),
        TypeError,
        "table: got .*expected a NeighborTable.* makes one",
    ),
    "cut table": (
        lambda: spatial.partition_nodes(2, table=jax.tree.map(lambda leaf: leaf[:5], RING)),
        ValueError,
        r"table: got int32 \(5, 2\) as its source_offsets, expected int32 \(13, 2\)",
    ),
    "grouped table": (lambda: TWELVE.shard_table(GROUPED), ValueError, r"table: got group dimensions \(2,\)"),
    "other nodes": (lambda: TWELVE.shard_table(LARGER), ValueError, "table: got num_inputs 13, expected .* 12 nodes"),
    "traced table": (
        lambda: jax.jit(lambda t: TWELVE.shard_table(t))(RING),
        TypeError,
        "table: got a traced table, expected a concrete",
    ),
    "outputs size": (
        lambda: TWELVE.shard_table(RING, spatial.NodePartition([0], num_shards=3)),
        ValueError,
        "outputs: got a partition of 1 nodes, expected the table's num_outputs 12",
    ),
    "outputs shards": (
        lambda: TWELVE.shard_table(RING, spatial.NodePartition([0] * 12, num_shards=2)),
        ValueError,
        "outputs: got 2 shards, expected the sources' 3",
    ),
    "outputs type": (
        lambda: TWELVE.shard_table(RING, 3),
        TypeError,
        "outputs: got int, expected a NodePartition or None",
    ),
    "shard range": (
        lambda: spatial.NodePartition([0, 3], num_shards=3),
        ValueError,
        r"shards: got 3 at node 1, expected \[0, num_shards\) = \[0, 3\)",
    ),
    "shard dtype": (lambda: spatial.NodePartition([0.5], num_shards=3), TypeError, "shards: got dtype float64"),
    "shard rank": (lambda: spatial.NodePartition([[0]], num_shards=3), ValueError, r"shards: got shape \(1, 1\)"),
    "order shape": (
        lambda: spatial.NodePartition([0, 1], num_shards=3, order=[1]),
        ValueError,
        r"order: got shape \(1,\), expected shards' shape \(2,\)",
    ),
    "features": (
        lambda: TWELVE.shard(np.ones((11, 2))),
        ValueError,
        r"values: got 11 rows along axis 0 of shape \(11, 2\), expected the partition's num_nodes 12",
    ),
    "padded features": (lambda: TWELVE.unshard(np.ones((13, 2))), ValueError, "values: got 13 rows .* num_rows"),
    "axis": (lambda: TWELVE.shard(np.ones(12)), ValueError, r"axis: got -2, expected a dimension of values.*\(12,\)"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call()
