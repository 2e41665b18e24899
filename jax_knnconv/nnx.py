"""Layers for `flax.nnx`: a drop-in `Conv`, and `KNNConv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_knnconv import _checks, _flax_state, _layers
from jax_knnconv._reading import check_size
from jax_knnconv.config import KernelConfig
from jax_knnconv.table import NeighborTable

try:
    from flax import nnx
    from flax.nnx.nn.dtypes import promote_dtype
except ImportError as error:
    raise ImportError(f"jax_knnconv.nnx {_layers.INSTALL}") from error

__all__ = ["Conv", "KNNConv"]

_flax_state.tell()

_zeros = nnx.initializers.zeros_init()


class Conv(nnx.Conv):
    """y[b, i, j, o] = bias[o] + sum over fh, fw, c of x[b, i·s + fh·d − p, j·s + fw·d − p, c] · kernel[fh, fw, c, o].

    `flax.nnx.Conv` with the same arguments, parameters and initial values, so that the state of one is the state of the
    other; two-dimensional convolutions run `jax_knnconv.conv2d`:

    - Sums and the bias are float32, rounded once to the dtype of the result (float32 means float32: no TF32).
    - Gradients have the dtypes of inputs and parameters, rounded once: with ``dtype=bfloat16`` and float32 parameters,
      the kernel's gradient is never rounded to bfloat16.

    Every other case is computed by Flax, as `flax.nnx.Conv` computes it, and looks at neither ``implementation`` nor
    ``config``: one or three spatial dimensions, feature groups, input dilation, a dtype (or ``preferred_element_type``)
    other than float32, float16 and bfloat16, a ``promote_dtype`` or ``conv_general_dilated`` of your own, and a call
    with ``out_sharding``.

    Args:
        in_features: C_in.
        out_features: C_out.
        kernel_size: as in `flax.nnx.Conv`.
        strides: as in `flax.nnx.Conv`.
        implementation: as in `jax_knnconv.conv2d`.
        config: as in `jax_knnconv.conv2d`.
        **kwargs: every other argument of `flax.nnx.Conv`, ``rngs`` among them.

    Call with inputs [..., H, W, C_in], any number of batch dimensions; returns [..., H', W', C_out] in ``dtype``, or in
    what inputs and parameters promote to.

    Raises:
        ValueError: shapes, window or options that do not fit, at trace time.
        TypeError: dtypes that do not fit.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = 1,
        *,
        implementation: str = "auto",
        config: KernelConfig | None = None,
        **kwargs: Any,
    ):
        super().__init__(in_features, out_features, kernel_size, strides, **kwargs)
        self.implementation = _checks.implementation(implementation)
        self.config = _checks.config(config)

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """The convolution of inputs [..., H, W, C_in]."""
        if out_sharding is not None:
            return super().__call__(inputs, out_sharding=out_sharding)
        kernel = self.kernel[...]
        bias = None if self.bias is None else self.bias[...]
        dtype = _layers.promoted_dtype(self, inputs, kernel, bias, self.mask)
        if not self._runs_conv2d(dtype):
            return super().__call__(inputs)
        return _layers.convolve_dense(self, jnp.asarray(inputs), kernel, bias, dtype, self.preferred_element_type)

    def _runs_conv2d(self, dtype: Any) -> bool:
        preferred = dtype if self.preferred_element_type is None else jnp.dtype(self.preferred_element_type)
        return (
            self.conv_general_dilated is lax.conv_general_dilated
            and self.promote_dtype is promote_dtype
            and _layers.is_dense_2d(self)
            and _layers.has_kernels(dtype)
            and _layers.has_kernels(preferred)
        )


class _Constant:
    """A table as a static attribute, equal where the table is the same object. Bare arrays Flax takes for state."""

    __slots__ = ("table",)

    def __init__(self, table: NeighborTable | None):
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(table)):
            raise ValueError(
                "table: got a traced table, expected a concrete one: pass a table that is made inside a transformed "
                "function to the call, layer(x, table=table)"
            )
        self.table = table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and other.table is self.table

    def __hash__(self) -> int:
        return hash(self.table)

    def __repr__(self) -> str:
        return repr(self.table)


