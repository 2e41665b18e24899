"""The GPU kernels' sources on the CPU, as plain C++ under AddressSanitizer: right over small ragged shapes.

And each of the deliberate faults of lib/gpu/fault.h is seen. The programs are in tests/gpu/emulation.
"""

from __future__ import annotations

import pathlib

import pytest
import toolchains

CHECKS = (
    "check_cast",
    "check_dweight",
    "check_dweight_rules",
    "check_fragments",
    "check_gather_rules",
    "check_halo",
    "check_hopper_schedule",
    "check_hopper_strips",
    "check_rules",
    "check_tap_gemm",
    "check_tap_parts",
    "check_tile_rules",
    "check_tile_sorter",
)
AMD_FORMS = ("gfx9", "gfx11", "gfx12")
# Without optimization: compiling it costs more than it saves.
SANITIZED = "FLAGS=-O0 -fsanitize=address"
FAULTS = {
    "kFminf": "check_cast",
    "kClippedInputs": "check_cast",
    "kCastBoundary": "check_cast",
    "kDroppedBarrier": "check_tap_gemm",
    "kWrongResidue": "check_tap_gemm",
}


def build(folder: pathlib.Path, check: str, *variables: str) -> pathlib.Path:
    toolchains.need_programs("emulation", "g++", "make")
    emulation = toolchains.ROOT / "tests" / "gpu" / "emulation"
    toolchains.check(["make", "-C", emulation, f"BUILD={folder}", f"CHECKS={check}", *variables])
    return folder / check


@pytest.mark.parametrize("check", CHECKS)
def test_kernels_are_right_and_stay_in_bounds(check, tmp_path):
    program = build(tmp_path, check, SANITIZED)
    assert toolchains.check([program]) == "0 failures\n"


def test_kernels_are_right_with_warps_of_64(tmp_path):
    program = build(tmp_path, "check_tap_gemm", "FORM=plain64", "FLAGS=-O0")
    assert toolchains.check([program]) == "0 failures\n"


@pytest.mark.parametrize("form", ["plain64", *AMD_FORMS])
def test_fragments_of_other_warps(form, tmp_path):
    program = build(tmp_path, "check_fragments", f"FORM={form}", SANITIZED)
    assert toolchains.check([program]) == "0 failures\n"


def test_every_fault_has_a_test():
    source = (toolchains.ROOT / "lib" / "gpu" / "fault.h").read_text()
    body = source.partition("enum class Fault {")[2].partition("};")[0]
    names = {line.split(",")[0].strip() for line in body.splitlines() if line.strip()}
    assert names - {"kNone"} == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault, tmp_path):
    program = build(tmp_path, FAULTS[fault], f"FLAGS=-O0 -DKNNCONV_FAULT={fault}")
    result = toolchains.run([program])
    assert result.returncode == 1, result.stdout
    assert " wrong\n" in result.stdout
