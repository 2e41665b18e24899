"""What the tests of the breakdowns share: two tiny shapes, and a CPU that is measured as an accelerator is."""

import benchmark_cases  # noqa: F401  (makes the benchmarks importable)
import jax

from benchmarks import breakdown, harness, head_start, operands, shapes

KNN = shapes.Knn(2, 3, 5, 8, 6, 4)
DENSE = shapes.Dense(2, 7, 9, 3, 5)


def act_as_accelerator(monkeypatch):
    """What is done where a device works apart from the host."""
    jax.devices()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(operands, "_LEAST_ON_GPU", 2)
    monkeypatch.setattr(operands, "_BYTES_ON_GPU", 0)
    monkeypatch.setattr(head_start, "for_device", lambda: None)
    monkeypatch.setattr(harness, "_MOST_QUEUED", 3)
    monkeypatch.setattr(breakdown, "_library_products", lambda: None)  # which a CPU does not know
