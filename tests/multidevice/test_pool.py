"""knn_pool over sharded batches, channels and output rows, and inside shard_map."""

from __future__ import annotations

import jax
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from mesh_cases import BATCH, C_IN, KINDS, SLOTS, M, N, close, collectives, mesh_of, normal, place

import jax_knnconv as jkc

X, G = normal((BATCH, N, C_IN), (BATCH, M, C_IN))


def value_and_dx(x, g, table, kind):
    y, back = jax.vjp(lambda x: jkc.knn_pool(x, table, kind=kind), x)
    return y, back(g)[0]


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("spec", [P("data"), P(None, None, "data")], ids=["batch", "channels"])
@pytest.mark.parametrize("mesh_kind", KINDS, ids=str)
def test_batches_and_channels_stay_sharded(mesh_kind, spec, kind):
    mesh = mesh_of(mesh_kind)
    with jax.set_mesh(mesh):
        x, g = place(mesh, (X, spec), (G, spec))
        table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh))
        compiled = jax.jit(value_and_dx, static_argnames="kind").lower(x, g, table, kind=kind).compile()
        assert collectives(compiled.as_text()) == {}
        got = compiled(x, g, table)
        close(got, oracle.knn_pool(X, SLOTS.indices, kind, G))
        for value in got:
            assert value.sharding.is_equivalent_to(x.sharding, 3)


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("mesh_kind", KINDS, ids=str)
def test_output_rows(mesh_kind, kind):
    mesh = mesh_of(mesh_kind)
    with jax.set_mesh(mesh):
        x, g = place(mesh, (X, P()), (G, P(None, "data")))
        table = jax.device_put(SLOTS, jkc.table_shardings(SLOTS, mesh, rows="data"))
        got = jax.jit(value_and_dx, static_argnames="kind")(x, g, table, kind=kind)
        close(got, oracle.knn_pool(X, SLOTS.indices, kind, G))
        assert got[0].sharding.is_equivalent_to(g.sharding, 3)


@pytest.mark.parametrize("kind", ["max", "mean"])
def test_inside_shard_map(kind):
    mesh = mesh_of(KINDS[1])

    def local(x, g, table):
        return value_and_dx(x, g, table, kind)

    with jax.set_mesh(mesh):
        x, g = place(mesh, (X, P("data")), (G, P("data")))
        mapped = jax.shard_map(local, in_specs=(P("data"), P("data"), P()), out_specs=P("data"))
        got = jax.jit(mapped)(x, g, SLOTS)
    want = oracle.knn_pool(X, SLOTS.indices, kind, G)
    close(got, want)
