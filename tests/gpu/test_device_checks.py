"""The checks of tests/gpu/emulation on this GPU: whole, over random shapes, under compute-sanitizer, and with faults.

Compiling them takes minutes, so they run where JAX_KNNCONV_TOOLCHAINS lists "device".
"""

from __future__ import annotations

import os
import pathlib

import pytest
import test_emulation
import toolchains

CHECKS = {"check_cast": 0, "check_dweight": 10, "check_halo": 60, "check_tap_gemm": 10}  # random shapes
# Of tests/gpu/hopper: sources in lib, what the program is asked for, and cases for the sanitizer.
SHARED = ("hopper/pixel_classes.cc", "hopper/tensor_map.cc")
HOPPER = {
    "check": (
        ("hopper/tap_*.cu", "hopper/tap_*.cc", *SHARED),
        "values",
        ["columns, 3", "rows, 40", "table, 7 dx", "dense 3x3 s2 dx"],
    ),
    "check_dweight": (("hopper/dweight*.cu", "hopper/dweight*.cc", "hopper/tensor_map.cc"), "check", []),
    "check_halo": (("hopper/halo*.c*", *SHARED, "gpu/halo*_plan.cc", "gpu/dweight_reduce.cu"), "values", ["25"]),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> pathlib.Path:
    """The folder of the checks, without a fault."""
    folder = tmp_path_factory.mktemp("checks")
    build(folder, *CHECKS)
    return folder


@pytest.fixture(scope="module", params=HOPPER)
def hopper_check(request, gpu, tmp_path_factory) -> list[str | pathlib.Path]:
    """The command of one of Hopper's checks."""
    need_compiler()
    if float(gpu.compute_capability) != 9:
        pytest.skip("no Hopper GPU")
    patterns, what, _ = HOPPER[request.param]
    lib = toolchains.ROOT / "lib"
    sources = [path for pattern in patterns for path in sorted(lib.glob(pattern))]
    program = tmp_path_factory.mktemp("hopper") / request.param
    source = toolchains.ROOT / "tests" / "gpu" / "hopper" / f"{request.param}.cu"
    options = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", f"-t{os.cpu_count()}", "-I", lib]
    toolchains.check(["nvcc", *options, source, *sources, "-o", program])
    return [program, what]


def need_compiler() -> None:
    if "device" not in os.environ.get("JAX_KNNCONV_TOOLCHAINS", "").split():
        pytest.skip('compiles for minutes: JAX_KNNCONV_TOOLCHAINS="device" asks for it')
    toolchains.need_programs("device", "nvcc", "make", "compute-sanitizer")


def build(folder: pathlib.Path, *checks: str, flags: str = "") -> None:
    need_compiler()
    jobs = f"-j{os.cpu_count()}"
    words = [f"BUILD={folder}", f"CHECKS={' '.join(checks)}", f"FLAGS={flags}", "FORM=cuda"]
    toolchains.check(["make", jobs, "-C", toolchains.ROOT / "tests" / "gpu" / "emulation", *words])


@pytest.mark.parametrize("check", CHECKS)
def test_kernels_are_right(check, programs):
    assert toolchains.check([programs / check, str(CHECKS[check])]) == "0 failures\n"


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("check", CHECKS)
def test_sanitizer_finds_nothing(check, tool, programs):
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", programs / check]
    assert "0 failures\n" in toolchains.check(command)


def test_hopper_kernels_are_right(hopper_check):
    toolchains.check(hopper_check)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_finds_nothing_in_hopper_kernels(tool, hopper_check):
    cases = HOPPER[pathlib.Path(hopper_check[0]).name][2]
    if tool == "racecheck" and not cases:
        pytest.skip("all cases take minutes")
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", *hopper_check, *cases]
    toolchains.check(command)


@pytest.mark.parametrize("fault", test_emulation.FAULTS)
def test_faults_are_seen(fault, tmp_path):
    check = test_emulation.FAULTS[fault]
    build(tmp_path, check, flags=f"-DKNNCONV_FAULT={fault}")
    result = toolchains.run([tmp_path / check])
    assert result.returncode == 1, result.stdout
    assert " wrong\n" in result.stdout
