"""Hopper's kernels over groups, forced, against NumPy float64: tables a sample, weights a group, gradients a sample."""

import gpu_calls as calls
import gpu_dweight_calls
import gpu_problems
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gpu_calls import BF16, F16, F32

import jax_knnconv as jkc

pytestmark = pytest.mark.usefixtures("hopper")

TYPES = [(F16, F16), (BF16, F32)]
GROUPS = 6
# B, C, O, N, M, K, V (None: the column is the slot): rows one by one, of which cells and hubs are some, and boxes
KNN_SHAPES = [
    (1, 64, 72, 50, 141, 9, None),
    (1, 64, 64, 90, 57, 15, 20),
    (3, 136, 64, 50, 33, 5, 7),
    (9, 72, 96, 20, 31, 9, None),
    (70, 64, 64, 30, 13, 9, None),
    (130, 48, 72, 20, 11, 5, 9),
]
OWN = {
    "table a sample": {"weight": False},
    "weights a group": {"table": False},
    "all a group": {},
    "rows of one x": {"x": False, "weight": False},
}


def _at(problem, group):
    """The operands of one group, of those with a group dimension; it is 1 where all share them."""
    return gpu_problems.Knn(*(None if v is None else v[group if len(v) > 1 else 0] for v in problem))


def _problem(shape, dtype, *, x=True, weight=True, table=True):
    batch, c, o, n, m, k, v = shape
    rng = np.random.default_rng(0)
    tables = [calls.random_table(rng, m, k, n, v) for _ in range(GROUPS if table else 1)]
    slot_count, weights = k if v is None else v, GROUPS if weight else 1
    return gpu_problems.Knn(
        calls.normal(rng, (GROUPS if x else 1, batch, n, c), dtype),
        calls.normal(rng, (weights, slot_count, c, o), dtype, (k * c) ** -0.5),
        calls.normal(rng, (weights, o), F32),
        calls.normal(rng, (GROUPS, batch, m, o), dtype),
        np.stack([indices for indices, _ in tables]),
        None if v is None else np.stack([slots for _, slots in tables]),
    )


