"""Trains a dense CNN and a foveated KNN CNN on scikit-learn's handwritten digits.

    python examples/train_digits.py [--epochs 25] [--seed 0] [--model both] [--out runs/digits] [--devices 1]

With --devices, each batch is split over that many devices (virtual ones on a CPU). Several processes share them if each
is started with --coordinator HOST:PORT --processes N --process I, where process 0 runs on HOST.

Writes metrics.jsonl (one line an epoch), summary.json and digits.png into --out. The exit status is 1 if a model's test
accuracy stays below --target.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import jax
from digits_data import Split, load_images
from digits_devices import Placement, start
from digits_models import MODELS
from digits_plots import PICTURED, save_figure
from digits_training import BATCH, Epoch, train

import jax_knnconv


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both", help="which networks to train")
    parser.add_argument("--epochs", type=int, default=25, help="of training")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the batches' order")
    parser.add_argument("--target", type=float, default=0.95, help="lowest test accuracy that counts as success")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the results")
    parser.add_argument("--devices", type=int, default=1, help="of all processes together; they divide a batch of 64")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, for several processes")
    parser.add_argument("--processes", type=int, default=1, help="how many share the devices")
    parser.add_argument("--process", type=int, default=0, help="which of them this is")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")
    if options.devices < 1 or BATCH % options.devices:
        parser.error(f"--devices must divide a batch of {BATCH}, got {options.devices}")
    if options.processes < 1 or options.devices % options.processes:
        parser.error(f"--processes must divide the {options.devices} devices, got {options.processes}")
    if not 0 <= options.process < options.processes:
        parser.error(f"--process must be in [0, {options.processes}), got {options.process}")
    if (options.processes > 1) != (options.coordinator is not None):
        parser.error("--processes of 2 or more and --coordinator go together")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, write the results, print a summary; 0 if every model reached the target."""
    options = _parse(arguments)
    start(options.devices, coordinator=options.coordinator, processes=options.processes, process=options.process)
    placement = Placement(options.devices)
    train_split, test_split = load_images()
    speaks = jax.process_index() == 0  # the others compute, and leave files and words to it
    if speaks:
        options.out.mkdir(parents=True, exist_ok=True)
    histories: dict[str, list[Epoch]] = {}
    with open(options.out / "metrics.jsonl" if speaks else os.devnull, "w") as metrics:

        def log(epoch: Epoch) -> None:
            metrics.write(json.dumps(epoch._asdict()) + "\n")
            metrics.flush()

        for name in MODELS if options.model == "both" else [options.model]:
            histories[name] = train(
                name,
                MODELS[name],
                train_split,
                test_split,
                epochs=options.epochs,
                seed=options.seed,
                placement=placement,
                log=log,
            )
    if speaks:
        _report(options, test_split, histories)
    return 1 if any(history[-1].test_accuracy < options.target for history in histories.values()) else 0


def _report(options: argparse.Namespace, test_split: Split, histories: dict[str, list[Epoch]]) -> None:
    save_figure(options.out / "digits.png", test_split.x[PICTURED], histories, options.target)
    summary = {
        "versions": {"jax_knnconv": jax_knnconv.__version__, "jax": jax.__version__},
        "device": jax.devices()[0].device_kind,
        "devices": options.devices,
        "processes": options.processes,
        "epochs": options.epochs,
        "seed": options.seed,
        "target": options.target,
        "models": {name: history[-1]._asdict() for name, history in histories.items()},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    for name, history in histories.items():
        last = history[-1]
        short = last.test_accuracy < options.target
        verdict = f"  below the target of {options.target:.1%}" if short else ""
        print(f"{name:>5}: test accuracy {last.test_accuracy:.1%} in {last.seconds:.1f} s{verdict}")
    print(f"results: {options.out / 'digits.png'}, metrics.jsonl and summary.json beside it")


if __name__ == "__main__":
    sys.exit(main())
