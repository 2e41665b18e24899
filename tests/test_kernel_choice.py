"""What a KernelConfig and an implementation ask of the GPU's handlers: decided and checked without a GPU."""

from __future__ import annotations

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_calls import PASSES, TABLE, W, X, choices, lowered

import jax_knnconv as jkc
from jax_knnconv import _ffi, _kernel_choice
from jax_knnconv._specs import KnnSpec

pytestmark = pytest.mark.usefixtures("modules")


@pytest.mark.parametrize("operation", PASSES)
def test_shapes_decide_where_nothing_is_forced(operation):
    assert choices(operation) == {}
    assert choices(operation, config=jkc.KernelConfig()) == {}


@pytest.mark.parametrize("operation", PASSES)
def test_implementations_name_kernels(operation):
    assert choices(operation, implementation="wmma") == {"kernel": "wmma"}


@pytest.mark.parametrize("operation", PASSES)
def test_tiles_are_the_portable_kernels(operation):
    config = jkc.KernelConfig(bm=64, bn=32)
    assert choices(operation, config=config) == {"kernel": "portable", "tile": [64, 32, -1]}
    assert choices(operation, config=config, implementation="wmma") == {"kernel": "portable", "tile": [64, 32, -1]}


@pytest.mark.parametrize(
    ("operation", "fields", "staging"),
    [
        ("dense_forward", {"vec": False}, 0),
        ("dense_forward", {"vec": False, "async_copy": False}, 0),
        ("dense_forward", {"vec": True}, 1),
        ("knn_dinput", {"async_copy": True}, 1),
        ("knn_dinput", {"async_copy": False}, 2),
        ("knn_dinput", {"async_copy": False, "vec": True}, 2),
        ("knn_dweight", {"async_copy": False}, 2),
        ("knn_dweight", {"async_copy": False, "vec": True}, 2),
        ("knn_backward", {"async_copy": False}, 2),
        ("knn_dweight", {"vec": True}, 1),
    ],
)
def test_staging(operation, fields, staging):
    assert choices(operation, config=jkc.KernelConfig(**fields)) == {"kernel": "portable", "tile": [-1, -1, staging]}


@pytest.mark.parametrize("operation", PASSES)
def test_one_tile_without_asynchronous_copies_serves_all_passes(operation):
    config = jkc.KernelConfig(bm=64, bn=128, async_copy=False)
    assert choices(operation, config=config) == {"kernel": "portable", "tile": [64, 128, 2]}


def test_ksplit_is_of_dweight():
    config = jkc.KernelConfig(ksplit=3)
    for operation in PASSES:
        split = operation.endswith(("dweight", "backward"))
        assert choices(operation, config=config) == ({"kernel": "portable", "ksplit": 3} if split else {})


def test_what_ships_may_be_asked_for():
    same = {"kernel": "portable", "tile": [16, 128, -1]}
    config = jkc.KernelConfig(bm=16, bn=128, bk=64, rb=1, ksteps=2)
    assert choices("knn_forward", config=config) == same


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("dense_forward", {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "bk": 64}),
        ("dense_forward", {"bm": 128, "bn": 32, "wm": 32, "wn": 32}),
        ("knn_forward", {"bm": 16, "bn": 32, "wm": 16, "wn": 16}),
        ("knn_forward", {"bm": 16, "bn": 128, "wm": 16, "wn": 32}),
        ("dense_dinput", {"bm": 64, "bn": 64, "wm": 32, "wn": 32}),
        ("dense_dweight", {"bm": 32, "bn": 128, "wm": 32, "wn": 32, "bk": 64}),
        ("dense_dweight", {"bm": 128, "bn": 32, "wm": 32, "wn": 32, "bk": 64}),
        ("knn_dweight", {"bm": 128, "bn": 64, "wm": 64, "wn": 32, "bk": 32}),
        ("knn_dweight", {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "bk": 64}),
        ("knn_backward", {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "bk": 64}),
    ],
)
def test_parts_of_a_tile_may_stand_beside_it(operation, fields):
    assert choices(operation, config=jkc.KernelConfig(**fields))["tile"] == [fields["bm"], fields["bn"], -1]


