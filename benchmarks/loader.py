"""The loader, images per second: python benchmarks/loader.py [FOLDER] [--workers 2] [--seconds 5] [--json]

Two 224 px random resized crops of every JPEG of FOLDER (or of 256 made-up photographs of 500 x 375 pixels), from files
and from each kind of pack, against torchvision's own per-image transforms on Pillow images in a DataLoader with as many
workers. Colour and blur run on the device and are measured in views.py. All files fit the page cache: this is the cost
of decoding and cropping, not of the disk. With --workers 0 the rate is per second of CPU time, which other work on the
machine does not disturb. Last, steps per second of a data set that lives on the device (512 x 32 px).
"""

import argparse
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from antipode.data.loader import Loader
from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.data.sources.source import Source
from antipode.data.views.views import views
from decode import photographs

BATCH = 64


class Torchvision(Dataset[Any]):
    """What people do: an image opened by Pillow, two crops, two tensors."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.iterdir())
        self.crop = v2.Compose(
            [v2.RandomResizedCrop(224, (0.2, 1.0)), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = Image.open(self.files[index]).convert("RGB")
        return self.crop(image), self.crop(image)


def ours(source: Source, workers: int) -> Iterator[Any]:
    make = views("mocov1", size=224)
    return Loader(source, make, batch=BATCH, epochs=10_000, seed=0, workers=workers).decoded()


def theirs(folder: Path, workers: int) -> Iterator[Any]:
    while True:
        yield from DataLoader(
            Torchvision(folder), BATCH, shuffle=True, drop_last=True, num_workers=workers
        )


def rate(batches: Iterator[Any], seconds: float, each: int, clock: Callable[[], float]) -> float:
    for _ in range(4):
        next(batches)
    count, start = 0, clock()
    while clock() - start < seconds:
        next(batches)
        count += each
    return count / (clock() - start)


def resident(device: str) -> Iterator[Any]:
    loader = Loader(
        load("shapes").pretrain,
        views("simclr", size=32),
        batch=512,
        epochs=10_000,
        seed=0,
        device=device,
    )
    for step in loader.resident():
        if device == "cuda":
            torch.cuda.synchronize()
        yield step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    home = Path(tempfile.mkdtemp())
    files = photographs(arguments.folder)
    (home / "photos").mkdir()
    for number in range(max(256, len(files))):
        (home / "photos" / f"{number:04d}.jpg").write_bytes(files[number % len(files)])
    name, workers = f"folder:{home / 'photos'}", arguments.workers
    packs = {
        "packed bytes": {},
        "packed pixels, 256 px": {"size": 256},
        "packed JPEG, 256 px": {"size": 256, "quality": 90},
    }
    runs: dict[str, Callable[[], Iterator[Any]]] = {
        "torchvision on Pillow images": lambda: theirs(home / "photos", workers),
        "files": lambda: ours(load(name).pretrain, workers),
    }
    sizes = {"files": size(home / "photos")}
    for number, (label, settings) in enumerate(packs.items()):
        target = pack(name, home / f"pack{number}", **settings)
        sizes[label] = size(target)
        runs[label] = lambda target=target: ours(load(f"packed:{target}").pretrain, workers)
    clock = time.perf_counter if workers else time.process_time
    rates = {
        label: round(rate(run(), arguments.seconds, BATCH, clock)) for label, run in runs.items()
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = rate(resident(device), arguments.seconds, 1, time.perf_counter)
    shutil.rmtree(home)
    if arguments.json:
        print(
            json.dumps(
                {
                    "images/s": rates,
                    "MB": sizes,
                    f"steps/s on {device}": round(steps),
                    "workers": workers,
                }
            )
        )
        return
    for label, value in rates.items():
        print(
            f"{label:30} {value:7,} images/s  {value / rates['files']:5.2f} x files  {sizes.get(label, 0):6.1f} MB"
        )
    print(f"{'on ' + device + ', 512 x 32 px':30} {steps:7,.0f} steps/s before views")


def size(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1)


if __name__ == "__main__":
    main()
