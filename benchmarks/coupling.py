"""Find out why q_B of a trained SimCLR does not approach 1 (figure 1 of DCL, claims page).

    python benchmarks/coupling.py                                     # one GPU, about 2 minutes
    python benchmarks/coupling.py --recipe digits.simclr --epochs 6 --out trial.json

q_B is the share of the negatives in the softmax of a query. It depends on the temperature, on how
similar the two views of an image have become, and on the batch size. A run is trained once. The
same two views of its images then give q_B

- at several checkpoints, with the temperature of training;
- at the last checkpoint, with several temperatures.

Only one of them changes at a time. The environment variable ANTIPODE_DATA names the folder with
CIFAR-10.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import antipode
from accuracy import facts
from antipode import rng
from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.formulas import multipliers
from antipode.analysis.run import _embeddings
from antipode.core.scores import unit
from antipode.devices import pick_device
from machine import surroundings

OUT = Path(__file__).parent / "results" / "coupling.json"
BATCHES = (4, 32, 256, 1024)
TEMPERATURES = (0.05, 0.07, 0.1, 0.2, 0.5, 1.0)
CHECKPOINTS = 10


def coupling(subject: RunEmbeddings, tau: float) -> dict[str, Any]:
    """Return the mean of q_B by batch size, and the mean cosine of positives and of negatives."""
    ids, views = subject.pairs()
    first, second = (unit(view) for view in views.head)
    sizes = [size for size in BATCHES if size <= len(ids)]
    means = {}
    for size in sizes:
        key = rng.key(subject.seed, "npc", size, device=subject.device)
        means[size] = float(multipliers(first, second, size, tau, key).double().mean())
    return {
        "epoch": subject.epoch,
        "tau": tau,
        "mean of q_B": means,
        "cosine of positives": float((first * second).sum(1).mean()),
        "cosine of negatives": float((first * second.roll(1, 0)).sum(1).mean()),
    }


def trained(recipe: str, epochs: int, out: Path) -> antipode.Run:
    """Train a run and keep about ten checkpoints."""
    every = max(1, epochs // CHECKPOINTS)
    values = {"train.checkpoint_every": every, "train.keep": CHECKPOINTS + 1}
    return antipode.pretrain(recipe, epochs=epochs, out=out, overrides=values, quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="cifar10.simclr-paper")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = trained(args.recipe, args.epochs, Path(folder) / "run")
        device = pick_device("auto")
        subject = _embeddings(run, "run", {}, None, device, 0, None)
        tau = subject.tau
        assert tau is not None
        with torch.no_grad():
            by_epoch = [coupling(moment, tau) for moment in subject.history(CHECKPOINTS)]
            by_temperature = [coupling(subject, value) for value in TEMPERATURES]
    content = {
        "recipe": args.recipe,
        "epochs": args.epochs,
        "by epoch": by_epoch,
        "by temperature": by_temperature,
        **surroundings("torch"),
        **facts(),
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n")
    for row in (*by_epoch, *by_temperature):
        means = ", ".join(f"{mean:.3f} at {size}" for size, mean in row["mean of q_B"].items())
        cosines = f"{row['cosine of positives']:.2f} and {row['cosine of negatives']:.2f}"
        print(f"epoch {row['epoch']:g}, tau {row['tau']:g}: q_B {means}; cosines {cosines}")


if __name__ == "__main__":
    main()
