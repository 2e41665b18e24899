"""The examples run and say what they should; the README's code runs as printed."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_knnconv

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^### (.+?)$.*?^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PNG = b"\x89PNG\r\n\x1a\n"

nnx = pytest.importorskip("flax.nnx", reason="the examples extra is not installed")
pytest.importorskip("sklearn", reason="the examples extra is not installed")


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])


def run_example(name, *arguments):
    """Run a script as a person would, with the package that these tests see."""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(jax_knnconv.__file__).parents[1]), "COLUMNS": "100"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


# README ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [pytest.param(code, id=title) for title, code in SNIPPETS])
def test_readme_snippet_runs_and_prints_what_it_says(code):
    printed = io.StringIO()
    namespace = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), namespace)
    assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    for name, shape in re.findall(r"^(\w+) = jkc\.\w+\(.*\)  # (\[[\d, ]+\])$", code, re.MULTILINE):
        assert list(namespace[name].shape) == json.loads(shape)


def test_readme_gradients_are_what_it_says():
    code = dict(SNIPPETS)["Gradients by name"]
    for last in ("knn_dweight", "knn_backward"):
        namespace = {}
        exec(code[: code.index("\n", code.index(last))], namespace)
        for name, expected in (("dx", [[1], [0], [1]]), ("dw", [[[4]], [[0]]]), ("db", [2])):
            np.testing.assert_array_equal(namespace[name], expected)


def test_readme_names_files_that_are_there():
    for name in re.findall(r"\]\(([^):]+)\)|`(examples/\w+\.py)`", README):
        assert (ROOT / max(name)).exists(), name


# Digits ------------------------------------------------------------------------------------------------------------


def test_readme_picture_is_drawn_where_it_is_told(tmp_path):
    done = run_example("readme_picture.py", tmp_path / "picture.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


def test_digits_writes_metrics_and_a_picture(tmp_path):
    done = run_example("train_digits.py", "--epochs", 1, "--target", 0.2, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(epoch["model"], epoch["epoch"]) for epoch in epochs] == [("dense", 1), ("knn", 1)]
    assert all(0.2 <= epoch["test_accuracy"] <= 1 and 0 < epoch["test_loss"] < 2.5 for epoch in epochs)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["models"] == {epoch["model"]: epoch for epoch in epochs}
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)
    for epoch in epochs:
        assert f"{epoch['model']}: test accuracy {epoch['test_accuracy']:.1%}" in done.stdout
    assert str(tmp_path / "digits.png") in done.stdout


@pytest.mark.parametrize(("accuracy", "status"), [(0.949, 1), (0.95, 0), (0.96, 0)])
def test_digits_exit_status_says_whether_the_target_was_reached(tmp_path, monkeypatch, capsys, accuracy, status):
    import train_digits
    from digits_training import Epoch

    monkeypatch.setattr(train_digits, "train", lambda name, *_, **__: [Epoch(name, 1, 0.3, 0.2, accuracy, 1.5)])
    assert train_digits.main(["--model", "dense", "--epochs", "1", "--out", str(tmp_path)]) == status
    assert ("below the target of 95.0%" in capsys.readouterr().out) == bool(status)


def test_digits_split_is_stratified_and_disjoint():
    import digits_data

    train, test = digits_data.load_images()
    assert len(train.labels) + len(test.labels) == 1797
    for split in (train, test):
        assert split.x.shape == (len(split.labels), 8, 8, 1)
        shares = np.bincount(split.labels, minlength=10) / len(split.labels)
        np.testing.assert_allclose(shares, 0.1, atol=0.005)
    rows = {image.tobytes() for image in train.x}
    assert sum(image.tobytes() in rows for image in test.x) == 0


def test_bilinear_samples():
    import foveation

    image = np.arange(12, dtype=np.float32).reshape(1, 3, 4, 1)  # value = 4 row + column, its middle at (1, 1.5)
    points = np.array([[0, -0.5], [-1, 1.5], [0.25, 0.25], [1, 1.75], [-5, 0]])
    #                 pixel (1, 1)  (0, 3)     between     half out    outside
    np.testing.assert_allclose(foveation.sample(image, points)[0, :, 0], [5, 3, 4 * 1.25 + 1.75, 11 * 0.75, 0])


def test_sensor_is_dense_at_the_centre():
    import foveation

    cortex = foveation.cortex_points(3)
    assert len(cortex) == 1 + 6 + 12 + 18
    retina = foveation.to_retina(cortex, radius=4, strength=1.2)
    radii = np.unique(np.linalg.norm(retina, axis=1).round(9))
    steps = np.diff(radii)
    np.testing.assert_allclose(radii[[0, -1]], [0, 4])
    np.testing.assert_allclose(steps[1:] / steps[:-1], np.exp(1.2 / 3))  # rings grow by one factor


# CIFAR-10 ----------------------------------------------------------------------------------------------------------


def write_archive(path, batches):
    with tarfile.open(path, "w:gz") as archive:
        for number, batch in enumerate(batches, start=1):
            content = batch if isinstance(batch, bytes) else pickle.dumps(batch, protocol=2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/data_batch_{number}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def cifar_batches():
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(5, 4, 3072), dtype=np.uint8)
    return [{b"data": p, b"labels": [n, 1, 2, 9], b"batch_label": b"part"} for n, p in enumerate(pixels)]


@pytest.mark.parametrize("extracted", [False, True], ids=["archive", "folder"])
def test_cifar_reads_images(tmp_path, extracted):
    import cifar10_data

    batches = cifar_batches()
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", batches)
    if extracted:
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
        path = tmp_path / "cifar-10-batches-py"
    images = cifar10_data.load(path)
    assert images.x.shape == (20, 32, 32, 3)
    np.testing.assert_array_equal(images.labels, [label for n in range(5) for label in (n, 1, 2, 9)])
    blue = batches[2][b"data"][1, 2 * 1024 + 7 * 32 + 5]  # planes red, green, blue; row 7, column 5
    np.testing.assert_allclose(images.x[2 * 4 + 1, 7, 5, 2], (blue / 255 - 0.447) / 0.262, rtol=1e-5)


class Malice:
    def __reduce__(self):
        return os.system, ("echo never",)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": Malice(), b"labels": [0]}, "system, which is no array"),
        ({b"data": np.zeros((1, 3072), np.float32), b"labels": [0]}, "expected b'data' to be uint8"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, "expected b'labels' to be 2 classes"),
        ([1, 2], "expected b'data' to be uint8"),
        (b"no pickle", "is no CIFAR-10 batch"),
    ],
    ids=["code", "dtype", "labels", "list", "garbage"],
)
def test_cifar_refuses_what_is_not_cifar(tmp_path, batch, message):
    import cifar10_data

    path = write_archive(tmp_path / "archive.tar.gz", [batch])
    with pytest.raises(ValueError, match=message):
        cifar10_data.load(path)


def test_cifar_says_what_is_missing(tmp_path):
    import cifar10_data

    with pytest.raises(ValueError, match="neither a file nor a folder"):
        cifar10_data.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"cannot read .*data_batch_1"):
        cifar10_data.load(tmp_path)
    with pytest.raises(ValueError, match="has no cifar-10-batches-py/data_batch_5"):
        cifar10_data.load(write_archive(tmp_path / "short.tar.gz", cifar_batches()[:4]))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="no tar archive"):
        cifar10_data.load(tmp_path / "text")


def test_cifar_twins_give_the_same_logits():
    from cifar10_model import Cifar10CNN

    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 32, 3)), jnp.float32)
    models = [Cifar10CNN(backend, rngs=nnx.Rngs(0)) for backend in ("knnconv", "flax")]
    ours, flax = (nnx.jit(lambda model, images: model(images))(model, images) for model in models)
    assert ours.shape == (2, 10)
    np.testing.assert_allclose(ours, flax, rtol=1e-4, atol=1e-4)


def test_cifar_normalises_as_flax_does():
    from cifar10_model import _NormRelu

    random = np.random.default_rng(2)
    x, g = (jnp.asarray(random.normal(2, 3, (4, 6, 8, 5)), jnp.float32) for _ in range(2))
    ours, flax = (norm(5, momentum=0.9, rngs=nnx.Rngs(0)) for norm in (_NormRelu, nnx.BatchNorm))
    found = []
    for norm, activate in ((ours, lambda y: y), (flax, nnx.relu)):
        norm.scale[...], norm.bias[...] = jnp.linspace(-1, 2, 5), jnp.linspace(-1, 1, 5)

        def weighted(norm, x, activate=activate):
            y = activate(norm(x))
            return (y * g).sum(), y

        gradients, y = nnx.grad(weighted, argnums=(0, 1), has_aux=True)(norm, x)
        found.append([y, *jax.tree.leaves((gradients, nnx.state(norm, nnx.BatchStat)))])
    assert [value.shape for value in found[0]] == [x.shape, (5,), (5,), x.shape, (5,), (5,)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_cifar_pools_as_flax_does():
    from cifar10_model import _halve

    random = np.random.default_rng(1)
    x, g = (jnp.asarray(random.normal(size=size), jnp.float32) for size in ((2, 6, 8, 3), (2, 3, 4, 3)))
    y, pull = jax.vjp(_halve, x)
    expected, expected_pull = jax.vjp(lambda x: nnx.max_pool(x, (2, 2), strides=(2, 2)), x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pull(g)[0], expected_pull(g)[0])


def test_cifar_trains_on_synthetic_images():
    done = run_example("train_cifar10.py", "--steps", 3, "--batch", 32, "--dtype", "float16")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step .* loss ([\d.]+)", done.stdout, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_cifar_explains_bad_data(tmp_path):
    done = run_example("train_cifar10.py", "--data", tmp_path / "nothing")
    assert done.returncode == 2
    assert "neither a file nor a folder" in done.stderr
