"""`default_config`: what docs/handlers.md says of which kernel runs, asked of the CUDA module without a GPU."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toolchains

import jax_knnconv as jkc
from jax_knnconv import _ffi, _smoke
from jax_knnconv._workspace import dinput_workspace

A100 = {"multiprocessors": 108, "compute_capability": (8, 0)}
T4 = {"multiprocessors": 40, "compute_capability": (7, 5)}
PORTABLE = {"config": jkc.KernelConfig(kernel="portable")}


@pytest.fixture
def cuda():
    """The module's name for the kernels that its architectures leave out."""
    built = importlib.util.find_spec("jax_knnconv._cuda") is not None
    toolchains.need("cuda", built, "the CUDA module (JAX_KNNCONV_CUDA=on)")
    return _ffi.load_backend("cuda")


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def table(sources, rows, neighbours, slots=None):
    indices = np.zeros((rows, neighbours), np.int32)
    return jkc.NeighborTable(indices, None if slots is None else indices, num_inputs=sources, num_slots=slots)


def image(batch, size, channels, outputs, kernel=3):
    """Operands of the three dense passes."""
    x, g = struct(batch, size, size, channels), struct(batch, size, size, outputs)
    weight = struct(kernel, kernel, channels, outputs)
    return {
        jkc.conv2d: (x, weight),
        jkc.conv2d_dinput: (g, weight, x.shape),
        jkc.conv2d_dweight: (x, g, (kernel, kernel)),
    }


def rows(batch, taps, channels, outputs):
    """Operands of the three passes over a table."""
    x, g = struct(batch, taps.num_inputs, channels), struct(batch, taps.num_outputs, outputs)
    weight = struct(taps.num_slots, channels, outputs)
    return {jkc.knn_conv: (x, weight, taps), jkc.knn_dinput: (g, weight, taps), jkc.knn_dweight: (x, g, taps)}


def kernels(calls, **device):
    return [jkc.default_config(operation, *operands, **device).kernel for operation, operands in calls.items()]


def test_few_channels_run_on_halo_kernels(cuda):
    best = "hopper" if "hopper" in cuda.implementations else "halo"
    assert kernels(image(256, 32, 32, 32)) == [best] * 3
    assert kernels(image(256, 16, 32, 64)) == [best] * 3
    assert kernels(image(256, 32, 3, 32)) == [best] * 3
    assert kernels(image(256, 32, 32, 32), **A100) == ["halo"] * 3
    assert kernels(image(256, 32, 32, 32, kernel=1)) == ["portable"] * 3
    assert kernels(image(256, 8, 32, 32)) == ["portable"] * 3  # a tile has less than 128 pixels


def test_hopper_runs_where_channels_are_many_and_its_architecture_is_there(cuda):
    best = "hopper" if "hopper" in cuda.implementations else "portable"
    assert kernels(image(256, 16, 64, 64)) == [best] * 3
    assert kernels(image(256, 16, 64, 64), **A100) == ["portable"] * 3
    assert kernels(image(256, 16, 60, 60)) == [best] * 3  # as 64
    assert kernels(image(8, 16, 60, 60)) == ["portable"] * 3  # no multiple of 8, and too few to round them up
    assert kernels(rows(128, table(60, 60, 9), 64, 64)) == [best] * 3
    assert kernels(rows(128, table(60, 60, 9, 5), 64, 64)) == [best] * 3


def test_small_batches_add_cells(cuda):
    best = "hopper" if "hopper" in cuda.implementations else "portable"
    _, dinput, _ = rows(1, table(5000, 5000, 27), 64, 64).items()
    assert jkc.default_config(dinput[0], *dinput[1]).kernel == best
    found = jkc.default_config(dinput[0], *dinput[1], **A100)
    assert (found.kernel, found.bm, found.bn, found.async_copy) == ("portable", 64, 64, True)


def test_small_batches_gather_rows_for_weight_gradients(cuda):
    best = "hopper" if "hopper" in cuda.implementations else "portable"

    def kernel(batch, channels, outputs, slots=None):
        operands = rows(batch, table(5000, 5000, 27, slots), channels, outputs)[jkc.knn_dweight]
        return jkc.default_config(jkc.knn_dweight, *operands).kernel

    assert [kernel(batch, 64, 64) for batch in (1, 10, 31)] == [best] * 3
    assert kernel(1, 256, 256) == best
    assert kernel(1, 256, 256, slots=27) == best
    assert kernel(1, 48, 64) == "portable"  # boxes of 64 are not full
    assert kernel(1, 72, 72) == "portable"  # 4 boxes for little more than one


