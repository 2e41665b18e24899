"""Two GPUs: every sharding, values of one device; nodes of one sample; inputs on the second GPU; threads."""

from __future__ import annotations

import concurrent.futures
import functools

import gpu_calls as calls
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import spatial_devices as space
from gpu_calls import BF16, F32
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_cases import collectives

import jax_knnconv as jkc
from jax_knnconv.spatial import partition_nodes

N, M, TAPS, SLOTS, BATCH, C_IN, C_OUT = 64, 48, 9, 7, 8, 32, 64
RNG = np.random.default_rng(0)
INDICES, SLOT_OF = calls.random_table(RNG, M, TAPS, N, SLOTS)
X, G = calls.normal(RNG, (BATCH, N, C_IN), BF16), calls.normal(RNG, (BATCH, M, C_OUT), BF16)
WEIGHT, BIAS = calls.normal(RNG, (SLOTS, C_IN, C_OUT), BF16, 0.1), calls.normal(RNG, (C_OUT,), F32)

SHARDINGS = {
    "batch": (P("d"), P(), P(), None, P("d")),
    "C_in": (P(None, None, "d"), P(None, "d"), P(), None, P()),
    "C_out": (P(), P(None, None, "d"), P("d"), None, P(None, None, "d")),
    "rows": (P(), P(), P(), "d", P(None, "d")),
}


@pytest.fixture(scope="module", autouse=True)
def gpus(gpu):
    devices = jax.devices("cuda")
    if len(devices) < 2:
        pytest.skip("one GPU")
    return devices[:2]


def table():
    return jkc.NeighborTable(INDICES, SLOT_OF, num_inputs=N, num_slots=SLOTS)


def passes(x, weight, bias, table, g):
    y, back = jax.vjp(lambda *args: jkc.knn_conv(*args[:2], table, args[2]), x, weight, bias)
    return y, *back(g)


def assert_right(y, dx, dw, db):
    size = {name: abs(oracle.f64(value)) for name, value in (("x", X), ("w", WEIGHT), ("g", G))}
    exact = oracle.knn_forward(X, WEIGHT, INDICES, SLOT_OF, BIAS)
    bound = oracle.knn_forward(size["x"], size["w"], INDICES, SLOT_OF, abs(oracle.f64(BIAS)))
    oracle.assert_within_ulp(y, exact, 2 * bound, BF16, "y")
    bound = oracle.knn_dinput(size["g"], size["w"], INDICES, SLOT_OF, num_inputs=N)
    exact = oracle.knn_dinput(G, WEIGHT, INDICES, SLOT_OF, num_inputs=N)
    oracle.assert_within_ulp(dx, exact, calls.CELL_SLACK * bound, BF16, "dx")
    exact, exact_db = oracle.knn_dweight(X, oracle.f64(G), INDICES, SLOT_OF, num_slots=SLOTS)
    bound, bound_db = oracle.knn_dweight(size["x"], size["g"], INDICES, SLOT_OF, num_slots=SLOTS)
    oracle.assert_within_ulp(dw, exact, 2 * bound, BF16, "dw")
    oracle.assert_within_ulp(db, exact_db, 2 * bound_db, F32, "db")


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_sharded(kind, name, gpus):
    *specs, rows, of_g = SHARDINGS[name]
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=gpus)
    with jax.set_mesh(mesh):
        x, weight, bias, g = (
            jax.device_put(value, NamedSharding(mesh, spec))
            for value, spec in zip((X, WEIGHT, BIAS, G), (*specs, of_g), strict=True)
        )
        taps = jax.device_put(table(), jkc.table_shardings(table(), mesh, rows=rows))
        compiled = jax.jit(passes).lower(x, weight, bias, taps, g).compile()
        text = compiled.as_text()
        assert set(collectives(text)) <= {"all-reduce"}
        for target in ("forward", "dinput", "dweight"):
            assert f"jax_knnconv_knn_{target}_v1" in text
        got = compiled(x, weight, bias, taps, g)
        again = compiled(x, weight, bias, taps, g)
    assert_right(*got)
    for first, second in zip(got, again, strict=True):
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


