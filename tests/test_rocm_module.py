"""The ROCm module, where it was built: the CUDA module's targets, and AMD's matrix instructions in its object code.

It is compiled and looked at, never run: no test here has an AMD GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import struct
import sys

import pytest
import toolchains

from jax_knnconv import _ffi

MATRIX_INSTRUCTION = {
    "gfx90a": r"v_mfma_f32_16x16x16(f16|bf16_1k|_f16|_bf16)",
    "gfx942": r"v_mfma_f32_16x16x16(f16|bf16_1k|_f16|_bf16)",
    "gfx1100": r"v_wmma_f32_16x16x16_(f16|bf16)",
    "gfx1201": r"v_wmma_f32_16x16x16_(f16|bf16)",
}
BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


@pytest.fixture(scope="module")
def module_path() -> pathlib.Path:
    spec = importlib.util.find_spec("jax_knnconv._rocm")
    toolchains.need("rocm", spec is not None, "the ROCm module (JAX_KNNCONV_ROCM=on)")
    assert spec is not None
    assert spec.origin is not None
    return pathlib.Path(spec.origin)


def section(path: pathlib.Path, name: str, folder: pathlib.Path) -> bytes:
    toolchains.need_programs("rocm", "llvm-objcopy-19", "llvm-objdump-19")
    copy = folder / "section"
    toolchains.check(["llvm-objcopy-19", "--dump-section", f"{name}={copy}", path, "/dev/null"])
    return copy.read_bytes()


def code_objects(bundles: bytes) -> dict[str, list[bytes]]:
    """The code objects of each architecture, one a source file.

    A bundle is its magic, a count, and for each entry an offset from the magic, a size, and a name.
    """
    objects: dict[str, list[bytes]] = {arch: [] for arch in MATRIX_INSTRUCTION}
    for match in re.finditer(re.escape(BUNDLE), bundles):
        start, at = match.start(), match.end()
        (count,) = struct.unpack_from("<Q", bundles, at)
        at += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", bundles, at)
            name = bundles[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if not name.startswith("host"):
                objects[name.rpartition("--")[2]].append(bundles[start + offset : start + offset + size])
    return objects


def kernel_names(data: bytes) -> set[str]:
    """Kernels of a code object: each has a descriptor beside its code, with a name that ends so."""
    return {name.decode() for name in re.findall(rb"\x00(_Z\w+)\.kd(?=\x00)", data)}


def test_same_targets_as_the_other_modules(module_path):
    rocm, cpu = (importlib.import_module(f"jax_knnconv._{platform}") for platform in ("rocm", "cpu"))
    assert set(rocm.registrations()) == set(cpu.registrations()) == {_ffi.target_name(name) for name in _ffi.TARGETS}
    assert rocm.ffi_version() == cpu.ffi_version()
    assert set(rocm.implementations()) == {"wmma"}


def test_kernels_are_there_for_every_architecture(module_path, tmp_path):
    objects = code_objects(section(module_path, ".hip_fatbin", tmp_path))
    names = {arch: set().union(*map(kernel_names, found)) for arch, found in objects.items()}
    kernels = names["gfx90a"]
    assert len(kernels) > 50
    assert all(found == kernels for found in names.values())
    # The host asks for kernels by name: a name that depended on the warp's size would be found on some GPUs only.
    host = re.findall(rb"_ZN7knnconv3gpu\w+(?=\x00)", section(module_path, ".rodata", tmp_path))
    assert {name.decode() for name in host} == kernels


@pytest.mark.parametrize("arch", MATRIX_INSTRUCTION)
@pytest.mark.parametrize("element", ["4Half", "6BFloat"])
@pytest.mark.parametrize("kernel", ["TapGemmKernel", "DweightKernel"])
def test_products_are_matrix_instructions(arch, element, kernel, module_path, tmp_path):
    for data in code_objects(section(module_path, ".hip_fatbin", tmp_path))[arch]:
        fitting = [name for name in sorted(kernel_names(data)) if kernel in name and element in name]
        if fitting:
            break
    code = tmp_path / "code"
    code.write_bytes(data)
    listing = toolchains.check(["llvm-objdump-19", "-d", f"--disassemble-symbols={fitting[0]}", code])
    wanted = {"4Half": "f16", "6BFloat": "bf16"}[element]
    assert wanted in {found.lstrip("_").removesuffix("_1k") for found in re.findall(MATRIX_INSTRUCTION[arch], listing)}


def test_environment_does_not_change_the_build(tmp_path):
    toolchains.need_programs("rocm", "cmake", "ninja", "clang++-19")
    toolchains.need("rocm", importlib.util.find_spec("nanobind") is not None, "nanobind")
    toolchains.need("rocm", pathlib.Path("/usr/include/hip/hip_runtime.h").exists(), "HIP's headers in /usr/include")
    plain = {name: value for name, value in os.environ.items() if "ROCM" not in name and "HIP" not in name}
    # An architecture that every version of the device libraries knows.
    plain |= {"JAX_KNNCONV_ROCM": "on", "JAX_KNNCONV_CUDA": "off", "JAX_KNNCONV_ROCM_ARCHS": "gfx90a"}
    stale = tmp_path / "rocm-9.9"
    (stale / "include" / "hip").mkdir(parents=True)
    (stale / "include" / "hip" / "hip_runtime.h").write_text("#error stale\n")
    environments = {
        "unset": plain,
        "missing": plain | {"ROCM_PATH": "/opt/rocm-0.0", "HIP_PATH": "/opt/rocm-0.0"},
        "stale": plain | {"ROCM_PATH": str(stale), "HIP_PATH": str(stale)},
    }
    commands = {}
    build = tmp_path / "build"
    for name, environment in environments.items():
        shutil.rmtree(build, ignore_errors=True)
        toolchains.check(
            ["cmake", "-S", toolchains.ROOT, "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"],
            environment,
        )
        commands[name] = (build / "build.ninja").read_text()
    assert commands["unset"] == commands["missing"] == commands["stale"]
    # clang would follow the variable too, if it were not told where to look.
    toolchains.check(["ninja", "-C", build, "lib/rocm/cast_operands.cu.o"], environments["stale"])
