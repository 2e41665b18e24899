"""Families of a GPU's kernels that fail where others run: lowered for a GPU that is not there, by made-up rules."""

from __future__ import annotations

import functools
import types
import warnings

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from lowered_calls import IMAGE, KERNEL, PASSES, choices, lowered

import jax_knnconv as jkc
from jax_knnconv import _ffi, _smoke


def _allows(wanted, family):
    return wanted in ("", family) or (wanted == "wmma" and family != "hopper")


def _rules(*families, **of_dweight):
    """A module whose rules ask these families in turn, each of which takes every call."""

    def choose(families, *, wanted, **sizes):
        kernel = next(family for family in (*families, "portable") if _allows(wanted[0], family))
        return {"kernel": kernel, "partial_slices": 2}

    return types.SimpleNamespace(
        ffi_version=lambda: (0, 3),
        choose_tap_gemm=functools.partial(choose, families),
        choose_dweight=functools.partial(choose, of_dweight.get("dweight", families)),
    )


@pytest.fixture
def card(modules, monkeypatch):
    """A GPU of compute capability 9.0, which remembers what it was asked; smoke calls come out as `errors` say."""
    found = types.SimpleNamespace(
        platform="gpu", device_kind="a card", compute_capability="9.0", core_count=132, asked=[], errors={}
    )

    def error(operation, device, family=None):
        found.asked.append((operation, family))
        outcome = found.errors.get((device.device_kind, family), found.errors.get(family, 0.0))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [found])
    monkeypatch.setattr(_smoke, "error", error)
    use(modules, "hopper", "halo")
    return found


def use(modules, *families, implementations=("wmma", "hopper"), **of_dweight):
    module = _rules(*families, **of_dweight)
    modules["cuda"] = modules["cuda"]._replace(module=module, implementations=frozenset(implementations))