def test_groups_run_on_hopper(cuda):
    best = "hopper" if "hopper" in cuda.implementations else "portable"
    indices = np.zeros((16, 4096, 16), np.int32)
    assert kernels(rows(16, jkc.NeighborTable(indices, num_inputs=4096), 64, 64)) == [best] * 3
    with_slots = jkc.NeighborTable(indices[:, :, :9], indices[:, :, :9], num_inputs=4096, num_slots=9)
    assert kernels(rows(16, with_slots, 64, 64)) == [best] * 3
    # Each weight's images, and each image's gradient, where its pixels are a multiple of 64.
    x, weight = struct(8, 4, 16, 16, 64), struct(8, 3, 3, 64, 64)
    assert kernels({jax.vmap(jkc.conv2d): (x, weight)}) == [best]
    for size, kernel in ((16, best), (7, "portable")):
        x = struct(8, 1, size, size, 64)
        gradient = jax.vmap(lambda x, g: jkc.conv2d_dweight(x, g, (3, 3)))
        assert kernels({gradient: (x, x)}) == [kernel]


def test_stems_of_tables(cuda):
    calls = rows(128, table(400, 300, 9), 3, 96)
    forward, dinput, dweight = (calls[operation] for operation in (jkc.knn_conv, jkc.knn_dinput, jkc.knn_dweight))
    assert jkc.default_config(jkc.knn_conv, *forward).kernel == "halo"
    hopper = "hopper" if "hopper" in cuda.implementations else "halo"
    assert jkc.default_config(jkc.knn_dinput, *dinput).kernel == hopper
    assert jkc.default_config(jkc.knn_dinput, *dinput, config=jkc.KernelConfig(kernel="halo")).kernel == "halo"
    assert jkc.default_config(jkc.knn_dinput, *dinput, **A100).kernel == "halo"
    assert jkc.default_config(jkc.knn_dweight, *dweight).kernel == "halo"
    # db then counts some rows only, which the stem's kernel does not.
    assert jkc.default_config(jkc.knn_dweight, *dweight, empty_rows="zero").kernel == "portable"


@pytest.mark.parametrize("slots", [None, 49])
def test_stems_of_small_batches_have_room_for_their_order(slots, cuda):
    """A sample is a block's; a quarter of the multiprocessors is what decides."""

    def kernel(batch, taps, **device):
        g, weight = struct(batch, taps.num_outputs, 64), struct(taps.num_slots, 3, 64)
        return jkc.default_config(jkc.knn_dinput, g, weight, taps, **device).kernel

    hopper = "hopper" if "hopper" in cuda.implementations else "halo"
    for taps in table(4085, 964, 49, slots), table(4085, 964, 121, slots and 121), table(130, 128, 9, slots and 9):
        assert [kernel(batch, taps) for batch in (32, 33, 54, 128)] == ["portable", hopper, hopper, hopper]
        assert [kernel(batch, taps, **A100) for batch in (26, 27)] == ["portable", "halo"]
        small = {"compute_capability": (8, 9), "multiprocessors": 128}
        assert kernel(200, taps, **small) == ("halo" if taps.num_outputs == 128 else "portable")


def dinput_room(g, weight):
    """Elements of workspace that dinput over a table of four taps gets."""
    order = struct(3, 2, dtype="int32"), struct(4, dtype="int32"), struct(4, dtype="int32")
    return dinput_workspace(g, weight, *order, rank=0, platform="cuda", fixed=2).shape[0]


@pytest.mark.parametrize("family", ["halo", "hopper"])
def test_smoke_calls_are_ones_that_their_family_takes(family, cuda):
    if family == "hopper" and family not in cuda.implementations:
        pytest.skip("a module without Hopper's kernels")
    batch, channels, outputs, dtype, packed, _ = _smoke._GPU[family]
    taps = table(2, 2, 2)
    x, g = struct(batch, 3, 3, channels, dtype=dtype), struct(batch, 3, 3, outputs, dtype=dtype)
    rows, row_g = struct(batch, 2, channels, dtype=dtype), struct(batch, 2, outputs, dtype=dtype)
    kernel, weight = (struct(*size, channels, outputs, dtype=dtype) for size in ((3, 3), (2,)))
    forced = {"config": jkc.KernelConfig(kernel=family), "preferred_element_type": "float32"}
    calls = {
        jkc.conv2d: (x, kernel),
        jkc.conv2d_dinput: (g, kernel, x.shape),
        jkc.conv2d_dweight: (x, g, (3, 3)),
        jkc.knn_conv: (rows, weight, taps),
        jkc.knn_dinput: (row_g, weight, taps),
        jkc.knn_dweight: (rows, row_g, taps),
    }
    for operation, operands in calls.items():
        assert jkc.default_config(operation, *operands, **forced).kernel == family
    assert packed >= dinput_room(row_g, weight)