def _stacked(function, problem):
    """A pass of each group, and the same of absolute values."""
    groups = [_at(problem, i) for i in range(GROUPS)]
    sizes = [p._replace(**{f: abs(oracle.f64(getattr(p, f))) for f in ("x", "weight", "bias", "g")}) for p in groups]
    return np.stack([function(p) for p in groups]), np.stack([function(p) for p in sizes])


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
def test_knn(shape, own, dtype, out_dtype):
    problem = _problem(shape, dtype, **OWN[own])
    x, weight, bias, g, indices, slots = problem
    how = {"out_dtype": out_dtype, "kernel": "hopper", "lead": (GROUPS,)}
    zero, n = dtype == out_dtype, x.shape[-2]
    y = calls.knn_forward(x, weight, indices, slots, bias, zero_empty_rows=zero, **how)
    exact, bound = _stacked(
        lambda p: oracle.knn_forward(p.x, p.weight, p.indices, p.slots, p.bias, zero_empty_rows=zero), problem
    )
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)
    orders = [
        calls.source_order(i, None if slots is None else slots[j], n, weight.shape[1]) for j, i in enumerate(indices)
    ]
    stacked = tuple(np.stack(part) for part in zip(*orders, strict=True))
    dx = calls.knn_dinput(g, weight, stacked, num_inputs=n, **how)
    exact, bound = _stacked(lambda p: oracle.knn_dinput(p.g, p.weight, p.indices, p.slots, num_inputs=n), problem)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("shape", KNN_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("lead", [(GROUPS,), (1,)], ids=["each", "sum"])
def test_knn_dweight(shape, own, dtype, out_dtype, lead):
    problem = _problem(shape, dtype, **OWN[own])
    options = {"num_slots": shape[6] or shape[5], "zero_empty_rows": dtype == F16}
    found = gpu_dweight_calls.knn_dweight(
        problem.x, problem.g, problem.indices, problem.slots, out_dtype=out_dtype, kernel="hopper", lead=lead, **options
    )
    for i, got in enumerate(found):
        exact, bound = _stacked(lambda p, i=i: oracle.knn_dweight(p.x, p.g, p.indices, p.slots, **options)[i], problem)
        if lead == (1,):
            exact, bound = exact.sum(0, keepdims=True), bound.sum(0, keepdims=True)
        oracle.assert_within_ulp(got, exact, 2 * bound, out_dtype if i == 0 else F32)


@pytest.mark.parametrize("shape", [KNN_SHAPES[0], KNN_SHAPES[2]], ids=str)
@pytest.mark.parametrize("x", ["of all", "of models", "of samples"])
def test_knn_dweight_of_models_of_samples(shape, x):
    """A gradient for each of two models, summed over three samples with a table each."""
    models, samples = 2, GROUPS // 2
    problem = _problem(shape, BF16)
    g = problem.g.reshape(models, samples, *problem.g.shape[1:])
    indices = problem.indices[None, :samples]
    slots = None if problem.slots is None else problem.slots[None, :samples]
    xs = problem.x.reshape(models, samples, *problem.x.shape[1:])
    xs = {"of all": xs, "of models": xs[:, :1], "of samples": xs[:1]}[x]
    options = {"num_slots": shape[6] or shape[5], "zero_empty_rows": True}
    found = gpu_dweight_calls.knn_dweight(
        xs, g, indices, slots, out_dtype=F32, kernel="hopper", lead=(models, 1), **options
    )
    all_xs = np.broadcast_to(xs, (models, samples, *xs.shape[2:]))
    for i, got in enumerate(found):
        exact, bound = np.zeros((2, *got.shape))
        for model in range(models):
            for sample in range(samples):
                table = indices[0, sample], None if slots is None else slots[0, sample]
                pair = all_xs[model, sample], g[model, sample]
                exact[model, 0] += oracle.knn_dweight(*pair, *table, **options)[i]
                bound[model, 0] += oracle.knn_dweight(*(abs(oracle.f64(a)) for a in pair), *table, **options)[i]
        oracle.assert_within_ulp(got, exact, 2 * bound, F32)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_hubs_of_each_sample(dtype):
    rng = np.random.default_rng(0)
    counts = np.array([[3, 256, 600, 0, 257, 1], [1117, 0, 0, 0, 0, 0], [100, 200, 300, 17, 250, 250]])
    taps, slots = counts[0].sum(), rng.integers(0, 5, (3, counts[0].sum()))
    owners = [np.repeat(np.arange(6), count) for count in counts]
    orders = [gpu_problems.hub_order(o, s, 6) for o, s in zip(owners, slots, strict=True)]
    g, weight = calls.normal(rng, (3, taps, 64), dtype), calls.normal(rng, (1, 5, 72, 64), dtype, 0.1)
    stacked = tuple(np.stack(part) for part in zip(*orders, strict=True))
    dx = calls.knn_dinput(g, weight, stacked, num_inputs=6, out_dtype=F32, kernel="hopper", lead=(3,))
    exact, bound = np.zeros((2, 3, 6, 72))
    for i in range(3):
        products = np.einsum("to,tco->tc", oracle.f64(g[i]), oracle.f64(weight[0])[slots[i]])
        sizes = np.einsum("to,tco->tc", abs(oracle.f64(g[i])), abs(oracle.f64(weight[0]))[slots[i]])
        np.add.at(exact[i], owners[i], products)
        np.add.at(bound[i], owners[i], sizes)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, F32)


# B, H, W, C, O, kernel, stride, low pads, dilation, output size
DENSE_SHAPES = [
    (2, 8, 8, 64, 72, (3, 3), (1, 1), (1, 1), (1, 1), (8, 8)),
    (1, 15, 16, 72, 136, (3, 3), (2, 2), (1, 1), (1, 1), (8, 8)),
    (3, 9, 7, 64, 64, (3, 2), (1, 1), (1, 0), (1, 1), (9, 7)),
]


