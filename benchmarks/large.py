"""Measure training on photographs at 224 px: from files and packs, compared with the bare step.

    python benchmarks/large.py --out large.json             # one GPU, 16 cores, about 5 minutes
    python benchmarks/large.py --network resnet50           # one network only
    python benchmarks/large.py --lightly                    # beside lightly, if it is installed
    python benchmarks/large.py --smoke                      # a CPU, small images, a few steps

MoCo v2 with a queue of 65,536, two views of 224 px, batch 256, bf16, ResNet-50 and ResNet-18, on
synthetic photographs of 500 x 375 px (JPEG quality 90, about 76 kB) that the script makes. All
sides take turns in one process with the same compiled network:

- bare step: forward pass, backward pass and optimiser on views that are ready on the device,
  captured as one CUDA graph.
- loader: what the loader delivers to the device if nothing is trained.
- pretrain: the training loop with loading, views, learning rates and records.

The sources are the files, a pack of JPEGs of 256 px and a pack of pixels of 256 px, all in the page
cache. JPEG is decoded by workers ("cpu"), by the GPU ("gpu", nvJPEG) or by both ("both"). A
measurement that fails is reported, and the others continue. No measurement starts later than
--budget seconds.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from antipode.data.decoders import choose_decoder, device_decoder
from antipode.data.device_decode import Decode
from antipode.data.loader import Loader
from antipode.data.sources import packed
from antipode.data.sources.catalog import load
from antipode.data.sources.decode import decode
from antipode.data.sources.pack import pack
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training.build import Setup, build
from antipode.training.graph import WARM, Slower
from antipode.training.progress import Silent
from antipode.training.record import Recorder
from antipode.types import Batch
from lightly_large import lightly_speed
from machine import CORES, surroundings
from overhead import captured, wait

DISTINCT = 2560  # photographs; further files are links to them
PACKS = {"JPEG pack": {"size": 256, "quality": 90}, "pixel pack": {"size": 256}}
# what is measured, most important first: the data set, and where JPEG is decoded
SIDES = [
    ("files", "gpu"),
    ("files", "cpu"),
    ("files", "both"),
    ("JPEG pack", "gpu"),
    ("pixel pack", "cpu"),
    ("JPEG pack", "cpu"),
]
WARM_UP = 15  # steps before the clock starts; they use up what workers have prepared
SMOKE_VALUES = {
    **{"train.batch": 16, "views.size": 32, "method.queue": 64, "train.device": "cpu"},
    **{"backbone.stem": "small", "data.workers": 1},
}


class Measurements:
    """Measurements by name, as they come in; a failed one is reported and not fatal."""

    def __init__(self, out: Path | None, facts: dict[str, Any], budget: float) -> None:
        self.out = out
        self.content: dict[str, Any] = {**facts, "rows": {}}
        self.start = time.perf_counter()
        self.budget = budget

    def add(self, name: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Measure and print one line; return what was measured, nothing if that failed."""
        begin = time.perf_counter()
        row: dict[str, Any]
        if begin - self.start > self.budget:
            row = {"failed": f"not started within {self.budget:.0f} s"}
        else:
            try:
                row = dict(work())
            except Exception as error:
                traceback.print_exc()
                row = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        took = time.perf_counter() - begin
        values = ", ".join(
            f"{key} {value:,.3g}" if isinstance(value, float) and value < 100
            else f"{key} {value:,.0f}" if isinstance(value, float)
            else f"{key}: {value}"
            for key, value in row.items()
        )  # fmt: skip
        print(f"{name:34} {values}   [{took:.0f} s, {self.elapsed():.0f} s in all]", flush=True)
        self.content["rows"][name] = row
        self.write()
        return {} if "failed" in row else row

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.start

    def write(self) -> None:
        """Write everything that is known to the JSON file."""
        if self.out:
            self.out.write_text(json.dumps(self.content, indent=1) + "\n")


