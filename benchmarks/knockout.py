"""What share of a portable kernel's time its parts take: products, gathers, barriers, each left out in turn.

`python -m benchmarks.knockout`, with nvcc and an NVIDIA GPU. `--build-only` and `--run-only` split the work between a
machine with a compiler and one with a GPU. A part that hides behind another one costs nothing by itself: the shares do
not add up to the whole.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import ROOT, machine

PARTS = ("products", "gathers", "barriers")
WHOLE = "whole"
VARIANTS = (WHOLE, *PARTS)
_GPU = ROOT / "lib" / "gpu"
# Sources with a main loop that is timed, compiled once a part; and those that only have to be linked.
_KNOCKED = ("tap_gemm_bf16_plain.cu", "dweight_columns.cu", "dweight_dense.cu")
_COMMON = (
    "dweight.cc",
    "dweight_choice.cc",
    "dweight_slots.cu",
    "tap_choice.cc",
    "tap_gemm.cc",
    "tap_gemm_bf16_transposed.cu",
    "tap_gemm_f16_plain.cu",
    "tap_gemm_f16_transposed.cu",
    "dweight_reduce.cu",
)


def commands(folder: pathlib.Path, nvcc: str, arch: str) -> tuple[list[list[str]], list[list[str]]]:
    """The commands that compile and those that then link, one program for the whole and one for each missing part."""
    options = ["-std=c++17", "-O3", f"-arch={arch}", f"-I{ROOT / 'lib'}", "-DKNNCONV_WITHOUT_HALO"]
    compiler = [nvcc, *options, "-x", "cu", "-c"]
    main = folder / "knockout.o"
    compiles = [[*compiler, str(ROOT / "benchmarks" / "knockout.cu"), "-o", str(main)]]
    common = [main]
    for name in _COMMON:
        common.append(folder / f"{name}.o")
        compiles.append([*compiler, str(_GPU / name), "-o", str(common[-1])])
    links = []
    for part in VARIANTS:
        flags = [] if part == WHOLE else [f"-DKNNCONV_WITHOUT_{part.upper()}"]
        objects = [folder / f"{name}.{part}.o" for name in _KNOCKED]
        compiles += [
            [*compiler, *flags, str(_GPU / name), "-o", str(made)] for name, made in zip(_KNOCKED, objects, strict=True)
        ]
        links.append([nvcc, f"-arch={arch}", *map(str, (*common, *objects)), "-o", str(folder / part)])
    return compiles, links


def build(folder: pathlib.Path, arch: str) -> None:
    """Compile the programs into a folder, on all cores.

    Raises:
      FileNotFoundError: there is no nvcc.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise FileNotFoundError("nvcc is not on the path")
    folder.mkdir(parents=True, exist_ok=True)
    for together in commands(folder, nvcc, arch):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda command: subprocess.run(command, check=True), together))


def run(folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Milliseconds of each kernel, by what is left out."""
    times: dict[str, dict[str, float]] = {}
    for part in VARIANTS:
        text = subprocess.run([folder / part], check=True, capture_output=True, text=True).stdout
        for kernel, milliseconds in (line.split() for line in text.splitlines()):
            times.setdefault(kernel, {})[part] = float(milliseconds)
    return times


def _printed(*command: str) -> str | None:
    """The last line that a program prints; None where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip().rpartition("\n")[2] or None


def describe() -> dict[str, str | None]:
    """What a run was measured on: the sources' commit, the compiler where it is here, the GPU and its driver."""
    gpu = _printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0")
    return {"commit": machine.commit(), "nvcc": _printed("nvcc", "--version"), "gpu": gpu}


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """By part: the time that its absence saves, as a share of the whole kernel's."""
    return {part: 1 - times[part] / times[WHOLE] for part in PARTS}


def table(times: Mapping[str, Mapping[str, float]]) -> Table:
    """One row a kernel."""
    found = Table(title="Share of the time that is saved without a part of the main loop", title_justify="left")
    found.add_column("kernel")
    for header in ("whole ms", *PARTS):
        found.add_column(header, justify="right")
    for kernel, by_part in times.items():
        found.add_row(kernel, f"{by_part[WHOLE]:.3g}", *(f"{share:.0%}" for share in shares(by_part).values()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run, print, write; or one of the two."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.knockout", description=__doc__)
    parser.add_argument("--build-only", type=pathlib.Path, metavar="FOLDER", help="leave the programs there")
    parser.add_argument("--run-only", type=pathlib.Path, metavar="FOLDER", help="run those that are there")
    parser.add_argument("--arch", default="native", help="of the GPU, as for nvcc: sm_90")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="result file")
    options = parser.parse_args(arguments)
    if options.build_only:
        build(options.build_only, options.arch)
        return 0
    if options.run_only:
        times = run(options.run_only)
    else:
        with tempfile.TemporaryDirectory() as name:
            build(pathlib.Path(name), options.arch)
            times = run(pathlib.Path(name))
    Console().print(table(times))
    if options.out is not None:
        options.out.write_text(json.dumps({**describe(), "milliseconds": times}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
