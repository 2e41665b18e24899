"""Tables in what programs save: state dicts of Flax, states of nnx, pickles."""

import copy
import pickle
import subprocess
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from table_checks import LEAVES, assert_same

import jax_knnconv as jkc
from jax_knnconv import spatial

INDICES, SLOTS = np.array([[0, 3, 1], [2, 2, -1]]), np.array([[1, 0, 1], [0, 1, 0]])
X = jnp.array([[1.0], [10.0], [100.0], [1000.0]])


def make_table(indices=INDICES, slots=SLOTS, num_inputs=4, num_slots=2):
    return jkc.NeighborTable(indices, slots, num_inputs=num_inputs, num_slots=num_slots)


def saved_and_restored(value, target):
    return flax.serialization.from_bytes(target, flax.serialization.to_bytes(value))


TABLES = {
    "with slots": (make_table(), make_table(INDICES[::-1])),
    "without slots": (make_table(slots=None, num_slots=3), make_table(INDICES[::-1], None, num_slots=3)),
    "one a sample": (make_table(np.stack([INDICES] * 2)), make_table(np.stack([INDICES[::-1]] * 2))),
}


@pytest.mark.parametrize(("table", "target"), TABLES.values(), ids=TABLES)
def test_flax_restores_a_table_into_another_of_its_sizes(table, target):
    back = saved_and_restored({"tables": [table], "step": 3}, {"tables": [target], "step": 0})
    assert back["step"] == 3
    assert_same(back["tables"][0], table)


def test_state_dict_has_the_arrays_by_name():
    state = flax.serialization.to_state_dict(make_table())
    assert sorted(state) == sorted(LEAVES)
    state = flax.serialization.to_state_dict(make_table(slots=None, num_slots=3))
    assert sorted(state) == ["indices", "source_offsets", "source_rows", "source_slots"]
    raw = flax.serialization.msgpack_restore(flax.serialization.to_bytes(make_table()))
    assert_same(jkc.NeighborTable(raw["indices"], raw["slots"], num_inputs=4, num_slots=2), make_table())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (make_table(num_inputs=5), "got num_inputs 4, expected 5"),
        (make_table(num_slots=4), "got num_slots 2, expected 4"),
        (
            make_table(slots=None, num_slots=3),
            r"got \['indices', 'slot_offsets', .*\], expected \['indices', 'source_off",
        ),
    ],
)
def test_flax_refuses_the_state_of_another_kind_of_table(target, message):
    with pytest.raises(ValueError, match=rf"state of NeighborTable\(.*\): {message}"):
        saved_and_restored({"table": make_table()}, {"table": target})


def test_flax_refuses_what_is_no_state():
    with pytest.raises(ValueError, match=r"state of NeighborTable\(.*\): got int, expected \['indices', "):
        saved_and_restored({"table": 3}, {"table": make_table()})


def test_linen_variable():
    class Layer(linen.Module):
        table: jkc.NeighborTable

        @linen.compact
        def __call__(self, x):
            table = self.variable("tables", "table", lambda: self.table)
            return jkc.knn_conv(x, self.param("kernel", linen.initializers.ones, (2, 1, 1)), table.value)

    table, other = make_table(), make_table(INDICES[::-1])
    variables, target = (Layer(of).init(jax.random.key(0), X) for of in (table, other))
    restored = saved_and_restored(variables, target)
    assert_same(restored["tables"]["table"], table)
    np.testing.assert_array_equal(Layer(other).apply(restored, X), [[1011], [200]])


class Model(nnx.Module):
    def __init__(self, table, is_variable):
        self.table = nnx.Variable(table) if is_variable else nnx.data(table)
        self.kernel = nnx.Param(jnp.ones((2, 1, 1)))

    def __call__(self, x):
        table = self.table.get_value() if isinstance(self.table, nnx.Variable) else self.table
        return jkc.knn_conv(x, self.kernel[...], table)


@pytest.mark.parametrize("is_variable", [True, False])
def test_nnx_state(is_variable):
    model, other = (Model(make_table(indices), is_variable) for indices in (INDICES, INDICES[::-1]))
    graph, state = nnx.split(model)
    np.testing.assert_array_equal(nnx.merge(graph, state)(X), [[1011], [200]])
    np.testing.assert_array_equal(nnx.jit(lambda model, x: model(x))(model, X), [[1011], [200]])
    target = nnx.state(other)
    restored = saved_and_restored(nnx.to_pure_dict(state), nnx.to_pure_dict(target))
    nnx.replace_by_pure_dict(target, restored)
    np.testing.assert_array_equal(nnx.merge(nnx.graphdef(other), target)(X), [[1011], [200]])
    if is_variable:  # Flax cannot set the parts of an immutable pytree that stands in a module by itself
        nnx.update(other, target)
        np.testing.assert_array_equal(other(X), [[1011], [200]])


def test_optimizer_state_that_leaves_the_table_out():
    parameters = {"table": make_table(), "kernel": jnp.ones((2, 1, 1))}
    optimizer = optax.masked(optax.sgd(0.1, momentum=0.9), {"table": False, "kernel": True})
    state = optimizer.init(parameters)
    moved = jax.tree.map(lambda leaf: leaf + 1, state)
    back = saved_and_restored(moved, state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    np.testing.assert_array_equal(jax.tree.leaves(back)[0], np.ones((2, 1, 1)))


def test_sharded_table():
    partition = spatial.partition_nodes(2, points=np.arange(8)[:, None])
    both_ways, one_way = (
        partition.shard_table(jkc.NeighborTable(np.array([[4], *[[n] for n in range(1, 7)], [last]]), num_inputs=8))
        for last in (3, 7)
    )
    target = jax.tree.map(jnp.zeros_like, both_ways)
    back = saved_and_restored({"sharded": both_ways}, {"sharded": target})["sharded"]
    for other in (back, copy.deepcopy(both_ways), pickle.loads(pickle.dumps(both_ways))):
        assert other.exchange == both_ways.exchange
        assert jax.tree.structure(other) == jax.tree.structure(both_ways)
        for got, wanted in zip(jax.tree.leaves(other), jax.tree.leaves(both_ways), strict=True):
            np.testing.assert_array_equal(got, wanted)
    with pytest.raises(ValueError, match=r"state of a ShardedTable: got another exchange than the target's"):
        saved_and_restored({"sharded": one_way}, {"sharded": both_ways})


def test_pickles_copies_and_transfers():
    table = make_table()
    for other in (copy.copy(table), copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert_same(other, table)
    on_device = jax.device_put(table, jax.devices()[0])
    assert on_device.indices.devices() == {jax.devices()[0]}
    assert_same(on_device, table)
    on_host = jax.device_get(table)
    assert isinstance(on_host.indices, np.ndarray)
    assert_same(pickle.loads(pickle.dumps(on_host)), table)
    np.testing.assert_array_equal(jkc.knn_conv(X, jnp.ones((2, 1, 1)), on_host), [[1011], [200]])


_FLAX_COMES_LATE = """
import jax_knnconv as jkc
table = jkc.NeighborTable([[0]], num_inputs=1)
{late}
from flax import serialization
assert serialization.from_bytes(table, serialization.to_bytes(table)).num_inputs == 1
"""


@pytest.mark.parametrize(
    "late",
    ["import jax_knnconv.nnx", "import jax_knnconv.linen", "import flax; jkc.NeighborTable([[0]], num_inputs=1)"],
)
def test_flax_imported_after_a_table_was_made(late):
    done = subprocess.run([sys.executable, "-c", _FLAX_COMES_LATE.format(late=late)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
