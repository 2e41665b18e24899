"""nnx.KNNConv against the float64 oracle."""

import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import optax
import pytest
from flax import nnx as flax_nnx
from nnx_calls import rngs, run

import jax_knnconv as jkc
from jax_knnconv import nnx

F32, BF16, F16 = cases.DTYPES
INDICES, SLOTS = cases.INDICES, cases.SLOTS
NORMAL = flax_nnx.initializers.normal()


def make_table():
    return jkc.NeighborTable(INDICES, SLOTS, num_inputs=6, num_slots=5)


@pytest.mark.parametrize(
    ("dtype", "empty_rows", "at_call"),
    [(F32, "bias", True), (F32, "zero", False), (BF16, "bias", False), (F16, "zero", True)],
)
def test_knn_conv_is_right(dtype, empty_rows, at_call):
    options = {"dtype": dtype, "empty_rows": empty_rows, "bias_init": NORMAL, "rngs": rngs()}
    layer = nnx.KNNConv(3, 4, num_slots=5, **options) if at_call else nnx.KNNConv(3, 4, make_table(), **options)
    assert jax.tree.map(jnp.shape, flax_nnx.to_pure_dict(flax_nnx.state(layer))) == {
        "kernel": (5, 3, 4),
        "bias": (4,),
    }
    x, cotangent = cases.normal(0, 2, 6, 3), cases.normal(2, 2, 4, 4, dtype=dtype)
    operands = x.astype(dtype), layer.kernel[...].astype(dtype), layer.bias[...]
    rest, zero = (INDICES, SLOTS), empty_rows == "zero"
    exact = cases.knn_answer(*operands, *rest, cotangent, zero)
    products = cases.knn_answer(*cases.magnitudes(*operands), *rest, *cases.magnitudes(cotangent), zero)
    call = {"table": make_table()} if at_call else {}
    cases.assert_answers(run(layer, x, cotangent, **call), exact, products, (dtype, F32, F32, F32))


def test_knn_conv_initial_kernel():
    # Variance 1 / (K·C_in), K the three taps of a row however many slots there are; without a table K is V.
    lecun = jax.nn.initializers.lecun_normal()(rngs().params(), (5, 3, 4))
    kernel = nnx.KNNConv(3, 4, make_table(), rngs=rngs()).kernel[...]
    np.testing.assert_allclose(kernel, lecun * np.sqrt(5 / 3), rtol=1e-6)
    np.testing.assert_array_equal(nnx.KNNConv(3, 4, num_slots=5, rngs=rngs()).kernel[...], lecun)


def test_knn_conv_split_merge_and_jit():
    table = make_table()
    layer = nnx.KNNConv(3, 4, table, rngs=rngs())
    x = cases.normal(0, 2, 6, 3)
    y = layer(x)
    graph, state = flax_nnx.split(layer)
    other = flax_nnx.graphdef(nnx.KNNConv(3, 4, table, rngs=rngs()))
    assert graph == other
    assert hash(graph) == hash(other)
    assert graph != flax_nnx.graphdef(nnx.KNNConv(3, 4, make_table(), rngs=rngs()))
    merged = flax_nnx.merge(graph, state)
    assert merged.table is table
    np.testing.assert_array_equal(merged(x), y)
    apply = jax.jit(lambda graph, state, x: flax_nnx.merge(graph, state)(x), static_argnums=0)
    np.testing.assert_allclose(apply(graph, state, x), y, rtol=1e-6, atol=1e-6)
    # How checkpoints are restored: an abstract module, and then the values of its state, which are parameters alone.
    abstract = flax_nnx.eval_shape(lambda: nnx.KNNConv(3, 4, table, rngs=rngs()))
    flax_nnx.update(abstract, state)
    np.testing.assert_array_equal(abstract(x), y)


def test_knn_conv_tables_of_calls_do_not_retrace():
    traces = []

    @flax_nnx.jit
    def apply(layer, x, table):
        traces.append(layer)
        return layer(x, table)

    layer = nnx.KNNConv(1, 1, num_slots=1, kernel_init=flax_nnx.initializers.ones, rngs=rngs())
    for i in range(3):
        assert apply(layer, jnp.arange(3.0)[:, None], jkc.NeighborTable([[i]], num_inputs=3)).item() == i
    assert len(traces) == 1


