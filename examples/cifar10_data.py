"""CIFAR-10 images from a local archive, or synthetic ones of the same shape."""

from __future__ import annotations

import codecs
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

_FOLDER = "cifar-10-batches-py"
_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
_MAX_BYTES = 2**26  # of one file, twice what it should be
_MEAN, _DEVIATION = np.float32([0.491, 0.482, 0.447]), np.float32([0.247, 0.243, 0.262])  # of red, green, blue
# All that a pickled array names.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): codecs.encode,
}


class Images(NamedTuple):
    """Normalised images and their classes."""

    x: np.ndarray  # float32 [examples, 32, 32, 3]
    labels: np.ndarray  # int32 [examples]


class _ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of lists, bytes and NumPy arrays, and refuses everything else.

    An unrestricted unpickler runs whatever code an archive names.
    """

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array") from None


def load(path: Path) -> Images:
    """The training images of `cifar-10-python.tar.gz`, or of the folder `cifar-10-batches-py` that it holds.

    Nothing is extracted to disk.

    Raises:
        ValueError: no such file or folder, files missing from it, or contents that are not CIFAR-10's.
    """
    if path.is_dir():
        folder = path if (path / _FILES[0]).exists() else path / _FOLDER
        parts = [_read_file(folder / name) for name in _FILES]
    elif path.is_file():
        parts = _read_archive(path)
    else:
        raise ValueError(f"--data: {path} is neither a file nor a folder")
    x = np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    x = (x.astype(np.float32) / 255 - _MEAN) / _DEVIATION
    return Images(x, np.concatenate([labels for _, labels in parts]))


def synthesize(examples: int, seed: int) -> Images:
    """Images of ten classes: each class is a fixed pattern of broad waves, each image adds noise as strong."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:32, :32] / 32
    waves = np.stack([np.cos(2 * np.pi * (a * rows + b * columns)) for a in range(3) for b in range(3)], axis=-1)
    patterns = waves @ rng.normal(size=(10, 1, 9, 3)) / 3
    labels = rng.integers(10, size=examples, dtype=np.int32)
    noise = rng.standard_normal((examples, 32, 32, 3), np.float32)
    return Images(patterns.astype(np.float32)[labels] + noise, labels)


def endless_batches(images: Images, size: int, rng: np.random.Generator) -> Iterator[Images]:
    """Batches of one size for ever; each epoch in an order of its own.

    Raises:
        ValueError: fewer images than one batch takes.
    """
    if size > len(images.labels):
        raise ValueError(f"--batch: got {size}, expected at most the number of images, {len(images.labels)}")
    while True:
        order = rng.permutation(len(images.labels))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield Images(images.x[rows], images.labels[rows])


def _read_archive(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if folder == _FOLDER and name in _FILES and member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None  # a regular file
                    parts[name] = _read(file, member.size, f"{path}: {member.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"--data: {path} is no tar archive that can be read: {error}") from error
    missing = [name for name in _FILES if name not in parts]
    if missing:
        raise ValueError(f"--data: {path} has no {_FOLDER}/{missing[0]}: it is not cifar-10-python.tar.gz")
    return [parts[name] for name in _FILES]


def _read_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with open(path, "rb") as file:
            return _read(file, path.stat().st_size, str(path))
    except OSError as error:
        raise ValueError(f"--data: cannot read {path}: {error.strerror}") from error


def _read(file: IO[bytes], size: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 3072] uint8 and labels [n] int32 of one batch file."""
    if size > _MAX_BYTES:
        raise ValueError(f"--data: {where} has {size} bytes, expected a CIFAR-10 batch of about 31 MB")
    try:
        batch = _ArrayUnpickler(file, encoding="bytes").load()
    except Exception as error:  # whatever a damaged pickle makes the unpickler raise
        raise ValueError(f"--data: {where} is no CIFAR-10 batch: {error}") from error
    pixels, labels = (batch.get(key) for key in (b"data", b"labels")) if isinstance(batch, dict) else (None, None)
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3072,)):
        raise ValueError(f"--data: {where} holds no pixels, expected b'data' to be uint8 [n, 3072]")
    if not (isinstance(labels, list) and len(labels) == len(pixels) and set(labels) <= set(range(10))):
        raise ValueError(f"--data: {where} holds no labels, expected b'labels' to be {len(pixels)} classes from 0 to 9")
    return pixels, np.array(labels, np.int32)