@pytest.mark.parametrize("shared", [None, "x"])
@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=str)
def test_dense(shape, shared, dtype, out_dtype):
    rng = np.random.default_rng(1)
    of = gpu_problems.dense(shape, dtype)
    x, g = (calls.normal(rng, (GROUPS, *operand.shape), dtype) for operand in (of.x, of.g))
    x = x[:1] if shared == "x" else x
    weight = calls.normal(rng, (GROUPS, *of.weight.shape), dtype, 0.05)
    bias = calls.normal(rng, (GROUPS, *of.bias.shape), F32)
    problem, window, size = gpu_problems.Knn(x, weight, bias, g, None, None), of.window, of.x.shape[1:3]
    how = {"out_dtype": out_dtype, "kernel": "hopper", "lead": (GROUPS,)} | window
    y = calls.dense_forward(x, weight, bias, output_size=of.sizes, **how)
    exact, bound = _stacked(
        lambda p: oracle.dense_forward(p.x, p.weight, p.bias, output_size=of.sizes, **window), problem
    )
    oracle.assert_within_ulp(y, exact, calls.SUM_SLACK * bound, out_dtype)
    dx = calls.dense_dinput(g, weight, input_size=size, **how)
    exact, bound = _stacked(lambda p: oracle.dense_dinput(p.g, p.weight, input_size=size, **window), problem)
    oracle.assert_within_ulp(dx, exact, calls.SUM_SLACK * bound, out_dtype)
    if shared is None and shape[0] * np.prod(of.sizes) % 64:
        with pytest.raises(jax.errors.JaxRuntimeError, match="does not take this call"):
            gpu_dweight_calls.dense_dweight(x, g, kernel_size=of.kernel_size, **how)
        return
    found = gpu_dweight_calls.dense_dweight(x, g, kernel_size=of.kernel_size, **how)
    for i, got in enumerate(found):
        exact, bound = _stacked(
            lambda p, i=i: oracle.dense_dweight(p.x, p.g, kernel_size=of.kernel_size, **window)[i], problem
        )
        oracle.assert_within_ulp(got, exact, 2 * bound, out_dtype if i == 0 else F32)


def test_a_group_reads_no_other():
    """What is not finite in one sample stays there, in every pass and wherever its rows and steps end."""
    groups, n, m, k, c = 4, 37, 45, 3, 64
    rng = np.random.default_rng(0)
    x, g = rng.integers(-2, 3, (groups, n, c)).astype(BF16), rng.integers(-2, 3, (groups, m, c)).astype(BF16)
    weight = np.stack([np.eye(c)] * k)[None].repeat(groups, 0).astype(BF16)
    indices = rng.permuted(np.broadcast_to(np.arange(m * k, dtype=np.int32) % n, (groups, m * k)), axis=1)
    indices = indices.reshape(groups, m, k)
    stacked = tuple(np.stack(part) for part in zip(*(calls.source_order(i, None, n, k) for i in indices), strict=True))

    def passes(x, g, weight):
        how = {"out_dtype": F32, "kernel": "hopper", "lead": (groups,)}
        return [
            calls.knn_forward(x, weight, indices, **how),
            calls.knn_dinput(g, weight, stacked, num_inputs=n, **how),
            *gpu_dweight_calls.knn_dweight(x, g, indices, num_slots=k, **how),
        ]

    expected = passes(x, g, weight)
    for bad in range(groups):
        x_bad, g_bad, weight_bad = x.copy(), g.copy(), weight.copy()
        x_bad[bad], g_bad[bad], weight_bad[bad] = np.nan, np.inf, np.nan
        for got, want in zip(passes(x_bad, g_bad, weight_bad), expected, strict=True):
            np.testing.assert_array_equal(np.delete(got, bad, 0), np.delete(want, bad, 0))
            assert not np.isfinite(got[bad]).any()


def test_transformations_reach_these_kernels(gpu):
    """Point clouds with a table each: the loss's gradients, and each sample's own."""
    groups, n, k, c = 5, 300, 9, 64
    rng = np.random.default_rng(0)
    config = jkc.KernelConfig(kernel="hopper")
    with jax.default_device(gpu):
        table = jkc.NeighborTable(rng.integers(-1, n, (groups, n, k)), num_inputs=n)
        x, g = (jnp.asarray(rng.integers(-2, 3, (groups, n, c)), "bfloat16") for _ in range(2))
        weight = jnp.asarray(rng.integers(-1, 2, (k, c, c)), "bfloat16")

        def loss(x, weight, table, g):
            y = jkc.knn_conv(x, weight, table, config=config, preferred_element_type="float32")
            return (y * g.astype("float32")).sum()

        summed = jax.jit(jax.grad(loss, 1))(x, weight, table, g)
        each = jax.jit(jax.vmap(jax.grad(loss, 1), (0, None, 0, 0)))(x, weight, table, g)
    rows = enumerate(np.asarray(table.indices))
    exact = np.stack([oracle.knn_dweight(x[i : i + 1], g[i : i + 1], indices, num_slots=k)[0] for i, indices in rows])
    oracle.assert_within_ulp(np.asarray(each), exact, 0, BF16)
    oracle.assert_within_ulp(np.asarray(summed), exact.sum(0), 0, BF16)