def _few(channels, outputs, x_dtype="float16", batch=1):
    """The passes of a dense and a KNN convolution with these channels."""
    image, map_ = jnp.ones((batch, 5, 5, channels), x_dtype), jnp.ones((batch, 5, 5, outputs), "float16")
    rows, g = jnp.ones((batch, 3, channels), x_dtype), jnp.ones((batch, 3, outputs), "float16")
    kernel, weight = jnp.ones((3, 3, channels, outputs), "float16"), jnp.ones((2, channels, outputs), "float16")
    half = {"compute_dtype": "float16"}
    return {
        "dense_forward": lambda **given: jkc.conv2d(image, kernel, **half, **given),
        "dense_dinput": lambda **given: jkc.conv2d_dinput(map_, kernel, image.shape, **given),
        "dense_dweight": lambda **given: jkc.conv2d_dweight(image, map_, (3, 3), **half, **given),
        "knn_forward": lambda **given: jkc.knn_conv(rows, weight, TABLE, **half, **given),
        "knn_dinput": lambda **given: jkc.knn_dinput(g, weight, TABLE, **given),
        "knn_dweight": lambda **given: jkc.knn_dweight(rows, g, TABLE, **half, **given),
    }


@pytest.mark.parametrize("layer", ["dense", "knn"])
@pytest.mark.parametrize(
    ("given", "passes", "reason"),
    [
        ({"channels": 12, "outputs": 8}, ("forward", "dweight"), "C_in = 12 is no multiple of 8"),
        ({"channels": 8, "outputs": 9}, ("forward", "dinput", "dweight"), "C_out = 9 is no multiple of 8"),
        ({"channels": 8, "outputs": 8}, (), None),
    ],
)
def test_tiles_that_copies_cannot_fill(layer, given, passes, reason, monkeypatch):
    calls = _few(**given)
    for name in ("forward", "dinput", "dweight"):
        operation = f"{layer}_{name}"
        monkeypatch.setitem(PASSES, operation, calls[operation])
        ships, ships_not = ((32, 128), (64,)) if name == "dweight" else ((64,), (16, 128))
        if name not in passes:
            ships, ships_not = (*ships, *ships_not), ()
        for rows in ships:
            assert choices(operation, config=jkc.KernelConfig(bm=rows))["tile"] == [rows, -1, -1]
        for rows in ships_not:
            with pytest.raises(ValueError, match=rf"bm: got {rows}, .*which {name} ships .*\({reason}\)"):
                choices(operation, config=jkc.KernelConfig(bm=rows))


def test_tiles_of_cells(monkeypatch):
    config = jkc.KernelConfig(bm=128)
    with pytest.raises(
        ValueError, match=r"expected 64, which dinput ships alone .*\(bfloat16 with a batch of at most 8\)"
    ):
        choices("knn_dinput", config=config)
    tables = jkc.NeighborTable(np.zeros((9, 3, 2), int), num_inputs=3)  # one a sample: a group each, of batch 1
    for batch, dtype, table, ships in (
        (8, "bfloat16", TABLE, False),
        (9, "bfloat16", TABLE, True),
        (9, "bfloat16", tables, False),
        (8, "float16", TABLE, True),
    ):
        g, weight = jnp.ones((batch, 3, 8), dtype), jnp.ones((2, 8, 8), dtype)

        def call(g=g, weight=weight, table=table, **given):
            return jkc.knn_dinput(g, weight, table, **given)

        monkeypatch.setitem(PASSES, "knn_dinput", call)
        if ships:
            assert choices("knn_dinput", config=config)["tile"] == [128, -1, -1]
        else:
            with pytest.raises(ValueError, match="batch of at most 8"):
                choices("knn_dinput", config=config)


@pytest.mark.parametrize(
    ("operation", "shapes", "rows"),
    [
        ("dense_forward", [(2, 5, 5, 8), (3, 3, 8, 8)], 128),
        ("knn_forward", [(2, 5, 8), (3, 8, 8)], 16),
        ("knn_dweight", [(2, 5, 8), (2, 4, 8)], 64),
    ],
)
def test_float32_operands_are_rounded_as_they_are_read(operation, shapes, rows):
    spec = KnnSpec((5,), (4,), (3,), config=jkc.KernelConfig(bm=rows))
    half = [jax.ShapeDtypeStruct(shape, "float16") for shape in shapes]
    found = _kernel_choice.attributes(operation, half, spec, 0, "auto")
    assert found["tile"].tolist() == [rows, -1, -1]
    mixed = [jax.ShapeDtypeStruct(shapes[0], "float32"), half[1]]
    with pytest.raises(ValueError, match=r"\(a float32 operand\)"):
        _kernel_choice.attributes(operation, mixed, spec, 0, "auto")


