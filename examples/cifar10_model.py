"""The CIFAR-10 network of the benchmark, and one training step of it.

It is built from either of two layers that take the same arguments: `jax_knnconv.nnx.Conv` or Flax's own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jax_knnconv.nnx import Conv

BACKENDS = {"knnconv": Conv, "flax": nnx.Conv}
CLASSES = 10
# Channels of each convolution, and whether 2x2 maxima follow it. The last ones follow the last block: small images are
# better normalised whole, since XLA sums what little is left of them in few threads.
_LAYERS = ((3, 32, False), (32, 32, True), (32, 64, False), (64, 64, True), (64, 128, False))
# float16 gradients of a mean over 256 examples would sink among its subnormal numbers.
_LOSS_SCALE = {"float16": 1024.0}


class _NormRelu(nnx.BatchNorm):
    """relu(batch_norm(x)) of x [B, H, W, C] by its own mean and variance: float32, rounded once to the dtype of x.

    A channel's factors are drawn together, x·a + b. The gradient then sums g·x and g over all pixels; that of
    (x − mean)·a + bias has three sums, and takes a pass over the images more.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        mean = x32.mean((0, 1, 2))
        variance = jnp.maximum(jnp.square(x32).mean((0, 1, 2)) - jnp.square(mean), 0)
        for kept, now in ((self.mean, mean), (self.var, variance)):
            kept[...] = self.momentum * kept[...] + (1 - self.momentum) * now
        a = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        b = self.bias[...] - mean * a
        return nnx.relu(x32 * a + b).astype(x.dtype)


def _halve(x: jax.Array) -> jax.Array:
    """2x2 maxima of x [B, H, W, C] as a reduction: XLA turns the gradient of `nnx.max_pool` into a scatter."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


class _Block(nnx.Module):
    """relu(batch_norm(conv3x3(x))), or of 2x2 maxima of the convolution: a norm of a quarter of the pixels."""

    def __init__(self, conv: Any, in_features: int, out_features: int, *, halves: bool, dtype: Any, rngs: nnx.Rngs):
        # The batch norm has a bias of its own.
        self.conv = conv(in_features, out_features, (3, 3), use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = _NormRelu(out_features, momentum=0.9, rngs=rngs)
        self.halves = halves

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.conv(x)
        return self.norm(_halve(y) if self.halves else y)


class Cifar10CNN(nnx.Module):
    """Five 3x3 convolutions, 3 → 32 → 32, pool, → 64 → 64, pool, → 128; pool, global mean, one linear layer.

    Batch norm and ReLU follow each convolution, and the pool behind it; pools are 2x2 maxima. Parameters are float32.

    Args:
        backend: "knnconv" or "flax", which layer convolves.
        dtype: of activations and products: float32, bfloat16 or float16.
        rngs: random streams of the initial values.
    """

    def __init__(self, backend: str = "knnconv", *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
        conv = BACKENDS[backend]
        self.dtype = jnp.dtype(dtype)
        self.blocks = nnx.List(
            [_Block(conv, c, d, halves=halves, dtype=self.dtype, rngs=rngs) for c, d, halves in _LAYERS]
        )
        self.head = nnx.Linear(_LAYERS[-1][1], CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, 10], float32, of images [B, 32, 32, 3]."""
        x = images.astype(self.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(_halve(x).astype(jnp.float32), axis=(1, 2)))


def make_optimizer(model: Cifar10CNN, learning_rate: float = 0.05) -> nnx.Optimizer:
    """SGD with Nesterov momentum over the model's parameters."""
    return nnx.Optimizer(model, optax.sgd(learning_rate, momentum=0.9, nesterov=True), wrt=nnx.Param)


@nnx.jit
def train_step(model: Cifar10CNN, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Update model and optimizer in place from one batch; returns the loss, mean cross entropy."""
    scale = _LOSS_SCALE.get(model.dtype.name, 1.0)

    def scaled_loss(model: Cifar10CNN) -> jax.Array:
        return scale * optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, gradients = nnx.value_and_grad(scaled_loss)(model)
    optimizer.update(model, jax.tree.map(lambda gradient: gradient / scale, gradients))
    return loss / scale
