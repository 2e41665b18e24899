"""Layers for `flax.linen`: a drop-in `Conv`, and `KNNConv`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_knnconv import _flax_state, _layers
from jax_knnconv.config import KernelConfig
from jax_knnconv.table import NeighborTable

try:
    from flax import linen as nn
    from flax.linen.dtypes import promote_dtype
except ImportError as error:
    raise ImportError(f"jax_knnconv.linen {_layers.INSTALL}") from error

__all__ = ["Conv", "KNNConv"]

_flax_state.tell()


class Conv(nn.Conv):
    """y[b, i, j, o] = bias[o] + sum over fh, fw, c of x[b, i·s + fh·d − p, j·s + fw·d − p, c] · kernel[fh, fw, c, o].

    `flax.linen.Conv` with the same arguments, parameters and initial values, so that a checkpoint of one is a
    checkpoint of the other; two-dimensional convolutions run `jax_knnconv.conv2d`:

    - Sums and the bias are float32, rounded once to the dtype of the result (float32 means float32: no TF32).
    - Gradients have the dtypes of inputs and parameters, rounded once: with ``dtype=bfloat16`` and float32 parameters,
      the kernel's gradient is never rounded to bfloat16.

    Every other case is computed by Flax, as `flax.linen.Conv` computes it, and looks at neither ``implementation`` nor
    ``config``: one or three spatial dimensions, feature groups, input dilation, a dtype other than float32, float16 and
    bfloat16, and a ``promote_dtype``, ``conv_general_dilated`` or ``conv_general_dilated_cls`` of your own.

    Attributes:
        implementation: as in `jax_knnconv.conv2d`.
        config: as in `jax_knnconv.conv2d`.

    Call with inputs [..., H, W, C_in], any number of batch dimensions; returns [..., H', W', features] in ``dtype``, or
    in what inputs and parameters promote to.

    Raises:
        ValueError: shapes, window or options that do not fit, at trace time.
        TypeError: dtypes that do not fit.
    """

    implementation: str = "auto"
    config: KernelConfig | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The convolution of inputs [..., H, W, C_in]."""
        dtype = self._conv2d_dtype(inputs)
        if dtype is None:
            return super().__call__(inputs)
        inputs = jnp.asarray(inputs)
        shape = (*_layers.kernel_size(self), inputs.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        return _layers.convolve_dense(self, inputs, kernel, bias, dtype)

    def _conv2d_dtype(self, inputs: Any) -> Any:
        """The dtype in which `conv2d` computes this call, None where Flax does.

        Decided before the parameters are asked for, since Flax asks for them itself: their dtypes are those of the
        variables held, or at initialization those they will have.
        """
        own_hook = getattr(self, "conv_general_dilated", None) or getattr(self, "conv_general_dilated_cls", None)
        if own_hook is not None or self.promote_dtype is not promote_dtype or not _layers.is_dense_2d(self):
            return None
        held = jax.tree.leaves(self.variables.get("params", {})) or [self.param_dtype]
        dtype = _layers.promoted_dtype(self, inputs, self.mask, *held)
        return dtype if _layers.has_kernels(dtype) else None


class KNNConv(nn.Module):
    """y[b, m, :] = bias + sum over k of x[b, indices[m, k], :] @ kernel[slots[m, k]].

    `jax_knnconv.knn_conv` as a layer. Its parameters are ``kernel`` [V, C_in, features] and ``bias`` [features].

    Attributes:
        features: C_out.
        table: the taps of every output row. A table given here is a constant of the compiled program; one that is
            large, or differs from sample to sample, is better passed to the call: ``layer(x, table=table)``. Layers
            compare and hash their table by identity.
        use_bias: whether to add a bias.
        empty_rows: what a row with holes only gives: "bias", or "zero": exact 0, and no share in the bias gradient.
        dtype: of the computation, float32, float16 or bfloat16; None: what inputs and parameters promote to (float32
            for float64).
        param_dtype: of the parameters.
        precision: as in `jax_knnconv.knn_conv`.
        kernel_init: None: LeCun's normal initializer, variance 1 / (K·C_in): each output sums K·C_in products, whatever
            the number of slots. Holes count as taps; scale the kernel yourself where most taps of a table are holes.
        bias_init: initializer of the bias.
        preferred_element_type: dtype of the result; None: that of the computation.
        implementation: as in `jax_knnconv.knn_conv`.
        config: as in `jax_knnconv.knn_conv`.

    Call with inputs [..., N, C_in], any number of batch dimensions (with one table a sample they begin with the
    table's); returns [..., M, features]. A table given to the call takes the place of the layer's own.

    Raises:
        ValueError: no table in either place; shapes or options that do not fit, at trace time.
        TypeError: dtypes that do not fit, or a table that is none.
    """

    features: int
    table: NeighborTable | None = None
    use_bias: bool = True
    empty_rows: str = "bias"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: _layers.Initializer | None = None
    bias_init: _layers.Initializer = nn.initializers.zeros_init()
    preferred_element_type: Any = None
    implementation: str = "auto"
    config: KernelConfig | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array, table: NeighborTable | None = None) -> jax.Array:
        """The convolution of inputs [..., N, C_in] over a table."""
        table = _layers.choose_table(table, self.table)
        inputs = jnp.asarray(inputs)
        kernel_init = self.kernel_init or _layers.knn_kernel_init(table.num_taps)
        shape = (table.num_slots, inputs.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        return _layers.convolve_table(self, inputs, kernel, bias, table)