def test_sizes_without_a_value_may_fit():
    batch, channels = jax.export.symbolic_shape("b, 8 * c")
    spec = KnnSpec((5,), (4,), (3,), config=jkc.KernelConfig(bm=128))
    operands = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((batch, 4, channels), (3, 8, channels))]
    assert _kernel_choice.attributes("knn_dinput", operands, spec, 0, "auto")["tile"].tolist() == [128, -1, -1]


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
    [
        ("dense_forward", {"bm": 32}, "bm: got 32, expected one of 16, 64, 128, which forward ships"),
        ("knn_dinput", {"bn": 16}, "bn: got 16, expected one of 32, 64, 128, which dinput ships"),
        ("dense_dweight", {"bm": 16}, "bm: got 16, expected one of 32, 64, 128, which dweight ships"),
        ("knn_backward", {"bm": 16}, "bm: got 16, expected 64, which dinput ships alone .*batch of at most 8"),
        ("knn_backward", {"bm": 32}, "bm: got 32, expected one of 16, 64, 128, which dinput ships"),
        ("dense_dinput", {"bk": 32}, "bk: got 32, expected 64, which dinput ships alone"),
        ("knn_forward", {"rb": 4}, "rb: got 4, expected 1, which forward ships alone"),
        ("knn_forward", {"ksteps": 3}, "ksteps: got 3, expected 2, which forward ships alone"),
        ("knn_dweight", {"ksteps": 2}, "ksteps: got 2, expected 3, which dweight ships alone"),
        ("knn_forward", {"wm": 32}, "wm: got 32 with bm=None, bn=None, expected both .*wm of forward follows"),
        ("knn_dweight", {"bm": 64, "bk": 32}, "bk: got 32 with bm=64, bn=None, expected both .*bk of dweight follows"),
        ("knn_forward", {"bm": 128, "bn": 128, "wm": 32}, "wm: got 32, expected 64, .* in a tile of bm 128, bn 128"),
        ("dense_dinput", {"bm": 16, "bn": 128, "wn": 64}, "wn: got 64, expected 32, .* in a tile of bm 16, bn 128"),
        ("dense_dweight", {"bm": 32, "bn": 128, "wn": 64}, "wn: got 64, expected 32, .* in a tile of bm 32, bn 128"),
        ("dense_dweight", {"bm": 128, "bn": 64, "bk": 64}, "bk: got 64, expected 32, .* in a tile of bm 128, bn 64"),
        (
            "knn_dweight",
            {"bm": 32, "async_copy": False},
            r"bm: got 32, expected 64, which dweight .*\(async_copy=False\)",
        ),
        (
            "dense_dweight",
            {"bm": 64, "vec": False},
            r"bm: got 64, expected one of 32, 128, .*stages elements \(vec=False\)",
        ),
        ("knn_forward", {"vec": False, "async_copy": True}, "async_copy: got True with vec=False, expected"),
        ("knn_forward", {"kernel": "hopper", "bm": 64}, "bm: got 64 for kernel 'hopper', which has its own"),
        ("knn_dweight", {"kernel": "halo", "ksplit": 2}, "ksplit: got 2 for kernel 'halo', which has its own"),
    ],
)
def test_impossible_configs_raise_where_a_gpu_is_lowered_for(operation, fields, message):
    config = jkc.KernelConfig(**fields)
    with pytest.raises(ValueError, match=message):
        lowered(lambda: PASSES[operation](config=config))


def test_configs_are_not_looked_at_where_nothing_has_tiles(modules):
    modules["cpu"] = _ffi.Backend(None, modules["cuda"].targets, frozenset(["cpu"]), None)
    config = jkc.KernelConfig(bm=32, kernel="halo")
    for options in ({}, {"implementation": "cpu"}, {"implementation": "xla"}):
        text = lowered(lambda options=options: PASSES["knn_forward"](config=config, **options), "cpu")
        assert "tile" not in text
    lowered(lambda: PASSES["knn_forward"](config=config, implementation="xla"))
    single = X.astype("float32"), W.astype("float32")  # "xla" is what "auto" means for them
    lowered(lambda: jkc.knn_conv(*single, TABLE, config=config))


def test_a_kernel_and_an_implementation_must_agree():
    for implementation, kernel in (("wmma", "hopper"), ("hopper", "portable"), ("hopper", "halo")):
        given = {"implementation": implementation, "config": jkc.KernelConfig(kernel=kernel)}
        with pytest.raises(ValueError, match=rf"kernel: got '{kernel}' with implementation='{implementation}'"):
            lowered(functools.partial(PASSES["knn_forward"], **given))
    assert choices("dense_forward", config=jkc.KernelConfig(kernel="halo"), implementation="wmma") == {"kernel": "halo"}
