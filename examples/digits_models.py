"""Two small networks for the digits: convolutions over the pixel grid, and over foveated points.

Each class says with `see` what its sensor makes of an image. Sensors are fixed, so that this is done once, ahead of
training.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from digits_data import CLASSES, SIZE
from flax import nnx
from foveation import cortex_points, cortex_table, sample, to_retina

from jax_knnconv.nnx import Conv, KNNConv

RINGS = (6, 4, 2, 1)  # of the sensor, then of each layer's output: 127, 61, 19, 7 points
NEIGHBORS = 9
_CHANNELS = (1, 32, 64, 64)
_RETINA_RADIUS = SIZE / 2 + 0.5  # pixels: the outermost ring passes just inside the image's corners


class DenseCNN(nnx.Module):
    """Three 3x3 convolutions on the 8x8 grid, the last two with stride 2; global mean; one linear layer."""

    def __init__(self, *, rngs: nnx.Rngs):
        sizes = zip(_CHANNELS[:-1], _CHANNELS[1:], (1, 2, 2), strict=True)
        self.convs = nnx.List([Conv(c, d, (3, 3), strides=stride, rngs=rngs) for c, d, stride in sizes])
        self.head = nnx.Linear(_CHANNELS[-1], CLASSES, rngs=rngs)

    @staticmethod
    def see(images: np.ndarray) -> np.ndarray:
        """Images [B, 8, 8, 1] as they are."""
        return images

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits [B, 10] of images [B, 8, 8, 1]."""
        for conv in self.convs:
            x = nnx.relu(conv(x))
        return self.head(jnp.mean(x, axis=(1, 2)))


class FoveatedCNN(nnx.Module):
    """Three KNN convolutions, each onto fewer points than the one before; global mean; one linear layer."""

    def __init__(self, *, rngs: nnx.Rngs):
        sizes = zip(_CHANNELS[:-1], _CHANNELS[1:], RINGS[:-1], RINGS[1:], strict=True)
        self.convs = nnx.List([KNNConv(c, d, cortex_table(n, m, NEIGHBORS), rngs=rngs) for c, d, n, m in sizes])
        self.head = nnx.Linear(_CHANNELS[-1], CLASSES, rngs=rngs)

    @staticmethod
    def look_at(cortex: np.ndarray) -> np.ndarray:
        """Where points [N, 2] of the cortex lie on the image, in pixels off its centre."""
        return to_retina(cortex, _RETINA_RADIUS)

    @staticmethod
    def sensor() -> np.ndarray:
        """The points [N, 2] at which images are sampled, in pixels off their centre."""
        return FoveatedCNN.look_at(cortex_points(RINGS[0]))

    @staticmethod
    def see(images: np.ndarray) -> np.ndarray:
        """Images [B, 8, 8, 1] sampled at the sensor's points: [B, N, 1]."""
        return sample(images, FoveatedCNN.sensor())

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits [B, 10] of sampled images [B, N, 1]."""
        for conv in self.convs:
            x = nnx.relu(conv(x))
        return self.head(jnp.mean(x, axis=1))


MODELS = {"dense": DenseCNN, "knn": FoveatedCNN}