def told(run):
    """(what a function returns, the messages of its warnings)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run()
    assert all(warning.category is jkc.FallbackWarning for warning in caught)
    return found, [str(warning.message) for warning in caught]


NO_CODE = RuntimeError("tap_gemm.cc:1: cudaFuncSetAttribute(...): no kernel image is available")


@pytest.mark.parametrize("operation", PASSES)
def test_a_family_is_tried_before_its_first_call(operation, card):
    assert choices(operation) == {}
    assert card.asked == [(operation, None), (operation, "hopper")]
    assert choices(operation) == {}
    assert len(card.asked) == 2


def test_a_family_that_no_shape_chooses_is_not_tried(modules, card):
    use(modules)
    for operation in PASSES:
        assert choices(operation) == {}
    assert card.asked == [(operation, None) for operation in PASSES]


@pytest.mark.parametrize("outcome", [NO_CODE, 0.5, float("nan")], ids=["raises", "wrong", "nan"])
def test_where_hopper_fails_other_kernels_run(outcome, card):
    card.errors["hopper"] = outcome
    found, messages = told(lambda: [choices(operation) for operation in PASSES])
    assert found == [{"kernel": "wmma"}] * len(PASSES)
    (message,) = messages
    reason = "no kernel image is available" if outcome is NO_CODE else f"wrong by {outcome}"
    assert f"the 'hopper' kernels of {next(iter(PASSES))} cannot run on cuda: its smoke call" in message
    assert reason in message
    assert "Using other tensor-core kernels instead" in message


def test_where_both_fail_the_portable_kernels_run(card):
    card.errors.update(hopper=NO_CODE, halo=NO_CODE)
    found, messages = told(lambda: [choices(operation) for operation in PASSES])
    assert found == [{"kernel": "portable"}] * len(PASSES)
    assert len(messages) == 2
    # Asked for all but Hopper's, a call is not left to them either.
    found, messages = told(lambda: choices("dense_forward", implementation="wmma"))
    assert (found, messages) == ({"kernel": "portable"}, [])


def test_where_all_fail_pure_jax_runs(card):
    card.errors[None] = NO_CODE
    text, messages = told(lambda: lowered(PASSES["dense_forward"]))
    assert "jax_knnconv_" not in text
    assert len(messages) == 1
    assert card.asked == [("dense_forward", None)]


def test_what_a_config_names_must_run(card):
    card.errors["hopper"] = NO_CODE
    message = r"kernel: got 'hopper', which cannot run knn_forward here \(its smoke call failed: .*no kernel image"
    with pytest.raises(ValueError, match=message):
        choices("knn_forward", config=jkc.KernelConfig(kernel="hopper"))
    assert choices("knn_forward", config=jkc.KernelConfig(kernel="halo")) == {"kernel": "halo"}
    tile = {"kernel": "portable", "tile": [64, 32, -1]}
    assert choices("knn_forward", config=jkc.KernelConfig(bm=64, bn=32)) == tile


def test_an_implementation_that_cannot_run_is_left_to_pure_jax(card):
    card.errors["hopper"] = NO_CODE
    text, messages = told(lambda: lowered(lambda: PASSES["knn_forward"](implementation="hopper")))
    assert "jax_knnconv_" not in text
    (message,) = messages
    assert "the compiled knn_forward cannot run on cuda: the 'hopper' kernels: its smoke call failed" in message


def test_a_family_that_works_again_is_used_again(card):
    card.errors["hopper"] = NO_CODE
    assert told(lambda: choices("knn_forward"))[0] == {"kernel": "wmma"}
    jax.clear_caches()
    del card.errors["hopper"]
    assert choices("knn_forward") == {}
    card.errors["hopper"] = NO_CODE
    _, messages = told(lambda: choices("knn_dinput"))  # told again: it had worked in between
    assert len(messages) == 1


def test_both_gradients_of_one_call_count(modules, card):
    use(modules, "hopper", dweight=("halo",))
    card.errors["halo"] = NO_CODE
    found, messages = told(lambda: choices("knn_backward"))
    assert found == {"kernel": "portable"}
    assert len(messages) == 1
    use(modules, dweight=("hopper",))
    card.errors = {"hopper": NO_CODE}
    assert told(lambda: choices("knn_backward"))[0] == {"kernel": "wmma"}


def test_one_kind_of_gpu_that_fails_counts_for_all(card, monkeypatch):
    other = types.SimpleNamespace(**{**vars(card), "device_kind": "another card"})
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [card, other])
    card.errors[("another card", "hopper")] = 2.0
    assert told(lambda: choices("dense_dinput"))[0] == {"kernel": "wmma"}


@pytest.mark.parametrize(
    ("capability", "implementations", "tried"),
    [
        ("9.0", ("wmma", "hopper"), {"hopper", "halo"}),
        ("9.0", ("wmma",), {"halo"}),
        ("8.0", ("wmma", "hopper"), {"halo"}),
    ],
)
def test_sizes_without_a_value_may_choose_any_family(capability, implementations, tried, modules, card):
    use(modules, implementations=implementations)  # whose rules are not asked
    card.compute_capability = capability
    (batch,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, *IMAGE.shape[1:]), IMAGE.dtype)

    def exported(**given):
        checks = [jax.export.DisabledSafetyCheck.custom_call(_ffi.target_name("dense_forward"))]
        function = jax.jit(lambda x: jkc.conv2d(x, KERNEL, **given))
        return jax.export.export(function, platforms=["cuda"], disabled_checks=checks)(shape).mlir_module()

    assert "kernel = " not in exported()
    assert set(card.asked) == {("dense_forward", family) for family in (None, *tried)}
    card.asked.clear()
    exported(config=jkc.KernelConfig(kernel="portable"))
    assert card.asked == []


@pytest.mark.parametrize("operation", sorted(PASSES))
def test_what_the_gpu_here_cannot_do_raises_where_it_is_lowered_for(operation, modules, card):
    def refuse(**sizes):
        raise ValueError("the tile fits into the device's shared memory")

    module = types.SimpleNamespace(choose_tap_gemm=refuse, choose_dweight=refuse)
    modules["cuda"] = modules["cuda"]._replace(module=module)
    lowered(PASSES[operation])  # nothing is forced
    message = r"KernelConfig: got kernel=portable, .* on 132 multiprocessors of compute capability 9.0 .*fits into"
    with pytest.raises(ValueError, match=message):
        lowered(lambda: PASSES[operation](config=jkc.KernelConfig(bn=64)))


@pytest.mark.parametrize("given", [{"implementation": "hopper"}, {"config": jkc.KernelConfig(kernel="hopper")}])
def test_hopper_falls_back_with_one_warning_where_the_module_has_none(given, modules, card):
    use(modules, implementations=("wmma",))
    text, messages = told(lambda: lowered(lambda: [PASSES[o](**given) for o in ("knn_forward", "dense_dinput")]))
    assert "jax_knnconv_" not in text
    (message,) = messages
    assert "built without the 'hopper' kernels" in message
    use(modules, "hopper")
    assert told(lambda: choices("knn_dweight", **given)) == ({"kernel": "hopper"}, [])


def test_doctor_shows_families(card):
    card.errors["hopper"] = 0.25
    report = jkc.doctor()
    of_gpu = [check for check in report.checks if check.platform == "cuda"]
    assert {check.kernel for check in of_gpu} == {None, "halo", "hopper"}
    for operation in set(_ffi.TARGETS):
        families = [check.kernel for check in of_gpu if check.target == _ffi.target_name(operation)]
        assert families == ([None] if operation == "cast_operands" else [None, "hopper", "halo"])
    assert not report.ok
    assert all(check.ok == (check.kernel != "hopper") for check in of_gpu)
    lines = [line.split() for line in str(report).splitlines() if "knn_dinput" in line and line.startswith("cuda")]
    assert [line[2] for line in lines] == ["ok", "hopper", "halo"]
    assert "NOT USED, other kernels instead: wrong by 0.25" in str(report)


def test_expected_values_of_smoke_calls():
    """Counts by hand, in the smallest and the largest call."""
    call = _smoke._call("knn_backward", "gpu", "hopper")
    dx, dw, db = call.expected
    np.testing.assert_array_equal(dx[5], np.repeat([[128], [64]], 64, 1))
    np.testing.assert_array_equal(dw, np.stack([np.full((64, 64), 128), np.full((64, 64), 64)]))
    np.testing.assert_array_equal(db, np.full(64, 128))
    assert call.attributes["kernel"] == "hopper"
    (_, tiles), (target, stem) = _smoke._calls("knn_dinput", "gpu", "hopper")
    assert (target, stem.attributes["kernel"]) == ("knn_dinput", tiles.attributes["kernel"])
    np.testing.assert_array_equal(stem.expected[0], np.repeat([[[16] * 3, [8] * 3]], 2, 0))
    (y,) = _smoke._call("dense_forward", "cpu", None).expected
    np.testing.assert_array_equal(y[0, :, :, 0], [[5, 7, 5], [7, 10, 7], [5, 7, 5]])
    assert jnp.float16(65504) == _smoke._call("cast_operands", "gpu", None).expected[0][0]