def test_training_step_of_layers_that_share_a_table():
    class Model(flax_nnx.Module):
        def __init__(self, table, rngs):
            self.first = nnx.KNNConv(2, 3, table, rngs=rngs)
            self.second = nnx.KNNConv(3, 1, table, rngs=rngs)

        def __call__(self, x):
            return self.second(flax_nnx.relu(self.first(x)))

    indices = np.array([[0, 1], [1, 2], [2, -1]])
    table = jkc.NeighborTable(indices, num_inputs=3)
    model = Model(table, rngs())
    optimizer = flax_nnx.Optimizer(model, optax.sgd(0.1), wrt=flax_nnx.Param)
    x, target = cases.normal(0, 4, 3, 2), cases.normal(1, 4, 3, 1)

    @flax_nnx.jit(donate_argnums=(0, 1))
    def step(model, optimizer):
        loss, gradients = flax_nnx.value_and_grad(lambda model: ((model(x) - target) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    losses = [float(step(model, optimizer)) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    # The loss of the trained parameters, by the oracle.
    hidden = np.maximum(cases.oracle.knn_forward(x, model.first.kernel[...], indices, bias=model.first.bias[...]), 0)
    y = cases.oracle.knn_forward(hidden, model.second.kernel[...], indices, bias=model.second.bias[...])
    assert float(step(model, optimizer)) == pytest.approx(((y - np.asarray(target)) ** 2).mean(), rel=1e-5)
    np.testing.assert_array_equal(table.indices, indices)  # not donated with the parameters


def test_knn_conv_one_table_a_sample():
    indices = np.array([[[0, 1], [2, -1]], [[2, 2], [1, 0]]])
    layer = nnx.KNNConv(4, 2, num_slots=2, rngs=rngs())
    x = cases.normal(0, 2, 3, 4)

    @flax_nnx.jit
    def apply(layer, x, indices):
        return layer(x, table=jkc.NeighborTable(indices, num_inputs=3))

    y = apply(layer, x, indices)
    for i in range(2):
        one = cases.oracle.knn_forward(x[i : i + 1], layer.kernel[...], indices[i])
        np.testing.assert_allclose(y[i], one[0], rtol=1e-5, atol=1e-5)


def test_knn_conv_copies_of_a_layer_by_vmap():
    table = make_table()

    @flax_nnx.split_rngs(splits=3)
    @flax_nnx.vmap
    def create(rngs):
        return nnx.KNNConv(3, 4, table, rngs=rngs)

    layers, x = create(rngs()), cases.normal(0, 6, 3)
    assert layers.kernel.shape == (3, 5, 3, 4)
    y = flax_nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(layers, x)
    for i in range(3):
        one = cases.oracle.knn_forward(x[None], layers.kernel[...][i], INDICES, SLOTS)
        np.testing.assert_allclose(y[i], one[0], rtol=1e-5, atol=1e-5)


def test_knn_conv_table_of_the_call_comes_first():
    own, given = (jkc.NeighborTable([[i]], num_inputs=2) for i in (0, 1))
    layer = nnx.KNNConv(1, 1, own, use_bias=False, kernel_init=flax_nnx.initializers.ones, rngs=rngs())
    x = jnp.array([[3.0], [5.0]])
    assert layer.bias is None
    assert layer(x).item() == 3
    assert layer(x, given).item() == 5


def test_knn_conv_parameters_keep_their_metadata():
    layer = nnx.KNNConv(
        3, 4, make_table(), rngs=rngs(), kernel_metadata={"role": "weights"}, bias_metadata={"role": "offsets"}
    )
    assert (layer.kernel.role, layer.bias.role) == ("weights", "offsets")


def test_knn_conv_errors():
    table, x = jkc.NeighborTable([[0, 1]], num_inputs=2), jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"num_slots: got None.*where no table is given"):
        nnx.KNNConv(3, 1, rngs=rngs())
    with pytest.raises(TypeError, match=r"num_slots: got 2.5"):
        nnx.KNNConv(3, 1, num_slots=2.5, rngs=rngs())
    with pytest.raises(ValueError, match=r"num_slots.*got 3, expected 2"):
        nnx.KNNConv(3, 1, table, num_slots=3, rngs=rngs())
    with pytest.raises(TypeError, match="table: got list, expected a NeighborTable"):
        nnx.KNNConv(3, 1, [[0, 1]], rngs=rngs())
    with pytest.raises(ValueError, match="table: got none, neither when the layer was constructed nor in this call"):
        nnx.KNNConv(3, 1, num_slots=2, rngs=rngs())(x)
    with pytest.raises(ValueError, match=r"table: got a traced table.*layer\(x, table=table\)"):
        jax.vmap(lambda table: nnx.KNNConv(3, 1, table, rngs=rngs()))(jkc.NeighborTable([[[0]]], num_inputs=2))
    layer = nnx.KNNConv(3, 1, table, rngs=rngs())
    with pytest.raises(ValueError, match=r"rows.*got 4, expected 2, the table's num_inputs"):
        layer(jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"inputs' channels.*got 2, expected 3, in_features"):
        layer(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match=r"inputs: got shape \(3,\), expected \[\.\.\., N, C_in\]"):
        layer(jnp.ones(3))
    with pytest.raises(ValueError, match=r"table's num_slots.*got 3, expected 2"):
        layer(x, jkc.NeighborTable([[0, 1, 1]], num_inputs=2))
    with pytest.raises(ValueError, match=r"empty_rows.*'skip'"):
        nnx.KNNConv(3, 1, table, empty_rows="skip", rngs=rngs())(x)