def photograph(folder: Path, width: int, height: int, seed: int) -> None:
    """Write a JPEG file of coloured clouds with noise, which has a photograph's size in bytes."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = random.standard_normal(smooth.shape, np.float32)
    noisy = np.clip(smooth + 6 * noise, 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(folder / f"{seed:06d}.jpg", "JPEG", quality=90)


def make_files(photos: Path, args: argparse.Namespace) -> dict[str, float]:
    """Write the photographs on all cores, before CUDA starts."""
    photos.mkdir()
    width, height = (100, 75) if args.smoke else (500, 375)
    distinct = min(DISTINCT, args.images)
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        pool.map(partial(photograph, photos, width, height), range(distinct), chunksize=16)
    for number in range(distinct, args.images):
        os.link(photos / f"{number % distinct:06d}.jpg", photos / f"{number:06d}.jpg")
    sizes = [file.stat().st_size for file in [*photos.iterdir()][:100]]
    return {"files": float(args.images), "kB each": sum(sizes) / len(sizes) / 1e3}


def make_pack(names: dict[str, str], label: str, home: Path, smoke: bool) -> dict[str, float]:
    """Write a pack and add its name."""
    settings = PACKS[label] | ({"size": 48} if smoke else {})
    path = pack(names["files"], home / label.replace(" ", "-"), progress=False, **settings)
    names[label] = f"packed:{path}"
    return {}


def endless(setup: Setup, name: str, where: str) -> Loader:
    """Return a loader of a data set that does not end."""
    recipe, device = setup.recipe, setup.device
    source = load(name).pretrain
    decoder: Decode | None = None
    if where == "host" or (where == "gpu" and device.type == "cpu"):
        decoder = partial(on_host, device)
    else:
        decoder = choose_decoder(where, source, setup.loader.views, device)
    return Loader(
        source,
        setup.loader.views,
        batch=recipe.train.batch,
        epochs=100_000,
        seed=0,
        device=device,
        workers=recipe.data.workers,
        decoder=decoder,
        share=where == "both",
    )


def on_host(device: torch.device, files: list[torch.Tensor], sides: object) -> list[torch.Tensor]:
    """Decode files with the decoder of the workers, in place of that of the GPU."""
    return [decode(data.numpy().tobytes()).to(device) for data in files]


def measure_pixels(setup: Setup, name: str) -> dict[str, float]:
    """Compare the crops that the GPU decodes and cuts with those of the workers, in grey levels.

    "cut" is the difference if only the crops, and not the files, are the GPU's work.
    """
    crops = {}
    for where in ("cpu", "host", "gpu"):
        steps = endless(setup, name, where).decoded()
        crops[where] = torch.cat([view.flatten() for view in next(steps)[2]]).int()
        steps.close()
    cut = (crops["host"] - crops["cpu"]).abs()
    whole = (crops["gpu"] - crops["cpu"]).abs()
    levels = {"cut most": cut.max(), "most": whole.max(), "mean": whole.double().mean()}
    shares = {f"% over {level}": 100 * (whole > level).double().mean() for level in (1, 4, 16)}
    return {key: float(value) for key, value in (levels | shares).items()}


def timed(items: Generator[Any, None, None], seconds: float, device: torch.device) -> float:
    """Return the seconds per item of a generator, after some items to warm up, and close it."""
    try:
        for _ in range(WARM_UP if seconds > 1 else 2):
            next(items)
        wait(device)
        start = time.perf_counter()
        count = 0
        while count < 3 or time.perf_counter() - start < seconds:
            next(items)
            count += 1
            if count % 50 == 0:  # so that the host is never far ahead of the device
                wait(device)
        wait(device)
        return (time.perf_counter() - start) / count
    finally:
        items.close()


def repeated(work: Callable[[], object]) -> Generator[None, None, None]:
    """Do some work again and again."""
    while True:
        work()
        yield


def training(setup: Setup, take: Any, loader: Loader, folder: Path) -> Generator[None, None, None]:
    """Train with a loader, as the training loop does; yield after each step."""
    setup.loader = loader
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(setup, RunFolder(folder), Silent(), None)
    for step, epoch, inputs in loader.inputs():
        rates = setup.prepare(step)
        recorder.note(step, epoch, rates, *take(*inputs))
        yield


def measure_bare(setup: Setup, seconds: float) -> dict[str, float]:
    """Measure a step on a fixed batch of views."""
    _, _, batch = next(setup.loader.steps())
    batch = Batch([view.clone() for view in batch.views], batch.image_ids.clone())
    for _ in range(WARM):
        setup.step(batch)
    step: Callable[[], object] = lambda: setup.step(batch)  # noqa: E731
    if setup.device.type == "cuda":
        step = captured(step)
    each = timed(repeated(step), seconds, setup.device)
    return {"images/s": setup.recipe.train.batch / each, "ms": 1e3 * each}


def measure_loader(setup: Setup, name: str, where: str, seconds: float) -> dict[str, float]:
    """Measure what the loader delivers to the device."""
    each = timed(endless(setup, name, where).inputs(), seconds, setup.device)
    return {"images/s": setup.recipe.train.batch / each}


def measure_training(
    setup: Setup, take: Any, side: tuple[str, str], home: Path, seconds: float, bare: float
) -> dict[str, float]:
    """Measure the training loop, in images per second and in % of the bare step."""
    loader = endless(setup, *side)
    with loader.beside():
        each = timed(training(setup, take, loader, home), seconds, setup.device)
    speed = setup.recipe.train.batch / each
    return {"images/s": speed} | ({"% of bare": 100 * speed / bare} if bare else {})


def measure_network(
    network: str, names: dict[str, str], home: Path, table: Measurements, args: argparse.Namespace
) -> None:
    """Measure one network: the bare step, and training from each source."""
    torch.compiler.reset()
    recipe = resolve("imagenet.mocov2", overrides=args.values | {"backbone.name": network})
    setup = build(recipe, load(names["files"]))
    plain = setup.loader
    if network == args.network[0]:
        if ("files", "gpu") in args.sides:
            table.add("pixels of the GPU", lambda: measure_pixels(setup, names["files"]))
        for label, where in args.sides:
            if label in names:
                work = partial(measure_loader, setup, names[label], where, args.seconds / 2)
                table.add(f"loader, {label}, {where}", work)
    take = setup._whole_step()
    bare = table.add(f"{network}, bare step", lambda: measure_bare(setup, args.seconds))
    if args.lightly:
        settings = {"size": recipe.views.size, "batch": recipe.train.batch, "seconds": args.seconds}
        settings |= {"queue": recipe.method.arguments["queue"], "workers": plain.workers}
        work = partial(lightly_speed, home / "photos", network, **settings)
        table.add(f"{network}, lightly", work)
    for label, where in args.sides:
        if label in names:
            setup.loader = plain
            side = (names[label], where)
            folder = home / f"{network} {label} {where}"
            table.add(
                f"{network}, {label}, {where}",
                lambda side=side, folder=folder: measure_training(
                    setup, take, side, folder, args.seconds, bare.get("images/s", 0.0)
                ),
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", nargs="+", default=["resnet50", "resnet18"])
    parser.add_argument("--images", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5, help="duration of one measurement")
    parser.add_argument("--budget", type=float, default=280, help="start nothing later than this")
    parser.add_argument("--workers", type=int, help="loader processes; by default one per core")
    parser.add_argument("--source", nargs="+", choices=["files", *PACKS], help="by default all")
    parser.add_argument("--lightly", action="store_true", help="also measure lightly")
    parser.add_argument("--smoke", action="store_true", help="small images and few steps")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    packed.RESIDENT = 0  # read pixels from the pack as for a data set that does not fit the memory
    args.values = {"train.batch": args.batch, "data.workers": args.workers}
    args.values["data.decoder"] = "cpu"  # each measurement chooses its own
    if args.smoke:
        args.images, args.seconds, args.network = 64, 0.1, ["resnet10-slim"]
        args.values |= SMOKE_VALUES
    facts = {**surroundings("torch", "torchvision", "torchcodec"), "date": time.strftime("%F")}
    table = Measurements(args.out, facts, args.budget)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        home = Path(place)
        names = {"files": f"folder:{home / 'photos'}"}
        table.add("make the files", lambda: make_files(home / "photos", args))
        for label in [label for label in PACKS if label in (args.source or PACKS)]:
            table.add(f"make the {label}", partial(make_pack, names, label, home, args.smoke))
        on_gpu = torch.cuda.is_available() and not args.smoke
        can_decode = on_gpu and device_decoder(torch.device("cuda", 0)) is not None
        chosen = SIDES[:2] if args.smoke else SIDES
        chosen = [side for side in chosen if side[0] in (args.source or side)]
        args.sides = [side for side in chosen if side[1] == "cpu" or can_decode or args.smoke]
        if on_gpu and not can_decode:
            print("this GPU, or its torchvision, has no JPEG decoder", flush=True)
        for network in args.network:
            try:
                measure_network(network, names, home, table, args)
            except Exception:
                traceback.print_exc()
    messages = [str(warning.message) for warning in caught if warning.category is Slower]
    for message in messages:
        print(message)
    table.content["slower"] = messages
    table.write()


if __name__ == "__main__":
    main()
