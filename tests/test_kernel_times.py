"""Times of kernels in a profile."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import kernels

PROFILE = """
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #13(Compute)" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 5000000 duration_ps: 2000000 }
    events { metadata_id: 2 offset_ps: 0 duration_ps: 4000000 }
    events { metadata_id: 3 offset_ps: 7000000 duration_ps: 1000000 }
  }
  lines {
    name: "XLA Ops" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 9000000 }
  }
  event_metadata { key: 1 value { id: 1 name: "void knnconv::gpu::HaloKernel<int>" } }
  event_metadata { key: 2 value { id: 2 name: "loop_add_fusion_1" } }
  event_metadata { key: 3 value { id: 3 name: "sm90_xmma_fprop_implicit_gemm_bf16" } }
}
planes {
  name: "/host:CPU"
  lines { name: "python" events { metadata_id: 1 offset_ps: 0 duration_ps: 9000000 } }
  event_metadata { key: 1 value { id: 1 name: "cudnn" } }
}
"""


def test_kernels_of_a_profile():
    profile = jax.profiler.ProfileData.from_serialized_xspace(
        jax.profiler.ProfileData.text_proto_to_serialized_xspace(PROFILE)
    )
    found = kernels.kernels_of(profile)
    assert [(kernel.start, kernel.duration) for kernel in found] == [(1000, 4000), (6000, 2000), (8000, 1000)]
    assert [kernel.is_convolution for kernel in found] == [False, True, True]
    # In two steps; the device waited from 5000 to 6000.
    assert kernels.split(found, 2) == pytest.approx({"convolutions": 0.0015, "others": 0.002, "waits": 0.0005})


def test_overlapping_kernels_do_not_wait():
    found = [kernels.Kernel("a", 0, 10), kernels.Kernel("b", 2, 3), kernels.Kernel("c", 12, 1)]
    assert kernels.split(found, 1)["waits"] == pytest.approx(2e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has kernels")
def test_a_cpu_has_no_kernels():
    assert kernels.record(lambda: jnp.ones(3) + 1) == []
    assert kernels.split([], 1) == {"convolutions": 0, "others": 0, "waits": 0}
