"""Convolution over any neighbourhood, at the speed of a matrix product, in JAX.

    y[b, n, :] = bias + sum over taps (src, slot) of n:  x[b, src, :] @ weight[slot]

`conv2d` is the dense case, where taps are arithmetic; `knn_conv` reads them from a `NeighborTable`.
"""

from jax_knnconv._ffi import export_targets, register_installed
from jax_knnconv._readiness import FallbackWarning
from jax_knnconv._version import __version__
from jax_knnconv.batches import concatenate_tables, stack_tables
from jax_knnconv.builders import knn_table, radius_table
from jax_knnconv.cast import cast_operands
from jax_knnconv.config import KernelConfig
from jax_knnconv.conv2d import conv2d, conv2d_dinput, conv2d_dweight
from jax_knnconv.default_config import default_config
from jax_knnconv.doctor import doctor
from jax_knnconv.edges import edge_table
from jax_knnconv.grids import grid_table, submanifold_table
from jax_knnconv.interop import from_fovi, from_linear
from jax_knnconv.knn import knn_backward, knn_conv, knn_dinput, knn_dweight
from jax_knnconv.pool import knn_pool
from jax_knnconv.shardings import table_shardings
from jax_knnconv.table import NeighborTable

register_installed()

__all__ = [
    "FallbackWarning",
    "KernelConfig",
    "NeighborTable",
    "__version__",
    "cast_operands",
    "concatenate_tables",
    "conv2d",
    "conv2d_dinput",
    "conv2d_dweight",
    "default_config",
    "doctor",
    "edge_table",
    "export_targets",
    "from_fovi",
    "from_linear",
    "grid_table",
    "knn_backward",
    "knn_conv",
    "knn_dinput",
    "knn_dweight",
    "knn_pool",
    "knn_table",
    "radius_table",
    "stack_tables",
    "submanifold_table",
    "table_shardings",
]
