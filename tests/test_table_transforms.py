"""NeighborTable: its life as a pytree under JAX's transformations."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from table_checks import (
    LEAVES,
    assert_same,
)

from jax_knnconv.table import NeighborTable

INDICES, SLOTS = np.array([[0, 3, 1], [2, 2, -1]]), np.array([[1, 0, 1], [0, 1, 0]])
FLIPPED = INDICES[::-1]


def test_constants_inside_jit_stay_constants():
    kept = []

    @jax.jit
    def build(x):
        kept.append(NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))
        return x + kept[0].source_rows[0]

    build(1)
    assert_same(kept[0], NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))


def test_through_jit_and_closed_over():
    table = NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2)
    assert_same(table, jax.jit(lambda t: t)(table))
    assert_same(table, jax.jit(lambda: table)())
    assert jax.jit(lambda t: t.num_inputs * t.num_outputs * t.num_taps * t.num_slots)(table) == 4 * 2 * 3 * 2


def test_vmap_and_scan_over_stacked_tables():
    singles = [NeighborTable(i, SLOTS, num_inputs=4, num_slots=2) for i in (INDICES, FLIPPED)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    assert_same(stacked, NeighborTable(np.stack([INDICES, FLIPPED]), SLOTS, num_inputs=4, num_slots=2))

    def first_row(table):
        return table.indices[0] + 10 * table.num_outputs

    right = [[23, 20, 21], [22, 22, 19]]
    np.testing.assert_array_equal(jax.vmap(first_row)(stacked), right)
    in_axes = jax.tree.map(lambda _: 0, stacked)
    np.testing.assert_array_equal(jax.vmap(first_row, in_axes=(in_axes,))(stacked), right)
    _, scanned = jax.lax.scan(lambda carry, table: (carry, first_row(table)), 0, stacked)
    np.testing.assert_array_equal(scanned, right)
    carried, _ = jax.lax.scan(lambda table, _: (table, None), singles[0], length=3)
    assert_same(carried, singles[0])


def test_built_under_vmap_and_grad():
    sizes = {"num_inputs": 4, "num_slots": 2}
    stack = np.stack([INDICES, FLIPPED])
    built = jax.vmap(lambda i: NeighborTable(i, SLOTS, **sizes))(stack)
    assert_same(built, NeighborTable(stack, SLOTS, **sizes))

    def total(x, indices):
        return (x * NeighborTable(indices, SLOTS, **sizes).source_offsets[-1, 0]).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.ones(2), INDICES), [5, 5])


@pytest.mark.parametrize(("slots", "num_slots"), [(None, None), (SLOTS, 2)])
def test_built_inside_shard_map(slots, num_slots):
    spec = PartitionSpec("rows")
    build = jax.shard_map(
        lambda i: NeighborTable(i, slots, num_inputs=4, num_slots=num_slots),
        mesh=Mesh(jax.devices()[:1], "rows"),
        in_specs=spec,
        out_specs=spec,
    )
    right = NeighborTable(INDICES, slots, num_inputs=4, num_slots=num_slots)
    assert_same(jax.jit(build)(INDICES), right)


def test_symbolic_number_of_tables():
    (batch,) = jax.export.symbolic_shape("b")
    build = jax.jit(lambda i: NeighborTable(i, SLOTS, num_inputs=4, num_slots=2).source_rows)
    exported = jax.export.export(build)(jax.ShapeDtypeStruct((batch, 2, 3), jnp.int32))
    stack = np.stack([INDICES, FLIPPED, INDICES]).astype(np.int32)
    right = NeighborTable(stack, SLOTS, num_inputs=4, num_slots=2).source_rows
    np.testing.assert_array_equal(exported.call(stack), right)


def test_identity_immutability_and_copies():
    table, other = (NeighborTable(INDICES, num_inputs=4) for _ in range(2))
    assert table != other
    assert {table: 1}[table] == 1
    for name in ("indices", "num_inputs", "anything"):
        with pytest.raises(AttributeError, match=f"immutable: cannot set {name}"):
            setattr(table, name, None)
    with pytest.raises(AttributeError, match="immutable: cannot delete indices"):
        del table.indices
    assert_same(table, copy.deepcopy(table))
    assert_same(table, pickle.loads(pickle.dumps(table)))


def test_tables_do_not_alias_the_arguments():
    indices, slots = INDICES.astype(np.int32), SLOTS.astype(np.int32)
    table = NeighborTable(indices, slots, num_inputs=4, num_slots=2)
    indices[:], slots[:] = 0, 0
    assert_same(table, NeighborTable(INDICES, SLOTS, num_inputs=4, num_slots=2))


def test_repr_and_paths():
    table = NeighborTable(INDICES[None], SLOTS, num_inputs=4, num_slots=2)
    sizes = "group_shape=(1,), num_outputs=2, num_taps=3, num_inputs=4, num_slots=2"
    assert repr(table) == f"NeighborTable({sizes})"
    assert repr(jax.tree.map(lambda _: 0, table)) == "NeighborTable(num_inputs=4, num_slots=2)"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(table)]
    assert paths == [f".{name}" for name in LEAVES]
