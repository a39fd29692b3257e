"""Measure which settings of AdCo's bank keep it moving on CIFAR-10, and what that costs.

    python benchmarks/adco_bank.py --list                  # settings, finished or not, and a table
    python benchmarks/adco_bank.py --jobs 3 --minutes 9    # missing settings that fit 9 minutes
    python benchmarks/adco_bank.py --only 'bank4096-*' --epochs 100

One-way AdCo with ResNet-18, 30 epochs unless --epochs is given, in all combinations of the bank's
learning rate, temperature and size. The options are those of accuracy.py. A tenth of the train
images is held out before pretraining. `linear-fast` on folds of the other train images and kNN on
the held-out ones are the scores to choose by; no test image is used.

The table has the drift of the bank over 100 steps (mean of 1 - cosine between a vector and itself)
in the second half and at the end of training, and the mean and the nearest cosine of queries with
the bank and with as many fresh keys.
"""

from itertools import product
from pathlib import Path
from typing import Any

from accuracy import main, read_lines
from entries import Entry
from records import fold_accuracy

OUT = Path(__file__).parent / "results" / "adco_bank.jsonl"
SIZES = (4096, 1024, 16384)  # the size of the recipe first
RATES = (0.3, 1.0, 3.0)
TEMPERATURES = (0.02, 0.03, 0.05, 0.1)
KINDS = ("bank", "fresh keys")
COLUMNS = (
    *("bank", "bank_lr", "tau_bank", "epochs", "folds", "knn", "drift", "drift at end"),
    *("mean cosine", "nearest", "mean, fresh", "nearest, fresh"),
)


def entries() -> dict[str, Entry]:
    """Return a run for each combination of size, learning rate and temperature."""
    return {
        f"bank{size}-lr{rate:g}-tau{tau:g}": Entry(
            "cifar10.adco",
            epochs=30,
            values={"method.bank": size, "method.bank_lr": rate, "method.tau_bank": tau},
            seconds=70,
        )
        for size, rate, tau in product(SIZES, RATES, TEMPERATURES)
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Return a table of finished runs, best on train folds first."""
    rows = [COLUMNS, *(row(line) for line in sorted(lines, key=folds, reverse=True))]
    widths = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))
        for texts in rows
    )


def folds(line: dict[str, Any]) -> float:
    """Return the accuracy on train folds, 0 if it was not measured."""
    return fold_accuracy(line) or 0.0


def row(line: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of one run."""
    bank = line["bank"]
    knn = line["scores"].get("knn", {}).get("value", float("nan"))
    drift = [value for key, value in bank.items() if key.startswith("drift")]
    cosines = [bank[f"{name} cosine, {kind}"] for kind in KINDS for name in ("mean", "hardest")]
    values = [line["values"][f"method.{key}"] for key in ("bank", "bank_lr", "tau_bank")]
    return (
        *(f"{value:g}" for value in values),
        str(line["epochs"]),
        f"{folds(line):.1f}",
        f"{knn:.1f}",
        *(f"{value:.1e}" for value in reversed(drift)),
        *(f"{value:.2f}" for value in cosines),
    )


if __name__ == "__main__":
    arguments = main(entries(), __doc__, out=OUT, validate=True)
    finished = [line for line in read_lines(arguments.out) if "bank" in line]
    if finished and not arguments.beside:
        print(table(finished))
