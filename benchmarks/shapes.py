"""The shapes that are measured, in the sizes of a GPU and of a CPU, and the work that each one is.

A CPU runs the same layers on a sixteenth of the batch (ImageNet-sized images: a thirty-second, the 224x224 stem two
images), and point clouds of 20,000 points instead of 100,000.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

PASSES = ("forward", "dinput", "dweight")
_INDEX_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense convolution with SAME padding: x [batch, height, width, channels] -> y [..., outputs]."""

    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    kernel: int = 3
    stride: int = 1

    @property
    def name(self) -> str:
        """Batch, image, channels and window in one word each."""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        window = f"{self.kernel}x{self.kernel}{stride}"
        return f"{self.batch}x{self.height}x{self.width} {self.channels}->{self.outputs} {window}"

    @property
    def rows_in(self) -> tuple[int, ...]:
        """Dimensions of x between batch and channels."""
        return self.height, self.width

    @property
    def rows_out(self) -> tuple[int, ...]:
        """Dimensions of y between batch and channels."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def slots(self) -> tuple[int, ...]:
        """Dimensions of weight before its channels."""
        return self.kernel, self.kernel

    @property
    def taps(self) -> int:
        """Taps of one image that read a pixel, those in the padding left out."""
        return math.prod(
            _window_taps(size, self.kernel, self.stride, count)
            for size, count in zip(self.rows_in, self.rows_out, strict=True)
        )

    @property
    def table_bytes(self) -> int:
        """Bytes of indices: a grid needs none."""
        return 0


@dataclasses.dataclass(frozen=True)
class Knn:
    """A KNN convolution: x [batch, sources, channels] -> y [batch, rows, outputs], `neighbours` taps a row.

    Points lie at random in `space` dimensions, the output rows on the first of them.
    """

    batch: int
    channels: int
    outputs: int
    sources: int
    rows: int
    neighbours: int
    space: int = 2

    @property
    def name(self) -> str:
        """Batch, channels, points and neighbours in one word each."""
        points = f"{self.sources}" if self.sources == self.rows else f"{self.sources}->{self.rows}"
        return f"{self.batch}x{points} {self.channels}->{self.outputs} K={self.neighbours}"

    @property
    def rows_in(self) -> tuple[int, ...]:
        """Dimensions of x between batch and channels."""
        return (self.sources,)

    @property
    def rows_out(self) -> tuple[int, ...]:
        """Dimensions of y between batch and channels."""
        return (self.rows,)

    @property
    def slots(self) -> tuple[int, ...]:
        """Dimensions of weight before its channels."""
        return (self.neighbours,)

    @property
    def taps(self) -> int:
        """Taps of one sample."""
        return self.rows * self.neighbours

    @property
    def table_bytes(self) -> int:
        """Bytes of indices that every pass must read."""
        return self.taps * _INDEX_BYTES


Shape = Dense | Knn


def _window_taps(size: int, kernel: int, stride: int, count: int) -> int:
    low = max((count - 1) * stride + kernel - size, 0) // 2
    return sum(0 <= i * stride + f - low < size for i in range(count) for f in range(kernel))


def operations(shape: Shape) -> int:
    """Floating-point operations of one pass, any of the three."""
    return 2 * shape.batch * shape.taps * shape.channels * shape.outputs


def gathered_bytes(shape: Shape, itemsize: int) -> int:
    """Size of the gathered matrix [batch, rows, taps of a row, channels], which no pass of ours writes."""
    return shape.batch * math.prod(shape.rows_out) * math.prod(shape.slots) * shape.channels * itemsize


def moved_bytes(shape: Shape, itemsize: int) -> int:
    """Bytes that one pass moves at least: x, y and weight once each (or their gradients), and the table."""
    x = shape.batch * math.prod(shape.rows_in) * shape.channels
    y = shape.batch * math.prod(shape.rows_out) * shape.outputs
    weight = math.prod(shape.slots) * shape.channels * shape.outputs
    return (x + y + weight) * itemsize + shape.table_bytes


def to_json(shape: Shape) -> dict[str, Any]:
    """The shape as a JSON object."""
    return {"kind": type(shape).__name__.lower(), **dataclasses.asdict(shape)}


def from_json(fields: dict[str, Any]) -> Shape:
    """The inverse of `to_json`."""
    sizes = dict(fields)
    return {"dense": Dense, "knn": Knn}[sizes.pop("kind")](**sizes)


_CLOUD_POINTS = {"cpu": 20_000, "gpu": 100_000}


def cifar10_layers(size: str) -> list[Dense]:
    """The convolutions of the CIFAR-10 network in `examples/`, in a size, "cpu" or "gpu"."""
    batch = 16 if size == "cpu" else 256
    return [
        Dense(batch, 32, 32, 3, 32),
        Dense(batch, 32, 32, 32, 32),
        Dense(batch, 16, 16, 32, 64),
        Dense(batch, 16, 16, 64, 64),
        Dense(batch, 8, 8, 64, 128),
    ]


def dense_shapes(size: str) -> list[Dense]:
    """The dense table in a size, "cpu" or "gpu"."""
    imagenet, stem = (4, 2) if size == "cpu" else (128, 128)
    return [
        *cifar10_layers(size),
        Dense(imagenet, 56, 56, 64, 64),
        Dense(imagenet, 28, 28, 128, 128),
        Dense(imagenet, 14, 14, 256, 256),
        Dense(imagenet, 7, 7, 512, 512),
        Dense(imagenet, 28, 28, 256, 256, stride=2),
        Dense(stem, 224, 224, 3, 64, kernel=7, stride=2),
    ]


def knn_shapes(size: str) -> list[Knn]:
    """The KNN table in a size, "cpu" or "gpu"."""
    share = 16 if size == "cpu" else 1
    cloud = _CLOUD_POINTS[size]
    return [
        Knn(256 // share, 64, 64, 1024, 1024, 9),
        Knn(256 // share, 128, 128, 512, 512, 9),
        Knn(256 // share, 256, 256, 256, 256, 9),
        Knn(256 // share, 512, 512, 64, 64, 9),
        Knn(128 // share, 256, 256, 512, 256, 25),
        Knn(1, 32, 32, 20_000, 20_000, 27, space=3),
        Knn(1, 64, 64, cloud, cloud, 27, space=3),
        Knn(1, 128, 128, cloud, cloud, 27, space=3),
        *([] if size == "cpu" else [Knn(1, 256, 256, 50_000, 50_000, 27, space=3)]),
        Knn(128 // share, 96, 256, 230, 230, 25),
        Knn(128 // share, 256, 384, 60, 60, 9),
        Knn(128 // share, 384, 384, 60, 60, 9),
        Knn(512 // share, 256, 256, 16, 16, 9),
        Knn(128 // share, 64, 64, 230, 230, 9),
        Knn(128 // share, 3, 96, 4085, 964, 121),
        Knn(128 // share, 3, 64, 4085, 964, 49),
    ]


def small_batch_shapes() -> list[Knn]:
    """Small batches over a small table: little work, of which every part must be spread over the device."""
    return [Knn(batch, 64, 64, 230, 230, 9) for batch in (10, 40)]


def quick_shapes(shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Every third shape of a table, for a look rather than a measurement."""
    return shapes[2::3]
