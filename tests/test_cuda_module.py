"""The CUDA module, where it was built: it loads without a GPU and registers what the CPU module does.

And its kernels compile for architectures that no test builds it for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import re

import pytest
import toolchains

from jax_knnconv import _ffi

KERNELS = sorted((toolchains.ROOT / "lib" / "gpu").glob("*.cu"))


def test_same_targets_as_the_cpu_module():
    built = importlib.util.find_spec("jax_knnconv._cuda") is not None
    toolchains.need("cuda", built, "the CUDA module (JAX_KNNCONV_CUDA=on)")
    cuda, cpu = (importlib.import_module(f"jax_knnconv._{platform}") for platform in ("cuda", "cpu"))
    assert set(cuda.registrations()) == set(cpu.registrations()) == {_ffi.target_name(name) for name in _ffi.TARGETS}
    assert cuda.ffi_version() == cpu.ffi_version()
    assert pathlib.Path(cuda.__file__).stat().st_size < 60e6
    # Hopper's kernels are there where its architecture is among those that the module was built for.
    assert set(cuda.implementations()) in ({"wmma"}, {"wmma", "hopper"})
    if "90" in os.environ.get("JAX_KNNCONV_CUDA_ARCHS", ""):
        assert "hopper" in cuda.implementations()


def test_launchers_allocate_and_wait_for_nothing():
    """What may not stand in a handler that is captured into a graph. The runtime for tests on the CPU has its own."""
    lib = toolchains.ROOT / "lib"
    sources = [path for name in ("gpu", "hopper", "cuda", "rocm") for path in (lib / name).glob("*.[hc]*")]
    assert len(sources) > 80
    forbidden = re.compile(r"(cuda|hip|gpu)(Malloc|Free|Memcpy|Memset|\w*Synchronize|StreamCreate)|ScratchAllocator")
    for path in sources:
        assert forbidden.search(path.read_text()) is None, path


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_for_the_oldest_and_the_newest_architecture(source, tmp_path):
    toolchains.need_programs("cuda", "nvcc")
    unoptimized = ["-Xcicc", "-O0", "-Xptxas", "-O0"]
    architectures = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in (75, 120)]
    files = ["-I", toolchains.ROOT / "lib", "-c", source, "-o", tmp_path / "kernel.o"]
    toolchains.check(["nvcc", "-std=c++17", *unoptimized, *architectures, *files])
