"""The picture of a training run: how the foveated network sees a digit, and how the models learned."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from digits_models import NEIGHBORS, RINGS, FoveatedCNN
from digits_training import Epoch
from foveation import cortex_points, cortex_table
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Okabe and Ito's palette, which stays apart for colour-blind readers; the lines' dashes differ too.
_BLUE, _VERMILLION, _GREEN = "#0072B2", "#D55E00", "#009E73"
_STYLES = {"dense": (_BLUE, "--", "dense CNN"), "knn": (_VERMILLION, "-", "foveated KNN CNN")}
PICTURED = 0  # the test image that is drawn
_SHOWN_ROWS = (0, 21)  # of the first layer's 61 outputs: the centre, and one where the spacing has grown


def draw_retina(axes: Axes, image: np.ndarray) -> None:
    """The sampling points over the image, with two neighbourhoods of the first layer."""
    center = (np.array(image.shape[:2]) - 1) / 2
    points = FoveatedCNN.sensor() + center
    axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1.6)
    axes.scatter(points[:, 1], points[:, 0], s=9, color=_BLUE, label=f"{len(points)} sampling points")
    _draw_neighbourhoods(axes, points, FoveatedCNN.look_at(cortex_points(RINGS[1])) + center)
    axes.set(title="On the image: log-polar points", xlabel="column (pixels)", ylabel="row (pixels)")
    axes.set(xlim=(-1.3, 8.3), ylim=(8.3, -1.3), xticks=range(8), yticks=range(8), aspect="equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9, ncols=2, frameon=False)


def draw_cortex(axes: Axes, image: np.ndarray) -> None:
    """The sampled values where the network has them, on evenly spaced points."""
    points = cortex_points(RINGS[0])
    values = FoveatedCNN.see(image[None])[0, :, 0]
    axes.scatter(points[:, 1], points[:, 0], s=95, c=values, cmap="gray_r", vmin=0, vmax=1.6, edgecolors="0.6", lw=0.5)
    _draw_neighbourhoods(axes, points, cortex_points(RINGS[1]))
    axes.set(title="In the network: evenly spaced", xlabel="cortex x", ylabel="cortex y")
    axes.set(xlim=(-1.15, 1.15), ylim=(1.15, -1.15), aspect="equal")


def _draw_neighbourhoods(axes: Axes, points: np.ndarray, queries: np.ndarray) -> None:
    """Lines from the place of an output to each of the sensor points that it sums."""
    taps = np.asarray(cortex_table(RINGS[0], RINGS[1], NEIGHBORS).indices)
    for row in _SHOWN_ROWS:
        near, query = points[taps[row]], queries[row]
        for place in near:
            axes.plot([query[1], place[1]], [query[0], place[0]], color=_VERMILLION, lw=1.2, zorder=3)
        label = f"{NEIGHBORS} neighbours of an output" if row == _SHOWN_ROWS[0] else None
        ring = {"facecolors": "none", "edgecolors": _VERMILLION, "lw": 1.4}
        axes.scatter(near[:, 1], near[:, 0], s=28, zorder=4, label=label, **ring)


def draw_curves(loss_axes: Axes, accuracy_axes: Axes, histories: dict[str, list[Epoch]], target: float) -> None:
    """Training and test loss, and test accuracy, of every model."""
    for name, history in histories.items():
        color, dashes, label = _STYLES[name]
        epochs = [epoch.epoch for epoch in history]
        style = {"color": color, "ls": dashes}
        loss_axes.plot(epochs, [epoch.train_loss for epoch in history], **style, label=f"{label}, training")
        loss_axes.plot(
            epochs, [epoch.test_loss for epoch in history], **style, lw=1, marker=".", label=f"{label}, test"
        )
        accuracy = [epoch.test_accuracy for epoch in history]
        accuracy_axes.plot(epochs, accuracy, **style, marker=".", label=f"{label}: {accuracy[-1]:.1%}")
    accuracy_axes.axhline(target, color="0.5", ls=":", label=f"target: {target:.0%}")
    loss_axes.set(title="Loss", xlabel="epoch", ylabel="cross entropy", yscale="log")
    accuracy_axes.set(title="Accuracy on held-out digits", xlabel="epoch", ylabel="test accuracy")
    accuracy_axes.yaxis.set_major_formatter(PercentFormatter(1))
    accuracy_axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    for axes in (loss_axes, accuracy_axes):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)


def save_figure(path: Path, image: np.ndarray, histories: dict[str, list[Epoch]], target: float) -> None:
    """Write the picture of a whole run as a PNG."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 9), layout="constrained")
    draw_retina(axes[0, 0], image)
    draw_cortex(axes[0, 1], image)
    draw_curves(axes[1, 0], axes[1, 1], histories, target)
    figure.savefig(path, dpi=110)
    plt.close(figure)
