"""Trains a dense CNN and a foveated KNN CNN on scikit-learn's handwritten digits.

    python examples/train_digits.py [--epochs 25] [--seed 0] [--model both] [--out runs/digits]

Writes metrics.jsonl (one line an epoch), summary.json and digits.png into --out. The exit status is 1 if a model's test
accuracy stays below --target.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import jax
from digits_data import load_images
from digits_models import MODELS
from digits_plots import PICTURED, save_figure
from digits_training import Epoch, train

import jax_knnconv


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the batches' order")
    parser.add_argument("--target", type=float, default=0.95, help="lowest test accuracy that counts as success")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the results")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, write the results, print a summary; 0 if every model reached the target."""
    options = _parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    train_split, test_split = load_images()
    histories: dict[str, list[Epoch]] = {}
    with open(options.out / "metrics.jsonl", "w") as metrics:

        def log(epoch: Epoch) -> None:
            metrics.write(json.dumps(epoch._asdict()) + "\n")
            metrics.flush()

        for name in MODELS if options.model == "both" else [options.model]:
            histories[name] = train(
                name, MODELS[name], train_split, test_split, epochs=options.epochs, seed=options.seed, log=log
            )
    save_figure(options.out / "digits.png", test_split.x[PICTURED], histories, options.target)
    summary = {
        "versions": {"jax_knnconv": jax_knnconv.__version__, "jax": jax.__version__},
        "device": jax.devices()[0].device_kind,
        "epochs": options.epochs,
        "seed": options.seed,
        "target": options.target,
        "models": {name: history[-1]._asdict() for name, history in histories.items()},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    missed = False
    for name, history in histories.items():
        last = history[-1]
        short = last.test_accuracy < options.target
        missed |= short
        verdict = f"  below the target of {options.target:.1%}" if short else ""
        print(f"{name:>5}: test accuracy {last.test_accuracy:.1%} in {last.seconds:.1f} s{verdict}")
    print(f"results: {options.out / 'digits.png'}, metrics.jsonl and summary.json beside it")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