def test_smoke_call_of_hoppers_stems(cuda):
    """Of 3 channels, which Hopper's other kernels do not take."""
    if "hopper" not in cuda.implementations:
        pytest.skip("a module without Hopper's kernels")
    batch, channels, outputs, dtype, packed, _ = _smoke._HOPPER_STEM
    g, weight = struct(batch, 2, outputs, dtype=dtype), struct(2, channels, outputs, dtype=dtype)
    forced = {"config": jkc.KernelConfig(kernel="hopper"), "preferred_element_type": "float32"}
    assert jkc.default_config(jkc.knn_dinput, g, weight, table(2, 2, 2), **forced).kernel == "hopper"
    assert packed >= dinput_room(g, weight)
    with pytest.raises(ValueError, match='kernel="hopper" does not take'):
        jkc.default_config(jkc.knn_dinput, g, struct(2, 2, outputs, dtype=dtype), table(2, 2, 2), **forced)


@pytest.mark.parametrize(
    ("outputs", "columns"), [(8, 32), (24, 32), (32, 32), (40, 64), (64, 64), (96, 128), (256, 128)]
)
def test_widths_of_tiles(outputs, columns, cuda):
    calls = image(256, 16, 64, outputs)
    for operation in (jkc.conv2d, jkc.conv2d_dweight):
        assert jkc.default_config(operation, *calls[operation], **PORTABLE).bn == columns


def test_27_rows_of_a_weight_gradient_take_a_tile_of_32(cuda):
    operands = image(256, 32, 3, 64)[jkc.conv2d_dweight]
    found = jkc.default_config(jkc.conv2d_dweight, *operands, **PORTABLE)
    assert (found.bm, found.bn, found.vec) == (32, 64, True)  # g is read 16 bytes at a time


def test_staging(cuda):
    def staging(channels, outputs, dtype="bfloat16"):
        x, weight = struct(16, 16, 16, channels, dtype=dtype), struct(3, 3, channels, outputs)
        found = jkc.default_config(jkc.conv2d, x, weight, compute_dtype="bfloat16", **PORTABLE)
        return found.vec, found.async_copy, found.bm

    assert staging(64, 64) == (True, True, 64)  # 32 tiles of 128 rows would leave multiprocessors idle
    assert staging(3, 5) == (False, False, 64)
    assert staging(3, 64) == (True, False, 64)  # the weights


def test_staging_of_weight_gradients(cuda):
    def staging(channels, outputs, **given):
        operands = image(4, 16, channels, outputs)[jkc.conv2d_dweight]
        found = jkc.default_config(jkc.conv2d_dweight, *operands, config=jkc.KernelConfig(kernel="portable", **given))
        return found.vec, found.async_copy, found.bm

    assert staging(64, 64) == (True, True, 128)
    assert staging(64, 64, async_copy=False) == (True, False, 64)
    assert staging(64, 64, vec=False) == (False, False, 128)
    assert staging(64, 63, async_copy=False) == (False, False, 128)
    assert staging(3, 64, async_copy=False) == (False, False, 32)  # g, too, goes by elements


