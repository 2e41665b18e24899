"""The checks of tests/gpu/emulation on this GPU: whole, over random shapes, under compute-sanitizer, and with faults.

Compiling them takes minutes, so they run where JAX_KNNCONV_TOOLCHAINS lists "device".
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import pytest
import test_emulation
import toolchains

CHECKS = {"check_cast": 0, "check_dweight": 10, "check_halo": 60, "check_tap_gemm": 10}  # random shapes
SHARED = ("hopper/pixel_classes.cc", "hopper/tensor_map.cc")


class HopperCheck(NamedTuple):
    """A program of tests/gpu/hopper."""

    sources: tuple[str, ...]  # in lib
    values: tuple[tuple[str, ...], ...]  # what it is asked for
    runs: tuple[tuple[str, ...], ...]  # the same for the sanitizer, which is far slower: few cases a run


SAMPLES = ("sample", "sample, two at once", "sample, narrow", "sample, one slot")
LARGE = ("tile=256x128", "tile=128x256", "tile=192x256")
HOPPER = {
    "check": HopperCheck(
        ("hopper/tap_*.c*", "hopper/sample.cc", "hopper/sample_[bfp]*.c*", "gpu/hub_sums.cu", *SHARED),
        (("values",), ("random", "1", "100")),
        (
            *(
                ("few", name)
                for name in (
                    "columns, 1",
                    "columns, 3",
                    "columns, 10",
                    "rows, 40",
                    "table, 1 dx",
                    "table, 10, 230 dx",
                    "table, 3, sparse dx",
                    "table, 7 dx",
                    "dense 3x3 s2 dx",
                )
            ),
            *(("few", name, "tile=sample 64x64") for name in SAMPLES),
            *(("few", name, *LARGE) for name in ("columns, 10", "table, 10, 230 dx", "dense 3x3, many")),
        ),
    ),
    "check_dweight": HopperCheck(
        ("hopper/dweight*.c*", "hopper/sample_dweight*.c*", "hopper/tensor_map.cc"),
        (("check",), ("random", "1", "100")),
        tuple(
            ("few", name)
            for name in (
                "columns",
                "slots",
                "gathered",
                "gathered_deep",
                "samples",
                "samples_ragged",
                "slots_gathered",
                "slots_of_both",
                "dense_narrow",
                "strips_narrow",
            )
        ),
    ),
    "check_halo": HopperCheck(("hopper/halo*.c*", *SHARED, "gpu/halo*_plan.cc"), (("values", "1500"),), (("few",),)),
    "check_stem": HopperCheck(
        ("hopper/stem_dinput*.c*", "gpu/stem_dinput*.c*", "gpu/stem_order.cu"),
        (("values",), ("random", "1", "400")),
        (
            ("few", "nearest", "30 slots", "121 slots", "one source", "own weights x 3"),
            ("few", "most sources", "most slots", "hubs", "8 deep", "one slot", "own tables x 6"),
        ),
    ),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> pathlib.Path:
    """The folder of the checks, without a fault."""
    folder = tmp_path_factory.mktemp("checks")
    build(folder, *CHECKS)
    return folder


@pytest.fixture(scope="module")
def hopper_programs(hopper, tmp_path_factory) -> Callable[..., pathlib.Path]:
    """The path of a program of tests/gpu/hopper, compiled when it is first asked for, with flags or without."""
    need_compiler()
    folder, lib = tmp_path_factory.mktemp("hopper"), toolchains.ROOT / "lib"

    @functools.cache
    def compiled(name: str, *flags: str) -> pathlib.Path:
        patterns = HOPPER[name].sources if name in HOPPER else ()
        sources = [path for pattern in patterns for path in sorted(lib.glob(pattern))]
        program = folder / "".join((name, *flags))
        source = toolchains.ROOT / "tests" / "gpu" / "hopper" / f"{name}.cu"
        options = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", f"-t{os.cpu_count()}", "-I", lib]
        toolchains.check(["nvcc", *options, *flags, source, *sources, "-o", program])
        return program

    return compiled


def need_compiler() -> None:
    if "device" not in os.environ.get("JAX_KNNCONV_TOOLCHAINS", "").split():
        pytest.skip('compiles for minutes: JAX_KNNCONV_TOOLCHAINS="device" asks for it')
    toolchains.need_programs("device", "nvcc", "make", "compute-sanitizer")


def sanitized(tool: str, *command: str | pathlib.Path) -> list[str | pathlib.Path]:
    """A command under compute-sanitizer, which fails where that finds something."""
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", *command]


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
    assert "0 failures\n" in toolchains.check(sanitized(tool, programs / check))


@pytest.mark.parametrize("check", HOPPER)
def test_hopper_kernels_are_right(check, hopper_programs):
    for words in HOPPER[check].values:
        toolchains.check([hopper_programs(check), *words])


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize(("check", "words"), [(name, run) for name in HOPPER for run in HOPPER[name].runs], ids=str)
def test_sanitizer_finds_nothing_in_hopper_kernels(check, words, tool, hopper_programs):
    toolchains.check(sanitized(tool, hopper_programs(check, "-DKNNCONV_LANES_ARRIVE"), *words))


@pytest.mark.parametrize("name", ["columns", "table dx", "table, 20, 90 dx", "neighbours, 128, odd dx"])
def test_memcheck_finds_nothing_in_tiles_that_blocks_share(name, hopper_programs):
    """racecheck does not follow what these blocks tell each other: see below."""
    words = ("few", name, *(f"tile=split 128x{columns}" for columns in (128, 256)))
    words += tuple(f"tile=pair 128x{columns}" for columns in (128, 192, 256))
    toolchains.check(sanitized("memcheck", hopper_programs("check", "-DKNNCONV_LANES_ARRIVE"), *words))


def test_memcheck_takes_a_partial_copy_for_a_whole_one(hopper_programs):
    """Why tables in tests/gpu/hopper/problem.h have room behind them, in vain where a tool knows better."""
    program = hopper_programs("partial_copy")
    assert toolchains.check([program]) == "5 0 0 0\n"
    found = toolchains.run(sanitized("memcheck", program))
    assert found.returncode != 0
    assert "Invalid __global__ read of size 16 bytes" in found.stdout


def test_racecheck_does_not_follow_a_lane_that_arrives_for_its_warp(hopper_programs):
    """Why every lane arrives in builds for racecheck, in vain where a tool knows better."""
    program = hopper_programs("warp_arrival")
    assert toolchains.check([program]) == "0 wrong\n"
    assert toolchains.run(sanitized("racecheck", program)).returncode != 0
    assert "0 wrong\n" in toolchains.check(sanitized("racecheck", program, "every lane"))


def test_racecheck_does_not_follow_an_arrival_at_another_blocks_barrier(hopper_programs):
    """Why it does not see tiles that blocks share, in vain where a tool knows better."""
    program = hopper_programs("peer_arrival")
    for words in ((), ("arrive",), ("meet",)):
        assert toolchains.check([program, *words]) == "0 wrong\n"
    for words in ((), ("arrive",)):
        assert toolchains.run(sanitized("racecheck", program, *words)).returncode != 0
    assert "0 wrong\n" in toolchains.check(sanitized("racecheck", program, "meet"))


@pytest.mark.parametrize("fault", test_emulation.FAULTS)
def test_faults_are_seen(fault, tmp_path):
    check = test_emulation.FAULTS[fault]
    build(tmp_path, check, flags=f"-DKNNCONV_FAULT={fault}")
    result = toolchains.run([tmp_path / check])
    assert result.returncode == 1, result.stdout
    assert " wrong\n" in result.stdout
