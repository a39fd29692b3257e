"""Measure training on photographs at 224 px: from files and packs, compared with the bare step.

    python benchmarks/large.py --out large.json             # one GPU, about 4 minutes
    python benchmarks/large.py --smoke                      # a CPU, small images, a few steps

MoCo v2 with a queue of 65,536, two views of 224 px, batch 256, bf16, ResNet-50 and ResNet-18, on
synthetic photographs of 500 x 375 px (JPEG quality 90, about 76 kB) that the script makes. All
sides take turns in one process with the same compiled network:

- bare step: forward pass, backward pass and optimiser on views that are ready on the device,
  captured as one CUDA graph.
- loader: what the loader delivers to the device if nothing is trained.
- pretrain: the training loop with loading, views, learning rates and records.

The sources are the files, a pack of JPEGs of 256 px and a pack of pixels of 256 px. All files fit
the page cache.
"""

import argparse
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from antipode.data.loader import Loader
from antipode.data.sources import packed
from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training.build import Setup, build
from antipode.training.graph import WARM, Slower
from antipode.training.progress import Silent
from antipode.training.record import Recorder
from antipode.types import Batch
from machine import surroundings
from overhead import captured, wait

DISTINCT = 256  # photographs; further files are links to them
PACKS = {"JPEG pack, 256 px": {"size": 256, "quality": 90}, "pixel pack, 256 px": {"size": 256}}
Take = Callable[..., tuple[Any, torch.Tensor]]


def photograph(seed: int, width: int, height: int) -> bytes:
    """Return a JPEG file of coloured clouds with noise, which has a photograph's size in bytes."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noisy = np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


def sources(home: Path, args: argparse.Namespace) -> dict[str, str]:
    """Write the files and packs; return the name of each data set."""
    photos = home / "photos"
    photos.mkdir()
    width, height = (100, 75) if args.smoke else (500, 375)
    for number in range(args.images):
        file = photos / f"{number:06d}.jpg"
        if number < DISTINCT:
            file.write_bytes(photograph(number, width, height))
        else:
            os.link(photos / f"{number % DISTINCT:06d}.jpg", file)
    names = {"files": f"folder:{photos}"}
    for index, (label, settings) in enumerate(PACKS.items()):
        sizes = settings | ({"size": 48} if args.smoke else {})
        names[label] = f"packed:{pack(names['files'], home / f'pack{index}', **sizes)}"
    return names


def endless(setup: Setup, name: str) -> Loader:
    """Return a loader of a data set that does not end."""
    recipe, device = setup.recipe, setup.device
    settings = {"seed": 0, "device": device, "workers": recipe.data.workers}
    batch = recipe.train.batch
    return Loader(load(name).pretrain, setup.loader.views, batch=batch, epochs=10_000, **settings)


def timed(items: Generator[Any, None, None], warm: int, steps: int, device: torch.device) -> float:
    """Return the seconds per item of a generator, after some items to warm up, and close it."""
    for _ in range(warm):
        next(items)
    wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        next(items)
    wait(device)
    seconds = (time.perf_counter() - start) / steps
    items.close()
    return seconds


def repeated(work: Callable[[], object]) -> Generator[None, None, None]:
    """Do some work again and again."""
    while True:
        work()
        yield


def training(setup: Setup, take: Take, loader: Loader, folder: Path) -> Generator[None, None, None]:
    """Train with a loader, as the training loop does; yield after each step."""
    setup.loader = loader
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(setup, RunFolder(folder), Silent(), None)
    for step, epoch, inputs in loader.inputs():
        rates = setup.prepare(step)
        recorder.note(step, epoch, rates, *take(*inputs))
        yield


def bare(setup: Setup, loader: Loader, steps: int) -> float:
    """Return the seconds of a step on a fixed batch of views."""
    _, _, batch = next(loader.steps())
    batch = Batch([view.clone() for view in batch.views], batch.image_ids.clone())
    for _ in range(WARM):
        setup.step(batch)
    step: Callable[[], object] = lambda: setup.step(batch)  # noqa: E731
    if setup.device.type == "cuda":
        step = captured(step)
    return timed(repeated(step), 3, steps, setup.device)


def compare(recipe: Recipe, names: dict[str, str], home: Path, steps: int) -> dict[str, Any]:
    """Return images per second of the bare step, and of loader and loop from each source."""
    setup = build(recipe, load(names["files"]))
    take = setup._whole_step()
    count = recipe.train.batch
    rows: dict[str, Any] = {}
    for label, name in names.items():
        loader = endless(setup, name)
        alone = timed(loader.inputs(), 20, steps, setup.device)
        steady = training(setup, take, loader, home / f"run {label}")
        loop = timed(steady, 3 * WARM + 5, steps, setup.device)
        rows[label] = {"loader": count / alone, "pretrain": count / loop}
    speed = count / bare(setup, loader, steps)
    for label, row in rows.items():
        row["share"] = row["pretrain"] / speed
        rates = f"loader {row['loader']:7,.0f}, pretrain {row['pretrain']:7,.0f} images/s"
        print(f"  {label:20} {rates}, {100 * row['share']:.1f} % of the bare step", flush=True)
    print(f"  {'bare step':20} {1e3 * count / speed:.2f} ms, {speed:,.0f} images/s", flush=True)
    return {"bare": speed, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", nargs="+", default=["resnet50", "resnet18"])
    parser.add_argument("--images", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100, help="steps of one measurement")
    parser.add_argument("--workers", type=int, help="loader processes; by default one per core")
    parser.add_argument("--smoke", action="store_true", help="small images and few steps")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    packed.RESIDENT = 0  # read pixels from the pack as for a data set that does not fit the memory
    values = {"train.batch": args.batch, "data.workers": args.workers}
    if args.smoke:
        args.images, args.steps, args.network = 64, 4, ["resnet18"]
        values |= {"train.batch": 16, "views.size": 32, "method.queue": 64, "train.device": "cpu"}
    facts = surroundings("torch", "torchvision")
    content: dict[str, Any] = {**facts, "date": time.strftime("%Y-%m-%d"), "networks": {}}
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        start = time.perf_counter()
        names = sources(Path(home), args)
        print(f"{args.images:,} files and packs in {time.perf_counter() - start:.0f} s", flush=True)
        for network in args.network:
            torch.compiler.reset()
            recipe = resolve("imagenet.mocov2", overrides=values | {"backbone.name": network})
            print(network, flush=True)
            folder = Path(home) / network
            content["networks"][network] = compare(recipe, names, folder, args.steps)
    slower = [str(warning.message) for warning in caught if issubclass(warning.category, Slower)]
    print("\n".join(slower), end="\n" if slower else "")
    print(f"{time.perf_counter() - start:.0f} s in all")
    if args.out:
        args.out.write_text(json.dumps({**content, "slower": slower}, indent=1) + "\n")


if __name__ == "__main__":
    main()
