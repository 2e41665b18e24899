"""GPU tests skip where JAX sees no GPU, unless JAX_KNNCONV_REQUIRE_GPU=1 says that there must be one."""

import os
import pathlib

import jax
import pytest


def _gpus():
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


def pytest_collection_modifyitems(items):
    here = [item for item in items if pathlib.Path(item.fspath).parent == pathlib.Path(__file__).parent]
    for item in here:
        item.add_marker(pytest.mark.gpu)
    if here and not _gpus() and os.environ.get("JAX_KNNCONV_REQUIRE_GPU") != "1":
        for item in here:
            item.add_marker(pytest.mark.skip(reason="JAX sees no GPU"))


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """The device that tests run on; its module must load."""
    devices = _gpus()
    assert devices, "JAX_KNNCONV_REQUIRE_GPU=1, but JAX sees no GPU"
    from jax_knnconv import _ffi

    backend = _ffi.load_backend("cuda")
    assert backend.reason is None, backend.reason
    return devices[0]


@pytest.fixture
def on_gpu(gpu):
    with jax.default_device(gpu):
        yield


@pytest.fixture(scope="session")
def hopper(gpu):
    """Skips where the GPU is no Hopper or the module was built without its kernels."""
    from jax_knnconv import _ffi

    if float(gpu.compute_capability) != 9 or "hopper" not in _ffi.load_backend("cuda").implementations:
        pytest.skip("no Hopper GPU, or a module without its kernels")