def test_shard_map(gpus):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=gpus)

    def step(x, weight, bias, g):
        y, back = jax.vjp(lambda *args: jkc.knn_conv(*args[:2], table(), args[2]), x, weight, bias)
        return y, *back(g)

    specs = (P("d"), P(), P(), P("d"))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=(P("d"), P("d"), P(), P())))
    y, dx, dw, db = mapped(X, WEIGHT, BIAS, G)
    one = passes(jnp.asarray(X), jnp.asarray(WEIGHT), jnp.asarray(BIAS), table(), jnp.asarray(G))
    np.testing.assert_allclose(oracle.f64(y), oracle.f64(one[0]), rtol=2**-7)
    for value, right in zip((dx, dw, db), one[1:], strict=True):  # dw is added in bfloat16 here, by autodiff
        scale = abs(oracle.f64(right)).max()
        np.testing.assert_allclose(oracle.f64(value), oracle.f64(right), rtol=0, atol=2**-6 * scale)


SPATIAL_TABLES = ["sphere", "slots, holes, a hub", "down"]  # the last with padding: 43 output rows
SPATIAL_SLACK = {"float32": (2, 2, 2, 2), "bfloat16": (2, calls.CELL_SLACK, 2, 2)}


@pytest.mark.parametrize("dtype", SPATIAL_SLACK)
@pytest.mark.parametrize("name", SPATIAL_TABLES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_spatial(kind, name, dtype, gpus):
    """Nodes of one sample over both: rows exchanged, nothing gathered, the oracle's values and one device's."""
    table, _, _, arrays = space.case(name, channels=(64, 32), dtype=dtype)
    sources = partition_nodes(2, points=space.VERTICES)
    outputs = sources.follow(table) if name == "down" else sources
    mesh = jax.make_mesh((2,), ("space",), axis_types=(kind,), devices=gpus)
    with jax.set_mesh(mesh):
        operands = space.on_mesh(mesh, sources, outputs, arrays, table)
        step = functools.partial(space.value_and_gradients, axis_name="space")
        compiled = jax.jit(step).lower(*operands).compile()
        runs = [[np.asarray(value) for value in compiled(*operands)] for _ in range(10)]
    rounds = len(operands[-1].exchange.rounds)
    assert rounds in (1, 2)  # two where one GPU sends much more than the other
    counts = space.collectives(compiled.as_text())
    permutes = counts.pop("collective-permute")
    assert counts == {"all-gather": 0, "all-reduce": 1, "all-to-all": 0}
    assert permutes in (2, 2 * rounds)  # there and back; XLA may join the rounds of a direction
    space.check(runs[0], table, sources, outputs, arrays, dtype, slack=SPATIAL_SLACK[dtype])
    for run in runs[1:]:
        assert [value.tobytes() for value in run] == [value.tobytes() for value in runs[0]]

    x, weight, bias, g = jax.device_put(arrays, gpus[0])
    y, back = jax.vjp(lambda *args: jkc.knn_conv(*args[:2], table, args[2]), x, weight, bias)
    ours = outputs.unshard(runs[0][0]), sources.unshard(runs[0][1]), *runs[0][2:]
    bounds = space.exact(table, *map(np.abs, arrays))
    parts = zip(ours, (y, *back(g)), bounds, SPATIAL_SLACK[dtype], ("y", "dx", "dw", "db"), strict=True)
    for value, one, bound, slack, what in parts:
        oracle.assert_within_ulp(value, oracle.f64(one), 2 * slack * bound.reshape(one.shape), dtype, what)


@pytest.mark.parametrize("run", [passes, jax.jit(passes)], ids=["eager", "jit"])
def test_inputs_on_the_second_gpu(run, gpus):
    operands = (X, WEIGHT, BIAS, table(), G)
    first, second = (run(*jax.device_put(operands, device)) for device in gpus)
    for leaf, right in zip(second, first, strict=True):
        assert leaf.devices() == {gpus[1]}
        assert np.asarray(leaf).tobytes() == np.asarray(right).tobytes()


def test_threads_on_both(gpus):
    def work(number):
        operands = jax.device_put((X, WEIGHT, BIAS, table(), G), gpus[number % 2])
        own = jax.jit(lambda *args: passes(*args))
        return [b"".join(np.asarray(leaf).tobytes() for leaf in own(*operands)) for _ in range(10)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len({value for values in pool.map(work, range(8)) for value in values}) == 1
