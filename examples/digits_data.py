"""scikit-learn's handwritten digits: real 8x8 images that ship with the library, split once and for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES = 10
SIZE = 8
TEST_FRACTION = 0.25
_SPLIT_SEED = 0


class Split(NamedTuple):
    """Examples and labels of one part of the data."""

    x: np.ndarray  # float32 [examples, ...]
    labels: np.ndarray  # int32 [examples]


def load_images() -> tuple[Split, Split]:
    """1797 images [8, 8, 1] in [0, 1], as (training, test); each digit has the same share in both.

    The split does not follow the run's seed: results of different seeds are about the same test images.
    """
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    train_x, test_x, train_labels, test_labels = train_test_split(
        images, labels, test_size=TEST_FRACTION, random_state=_SPLIT_SEED, stratify=labels
    )
    return Split(train_x, train_labels), Split(test_x, test_labels)


def batches(split: Split, size: int, rng: np.random.Generator) -> Iterator[Split]:
    """One epoch in random order. The examples that fill no batch are left out: one shape compiles once."""
    order = rng.permutation(len(split.labels))
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        yield Split(split.x[rows], split.labels[rows])
