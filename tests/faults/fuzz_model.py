"""Damage the JSON files of a classifier's folder at random, and load it.

    python -m tests.faults.fuzz_model [COUNT [SEED]]

A damaged folder must load as the classifier that was written, or raise a ValueError or OSError of
one sentence. Only the names of the classes and the scores may differ.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import antipode
from antipode.evaluation.score import Score
from antipode.finetuning.model import MODEL, SCORES, Network, write
from antipode.nets.backbone import backbone
from antipode.nets.weight_file import Normal
from tests.faults.fuzz_json import mutated


def written(folder: Path) -> None:
    """Write a classifier with random weights."""
    torch.manual_seed(0)
    net = backbone("resnet10-slim", stem="half")
    fc = nn.Linear(net.width, 3)
    normal = Normal((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    network = Network("resnet10-slim", "half", 3, 16, "mocov2", normal)
    score = Score(50.0, "% top-1", "finetune", low=40.0, high=60.0, chance=33.3, more={"a": 1.0})
    write(
        folder,
        net.eval(),
        (fc.weight, fc.bias),
        network,
        {"classes": ["a", "b", "c"], "trained": {"epochs": 3}},
        {"finetune": score.json()},
    )


def fuzz(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how often a folder was loaded or refused, and a text for every failure."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    image = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written(folder)
        expected = antipode.load_classifier(folder)(image)
        for number in range(count):
            file = folder / (SCORES if number % 5 == 4 else MODEL)
            before = file.read_bytes()
            file.write_bytes(mutated(json.loads(before), draw))
            try:
                model = antipode.load_classifier(folder)
                model.line()
                counts["loaded"] += 1
                same = model.transform.view.sizes == [16] and torch.equal(model(image), expected)
                failures += [] if same else [f"case {number}: other logits"]
            except (ValueError, OSError) as error:
                counts["refused"] += 1
                failures += [f"case {number}: {error}"] if "\n" in str(error) else []
            except Exception as error:
                failures.append(f"case {number}: {type(error).__name__}: {error}")
            file.write_bytes(before)
    return counts, failures


def main() -> int:
    count, seed = (int(word) for word in (*sys.argv[1:], "3000", "0")[:2])
    counts, failures = fuzz(count, seed)
    print(dict(counts), f"{len(failures)} failures", *failures[:20], sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
