"""The dense operation's primitives."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_knnconv._bilinear import Family
from jax_knnconv._calls import Operation, Pass, make_calls
from jax_knnconv._xla import dense as xla


def _window(spec: Any) -> dict[str, Any]:
    return {name: np.array(getattr(spec, name), np.int64) for name in ("stride", "padding", "dilation")}


def _geometry(spec: Any) -> dict[str, Any]:
    return {"stride": spec.stride, "padding": spec.padding, "dilation": spec.dilation}


def _forward(x: Any, w: Any, bias: Any, *, spec: Any, out_dtype: Any) -> Any:
    return xla.forward(x, w, bias, **_geometry(spec), output_size=spec.output_dims, out_dtype=out_dtype)


def _dinput(g: Any, w: Any, *, spec: Any, out_dtype: Any) -> Any:
    return xla.dinput(g, w, **_geometry(spec), input_size=spec.input_dims, out_dtype=out_dtype)


def _dweight(x: Any, g: Any, *, spec: Any, out_dtype: Any, group_rank: int, with_bias: bool) -> Any:
    return xla.dweight(
        x,
        g,
        **_geometry(spec),
        kernel_size=spec.slot_dims,
        group_rank=group_rank,
        with_bias=with_bias,
        out_dtype=out_dtype,
        bias_dtype=jnp.float32,
    )


dense = Family(
    "dense",
    make_calls(
        Operation(
            name="dense",
            inputs=("h", "w"),
            outputs=("i", "j"),
            slots=("fh", "fw"),
            forward=Pass((), (), _window, _forward),
            dinput=Pass((), (), _window, _dinput),
            dweight=Pass((), (), _window, _dweight),
        )
    ),
)
