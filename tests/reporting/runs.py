"""Small run folders that are written without training."""

import json
import math

import numpy as np
import torch
from PIL import Image

from antipode.nets import weights
from antipode.nets.backbone import backbone
from antipode.recipe.resolve import resolve

SMALL = {"backbone.name": "resnet10-slim", "train.batch": 16, "train.epochs": 4}
ENV = {
    "antipode": "0",
    "commit": "c0ffee",
    "device": "cpu",
    "command": ["/somewhere/antipode", "pretrain", "a b"],
}


def rows(steps=40, *, seed=0, knn=True, every=1):
    """Return the lines of a log with epochs of ten steps.

    The loss falls, health is logged every five steps, and kNN at the end of each epoch.
    """
    found = []
    for step in range(0, steps, every):
        row = {
            "step": step,
            "epoch": step // 10,
            "loss": 5 * math.exp(-step / 20) + 0.1 * seed,
            "lr_network": 0.1,
        }
        row |= {"images_per_second": 160.0, "positive": 0.5}
        if step % 5 == 0:
            row |= {"spread": 0.9, "rank": 12.0, "uniformity": -2.0 - step / 100}
        found.append(row)
        if knn and step % 10 == 9:
            found.append({"step": step, "epoch": step // 10, "knn": 30.0 + step + seed})
    return found


def score(value, *, protocol="knn", n=1000, **settings):
    about = {
        "data": "digits",
        "split": "test",
        "n": n,
        "seed": 0,
        "epoch": "last",
        "more": {"top-5": 99.0},
    }
    return {
        "value": value,
        "unit": "% top-1",
        "protocol": protocol,
        "settings": {"k": 200, **settings},
        **about,
    }


def run(
    path,
    *,
    method="dcl",
    data="digits",
    seed=0,
    scores=None,
    log=None,
    trained=True,
    channels=1,
    **overrides,
):
    """Write a run folder. With `trained`, it has a backbone with random weights."""
    path.mkdir(parents=True)
    recipe = resolve(method=method, data=data, overrides=SMALL | {"train.seed": seed} | overrides)
    recipe.write(path / "recipe.json")
    (path / "env.json").write_text(json.dumps(ENV))
    lines = rows(seed=seed) if log is None else log
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    if scores is not None:
        (path / "scores.json").write_text(json.dumps(scores))
    if trained:
        torch.manual_seed(seed)
        net = backbone("resnet10-slim", stem=recipe.backbone.stem, channels=channels)
        weights.write(net, path / "backbone.safetensors")
    return path


def photographs(path, count=40):
    """Write a flat folder of small images without labels."""
    path.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for at in range(count):
        Image.fromarray(noise.integers(0, 256, (20, 28, 3), dtype=np.uint8)).save(
            path / f"{at}.png"
        )
    return path


ANALYSIS = {
    "npc": {
        "settings": {"images": 512},
        "values": {"mean": 0.25, "largest": 1.0},
        "curves": {
            "q": {"x": [1, 2, 3], "y": [0.1, 0.2, 0.4], "xlabel": "batch", "ylabel": "multiplier"},
            "other q": {
                "x": [1, 2, 3],
                "y": [0.2, 0.2, 0.1],
                "xlabel": "batch",
                "ylabel": "multiplier",
            },
        },
        "histograms": {"cosines": {"edges": [-1, 0, 1], "counts": [3, 5], "xlabel": "cosine"}},
        "notes": ["a note <b>of markup</b>"],
    },
    "cka": {"values": {"another run": 0.5}},
    "bank": {"skipped": "it has no bank"},
}