class KNNConv(nnx.Module):
    """y[b, m, :] = bias + sum over k of x[b, indices[m, k], :] @ kernel[slots[m, k]].

    `jax_knnconv.knn_conv` as a layer. Its parameters are ``kernel`` [V, C_in, C_out] and ``bias`` [C_out].

    Args:
        in_features: C_in.
        out_features: C_out.
        table: the taps of every output row. A table given here is static, and so a constant of the compiled program:
            the module's state is its parameters alone, and layers may share a table whether or not their state is
            donated. One that is large, changes, or differs from sample to sample is better passed to the call, as an
            argument of the jitted function: ``layer(x, table=table)``.
        num_slots: V, required without a table.
        use_bias: whether to add a bias.
        empty_rows: what a row with holes only gives: "bias", or "zero": exact 0, and no share in the bias gradient.
        dtype: of the computation, float32, float16 or bfloat16; None: what inputs and parameters promote to (float32
            for float64).
        param_dtype: of the parameters.
        precision: as in `jax_knnconv.knn_conv`.
        kernel_init: None: LeCun's normal initializer, variance 1 / (K·C_in): each output sums K·C_in products, whatever
            the number of slots. Without a table, K is taken to be V. Holes count as taps; scale the kernel yourself
            where most taps of a table are holes.
        bias_init: initializer of the bias.
        preferred_element_type: dtype of the result; None: that of the computation.
        implementation: as in `jax_knnconv.knn_conv`.
        config: as in `jax_knnconv.knn_conv`.
        rngs: the random streams; parameters draw from ``params``.
        kernel_metadata: metadata of the kernel's `nnx.Param`.
        bias_metadata: metadata of the bias's `nnx.Param`.

    Call with inputs [..., N, C_in], any number of batch dimensions (with one table a sample they begin with the
    table's); returns [..., M, C_out]. A table given to the call takes the place of the layer's own.

    Raises:
        ValueError: no table in either place, or a traced one at construction; shapes or options that do not fit, at
            trace time.
        TypeError: dtypes that do not fit, or a table that is none.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        table: NeighborTable | None = None,
        *,
        num_slots: int | None = None,
        use_bias: bool = True,
        empty_rows: str = "bias",
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: _layers.Initializer | None = None,
        bias_init: _layers.Initializer = _zeros,
        preferred_element_type: Any = None,
        implementation: str = "auto",
        config: KernelConfig | None = None,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ):
        if table is not None:
            num_taps = _checks.table(table).num_taps
            if num_slots is not None:
                _checks.same("num_slots", num_slots, "the table's num_slots", table.num_slots)
            num_slots = table.num_slots
        elif num_slots is None:
            raise ValueError("num_slots: got None, expected an integer: it is required where no table is given")
        else:
            num_taps = num_slots = check_size("num_slots", num_slots)
        kernel_init = kernel_init or _layers.knn_kernel_init(num_taps)
        kernel = kernel_init(rngs.params(), (num_slots, in_features, out_features), param_dtype)
        self.kernel = nnx.Param(kernel, **kernel_metadata)
        self.bias: nnx.Param[jax.Array] | None
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype), **bias_metadata)
        else:
            self.bias = nnx.data(None)
        self._own = _Constant(table)
        self.in_features = in_features
        self.out_features = out_features
        self.num_slots = num_slots
        self.use_bias = use_bias
        self.empty_rows = empty_rows
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.preferred_element_type = preferred_element_type
        self.implementation = _checks.implementation(implementation)
        self.config = _checks.config(config)

    @property
    def table(self) -> NeighborTable | None:
        """The table given at construction."""
        return self._own.table

    def __call__(self, inputs: jax.Array, table: NeighborTable | None = None) -> jax.Array:
        """The convolution of inputs [..., N, C_in] over a table."""
        table = _layers.choose_table(table, self.table)
        bias = None if self.bias is None else self.bias[...]
        return _layers.convolve_table(self, jnp.asarray(inputs), self.kernel[...], bias, table)
