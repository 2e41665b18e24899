"""The checks of tests/gpu/emulation on this GPU: whole, over random shapes, under compute-sanitizer, and with faults.

Compiling them takes minutes, so they run where JAX_KNNCONV_TOOLCHAINS lists "device".
"""

from __future__ import annotations

import os
import pathlib

import pytest
import test_emulation
import toolchains

CHECKS = {"check_cast": 0, "check_dweight": 60, "check_halo": 60, "check_tap_gemm": 100}  # random shapes


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> pathlib.Path:
    """The folder of the checks, without a fault."""
    folder = tmp_path_factory.mktemp("checks")
    build(folder, *CHECKS)
    return folder


def build(folder: pathlib.Path, *checks: str, flags: str = "") -> None:
    if "device" not in os.environ.get("JAX_KNNCONV_TOOLCHAINS", "").split():
        pytest.skip('compiles for minutes: JAX_KNNCONV_TOOLCHAINS="device" asks for it')
    toolchains.need_programs("device", "nvcc", "make", "compute-sanitizer")
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


@pytest.mark.parametrize("fault", test_emulation.FAULTS)
def test_faults_are_seen(fault, tmp_path):
    check = test_emulation.FAULTS[fault]
    build(tmp_path, check, flags=f"-DKNNCONV_FAULT={fault}")
    result = toolchains.run([tmp_path / check])
    assert result.returncode == 1, result.stdout
    assert " wrong\n" in result.stdout
