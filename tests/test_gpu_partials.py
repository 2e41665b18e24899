"""The room that a GPU's dweight asks for: enough for its smallest split, bounded, and no more than its kernel uses."""

import importlib.util
import re
import types

import jax
import lowered_calls
import numpy as np
import pytest
import toolchains

import jax_knnconv as jkc
from jax_knnconv import _ffi, _readiness, _rules, _smoke, _workspace

MIB = 1 << 20
# Elements of a slice, of dw and db, of the calls of lowered_calls.
SLICES = {"dense_dweight": 9 * 8 * 8 + 8, "knn_dweight": 2 * 8 * 8 + 8, "knn_backward": 2 * 8 * 8 + 8}


@pytest.mark.parametrize("groups", [(), (1,), (3, 5), (1000,)])
@pytest.mark.parametrize(
    ("weight", "columns"), [(0, 8), (1, 1), (27 * 32, 32), (9 * 64 * 64, 64), (9 * 512 * 512, 512)]
)
def test_room_for_a_slice_of_each_group_and_db(weight, columns, groups):
    slices, one = _workspace.partial_sums(weight, columns, groups, platform="cuda").shape
    count = int(np.prod(groups, initial=1))
    assert one == weight + columns
    assert slices >= 2 * count
    # Beyond the least, all groups together stay within the budget.
    assert (slices - 2 * count) * one * 4 <= 32 * MIB


def test_room_on_the_cpu_does_not_depend_on_groups():
    alone = _workspace.partial_sums(9 * 64 * 64, 64, (), platform="cpu")
    assert _workspace.partial_sums(9 * 64 * 64, 64, (7,), platform="cpu") == alone
    assert alone.shape == (56, 9 * 64 * 64 + 64)  # 2^21 elements in all


@pytest.fixture
def cards(monkeypatch):
    """GPUs to lower for, with a module whose weight gradients need a slice for every 10 multiprocessors."""

    def choose_dweight(*, device, **sizes):
        return {"partial_slices": device[0] // 10}

    module = types.SimpleNamespace(choose_dweight=choose_dweight)
    targets = frozenset(map(_ffi.target_name, _ffi.TARGETS))
    monkeypatch.setattr(_ffi, "_loaded", {"cuda": _ffi.Backend(module, targets, frozenset(["wmma"]), None)})
    monkeypatch.setattr(_smoke, "run", lambda operation, device, family=None: None)
    monkeypatch.setattr(_readiness, "_proven", set())
    found = []
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: found)
    return found


def card(multiprocessors, kind="a card"):
    return types.SimpleNamespace(device_kind=kind, compute_capability="9.0", core_count=multiprocessors)


def slices_of(operation):
    """Slices of partial sums in the program of one call."""
    (slices,) = re.findall(rf"tensor<(\d+)x{SLICES[operation]}xf32>", lowered_calls.call_line(operation))
    return int(slices)


@pytest.mark.parametrize("operation", SLICES)
def test_room_is_what_the_gpus_here_need(operation, cards):
    most = 1025
    assert slices_of(operation) == most  # for a machine that is not here
    cards.append(card(132))
    assert slices_of(operation) == 13
    cards.append(card(160, "another card"))
    assert slices_of(operation) == 16
    cards.append(types.SimpleNamespace(device_kind="a card that tells nothing"))
    assert slices_of(operation) == most


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def image(batch, size, channels, outputs, kernel=3):
    x, g = struct(batch, size, size, channels), struct(batch, size, size, outputs)
    return lambda **given: jkc.default_config(jkc.conv2d_dweight, x, g, (kernel, kernel), **given)


def rows(batch, nodes, neighbours, channels, outputs, slots=None, **options):
    indices = np.zeros((nodes, neighbours), np.int32)
    table = jkc.NeighborTable(indices, None if slots is None else indices, num_inputs=nodes, num_slots=slots)
    x, g = struct(batch, nodes, channels), struct(batch, nodes, outputs)
    return lambda **given: jkc.default_config(jkc.knn_dweight, x, g, table, **options, **given)


def groups(count):
    x, g = struct(count, 4, 16, 16, 24), struct(count, 4, 16, 16, 40)

    def ask(config=None, **device):
        each = jax.vmap(lambda x, g: jkc.conv2d_dweight(x, g, (3, 3), config=config))
        return jkc.default_config(each, x, g, **device)

    return ask


ASKED = {
    "3 channels": image(256, 32, 3, 32),
    "32 channels": image(256, 32, 32, 32),
    "64 channels": image(256, 16, 64, 64),
    "512 channels": image(128, 7, 512, 512),
    "odd channels": image(3, 9, 13, 72),
    "one tap": image(64, 14, 256, 64, kernel=1),
    "one image": image(1, 200, 16, 16),
    "empty": image(0, 8, 16, 16),
    "groups": groups(5),
    "table": rows(128, 230, 9, 64, 64),
    "slots": rows(128, 230, 9, 64, 64, slots=5),
    "stem": rows(128, 400, 9, 3, 96),
    "points": rows(1, 20000, 27, 64, 64),
    "empty rows": rows(20, 900, 9, 24, 40, empty_rows="zero"),
}


@pytest.fixture
def decide(monkeypatch):
    """Asks for a case with so much room, or with what `partial_sums` gives; returns (config, what rules say, room)."""
    built = importlib.util.find_spec("jax_knnconv._cuda") is not None
    toolchains.need("cuda", built, "the CUDA module (JAX_KNNCONV_CUDA=on)")
    choose, partial_sums = _rules.choose, _rules.partial_sums

    def asked(case, slices=None, **given):
        told, room = [], []

        def sums(*arguments, **options):
            most, one = partial_sums(*arguments, **options).shape
            room.append(most if slices is None else slices)
            return struct(room[-1], one, dtype="float32")

        monkeypatch.setattr(_rules, "choose", lambda *arguments: told.append(choose(*arguments)) or told[-1])
        monkeypatch.setattr(_rules, "partial_sums", sums)
        return ASKED[case](**given), told[-1], room[-1]

    return asked


@pytest.mark.parametrize("multiprocessors", [132, 20])
@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
@pytest.mark.parametrize("config", [None, jkc.KernelConfig(kernel="portable"), jkc.KernelConfig(ksplit=2)])
@pytest.mark.parametrize("case", ASKED)
def test_a_decision_is_the_same_with_the_room_that_it_needs(case, config, capability, multiprocessors, decide):
    given = {"config": config, "multiprocessors": multiprocessors, "compute_capability": capability}
    found, told, most = decide(case, **given)
    needed = told["partial_slices"]
    assert 2 <= needed <= most
    assert needed >= told.get("slices", 1)
    assert decide(case, needed, **given) == (found, told, needed)


def test_blocks_that_each_hold_all_of_dw_need_a_slice_each(decide):
    for case, capability in (("3 channels", (8, 0)), ("32 channels", (9, 0)), ("32 channels", (8, 0))):
        _, told, most = decide(case, multiprocessors=132, compute_capability=capability)
        assert told["kernel"] in ("halo", "hopper")
        resident = 4 if case == "3 channels" else 3 if told["kernel"] == "halo" else 1  # blocks of a multiprocessor
        # db is one slice more, or, on Hopper, eight rows of 32 columns in every slice of 9216 + 32.
        room = -(-132 * (9216 + 8 * 32) // 9248) if told["kernel"] == "hopper" else resident * 132 + 1
        assert 132 <= told["partial_slices"] <= room
        assert most > 900