def test_a_weight_gradient_is_split_until_the_device_is_full(cuda):
    few = image(256, 32, 64, 64)[jkc.conv2d_dweight]
    found = jkc.default_config(jkc.conv2d_dweight, *few, **PORTABLE)
    tiles = -(-9 * 64 // found.bm) * -(-64 // found.bn)
    assert found.ksplit > 1
    assert found.ksplit * tiles >= 132
    many = image(1, 8, 512, 512)[jkc.conv2d_dweight]
    assert jkc.default_config(jkc.conv2d_dweight, *many, **PORTABLE).ksplit == 1
    given = jkc.KernelConfig(kernel="portable", ksplit=5)
    assert jkc.default_config(jkc.conv2d_dweight, *few, config=given).ksplit == 5


@pytest.mark.parametrize("device", [{}, A100], ids=["H200", "A100"])
def test_what_is_chosen_may_be_forced(device, cuda):
    cases = [image(256, 32, 3, 32), image(64, 16, 64, 64), image(3, 9, 13, 72)]
    cases += [rows(batch, table(60, 50, 9, slots), 24, 40) for batch in (1, 20, 128) for slots in (None, 5)]
    cases += [rows(1, table(900, 900, 27), 64, 64), rows(128, table(400, 300, 9), 3, 96)]
    for calls in cases:
        for operation, operands in calls.items():
            for given in ({}, PORTABLE):
                found = jkc.default_config(operation, *operands, **given, **device)
                assert jkc.default_config(operation, *operands, config=found, **device) == found


@pytest.mark.parametrize("device", [{}, A100], ids=["H200", "A100"])
def test_mapped_axes_without_entries(device, cuda):
    calls = [image(4, 32, *channels) for channels in ((3, 32), (8, 8), (32, 32))]
    calls.append(rows(128, table(400, 300, 9), 3, 96))
    for operation, operands in (item for one in calls for item in one.items()):
        first, second, *given = operands
        mapped = jax.vmap(lambda a, b, operation=operation, given=given: operation(a, b, *given))
        none = [struct(0, *operand.shape) for operand in (first, second)]
        assert jkc.default_config(mapped, *none, **device).kernel == "portable"


def test_functions_and_arrays(cuda):
    x, weight = jnp.zeros((2, 8, 16, 16, 64), "float16"), np.zeros((3, 3, 64, 64), np.float16)
    found = jkc.default_config(jax.vmap(lambda x: jkc.conv2d(x, weight, config=PORTABLE["config"])), x)
    # Groups fill the device with tiles of 128 rows as a batch does.
    assert (found.kernel, found.bm, found.bn) == ("portable", 64, 64)
    bias = jnp.zeros(64)
    assert jkc.default_config(jkc.conv2d, x[0], weight, bias, stride=2, **PORTABLE).bm == 64


X, W = struct(4, 8, 8, 8), struct(3, 3, 8, 8)
SINGLE = [jax.ShapeDtypeStruct(operand.shape, "float32") for operand in (X, W)]
BACKWARD = struct(4, 3, 8), struct(4, 5, 8), struct(2, 8, 8), table(5, 3, 2)
ERRORS = {
    "two passes": (jkc.knn_backward, BACKWARD, {}, "operation: got .*knn_backward, expected .*one pass once"),
    "no pass": (jnp.sin, (X,), {}, "operation: .*got calls of none"),
    "float32": (jkc.conv2d, SINGLE, {}, "operands: .*float16 or bfloat16"),
    "xla": (jkc.conv2d, (X, W), {"implementation": "xla"}, "implementation: got 'xla', expected"),
    "capability": (jkc.conv2d, (X, W), {"compute_capability": (6, 1)}, r"shared_bytes: .*\(6, 1\)"),
    "no multiprocessors": (jkc.conv2d, (X, W), {"multiprocessors": 0}, "multiprocessors: got 0, expected at least 1"),
    "too many": (jkc.conv2d, (X, W), {"multiprocessors": 2**15}, "multiprocessors: got 32768, expected at most 32767"),
    "window": (
        jkc.conv2d,
        (X, struct(5, 5, 8, 8)),
        {"dilation": 2**31 - 1},
        r"operands: got .*windows that reach less than 2\*\*29 pixels, got dilation 2147483647 along H.*expected what",
    ),
    "size": (
        jkc.conv2d,
        (struct(2**31, 8, 8, 8), W),
        {},
        r"operands: got .*too large, expected ints less than 2\*\*31",
    ),
    "tile": (jkc.conv2d, (X, W), {"config": jkc.KernelConfig(bm=32)}, "bm: got 32, expected one of 16, 64, 128"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case, cuda):
    operation, operands, options, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        jkc.default_config(operation, *operands, **options)


def test_what_a_device_cannot_do(cuda):
    for device, config, message in (
        (A100, jkc.KernelConfig(kernel="hopper"), r'compute capability 8.0 .*kernel="hopper" does not take this call'),
        (T4, None, "compute capability 7.5 .*products of bfloat16"),
        ({}, jkc.KernelConfig(kernel="halo"), 'kernel="halo" does not take'),
    ):
        with pytest.raises(ValueError, match=message):
            jkc.default_config(jkc.conv2d, struct(4, 8, 8, 264), struct(7, 7, 264, 8), config=config, **device)
    # Three stages of 64 positions by 2 * 136 elements are 102 KB, more than compute capability 8.9 has.
    operands = image(16, 16, 128, 128)[jkc.conv2d_dweight]
    large = {"config": jkc.KernelConfig(bm=128, bn=128)}
    assert jkc.default_config(jkc.conv2d_dweight, *operands, **large, **A100).bn == 128
    with pytest.raises(
        ValueError, match=r"got kernel=portable, bm=128, bn=128, .*: the tile fits into the device's shared memory"
    ):
        jkc.default_config(jkc.conv2d_dweight, *operands, **large, compute_capability=(8, 9))
    smaller = jkc.default_config(jkc.conv2d_dweight, *operands, **PORTABLE, compute_capability=(8, 9))
    assert (smaller.bm, smaller.bn) == (128, 64)
    with pytest.raises(
        ValueError, match=r"got kernel=portable, ksplit=10000, .*: partials have room for a slice of each group"
    ):
        jkc.default_config(jkc.conv2d_dweight, *operands, config=jkc.KernelConfig(ksplit=10000))


def test_without_the_module_there_are_no_rules(monkeypatch):
    absent = _ffi.Backend(None, frozenset(), frozenset(), "it was not built")
    monkeypatch.setattr(_ffi, "load_backend", lambda platform: absent)
    with pytest.raises(RuntimeError, match="default_config asks the CUDA module for its rules: it was not built"):
        jkc.default_config(jkc.conv2d, X, W)
