"""Measure the data loader in images per second.

    python benchmarks/loader.py [FOLDER] [--workers 2] [--seconds 5] [--json]

The work: two 224 px random resized crops of every JPEG file of FOLDER (or of 256 synthetic
photographs of 500 x 375 pixels). Ours reads files and each kind of pack. It is compared with
torchvision's own transforms, image by image, on Pillow images in a DataLoader with as many workers.
Colour and blur run on the device and are measured in views.py.

All files fit the page cache, so this measures decoding and cropping, not the disk. With --workers 0
the rate is per second of CPU time, which other work on the machine does not disturb. The last line
is the number of steps per second with a data set that is stored on the device (512 x 32 px).
"""

import argparse
import json
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
from antipode.data.sources import packed
from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.data.sources.source import Source
from antipode.data.views.views import views
from decode import photographs

BATCH = 64
PACKS = {
    "packed bytes": {},
    "packed pixels, 256 px": {"size": 256},
    "packed JPEG, 256 px": {"size": 256, "quality": 90},
}
Batches = Callable[[], Iterator[Any]]  # one side of the comparison


class Torchvision(Dataset[Any]):
    """The usual way: open an image with Pillow, crop it twice, return two tensors."""

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
    """Yield batches of our loader without end."""
    make = views("mocov1", size=224)
    return Loader(source, make, batch=BATCH, epochs=10_000, seed=0, workers=workers).decoded()


def theirs(folder: Path, workers: int) -> Iterator[Any]:
    """Yield batches of torchvision's pipeline without end."""
    while True:
        yield from DataLoader(
            Torchvision(folder), BATCH, shuffle=True, drop_last=True, num_workers=workers
        )


def rate(batches: Iterator[Any], seconds: float, each: int, clock: Callable[[], float]) -> float:
    """Return how many items per second an iterator yields, if every batch holds `each`."""
    for _ in range(4):
        next(batches)
    count = 0
    start = clock()
    while clock() - start < seconds:
        next(batches)
        count += each
    return count / (clock() - start)


def resident(device: str) -> Iterator[Any]:
    """Yield the batches of a data set that is stored on the device."""
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


def megabytes(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1)


def sides(
    home: Path, files: list[bytes], workers: int
) -> tuple[dict[str, Batches], dict[str, float]]:
    """Write the files and packs; return what to measure and the megabytes of each, by name."""
    photos = home / "photos"
    photos.mkdir()
    for number in range(max(256, len(files))):
        (photos / f"{number:04d}.jpg").write_bytes(files[number % len(files)])
    name = f"folder:{photos}"
    batches: dict[str, Batches] = {
        "torchvision on Pillow images": lambda: theirs(photos, workers),
        "files": lambda: ours(load(name).pretrain, workers),
    }
    sizes = {"files": megabytes(photos)}
    for number, (label, settings) in enumerate(PACKS.items()):
        target = pack(name, home / f"pack{number}", **settings)
        sizes[label] = megabytes(target)
        batches[label] = lambda target=target: ours(load(f"packed:{target}").pretrain, workers)
    return batches, sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each side")
    parser.add_argument("--seconds", type=float, default=5, help="duration of one measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # read pixels from the pack as for a large data set; small packs are otherwise kept in memory
    packed.RESIDENT = 0
    workers = arguments.workers
    clock = time.perf_counter if workers else time.process_time
    with tempfile.TemporaryDirectory() as home:
        batches, sizes = sides(Path(home), photographs(arguments.folder), workers)
        rates = {
            label: round(rate(make(), arguments.seconds, BATCH, clock))
            for label, make in batches.items()
        }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = rate(resident(device), arguments.seconds, 1, time.perf_counter)
    if arguments.json:
        content = {"images/s": rates, "MB": sizes, f"steps/s on {device}": round(steps)}
        print(json.dumps({**content, "workers": workers}))
        return
    for label, speed in rates.items():
        ratio = f"{speed / rates['files']:5.2f} x files"
        print(f"{label:30} {speed:7,} images/s  {ratio}  {sizes.get(label, 0):6.1f} MB")
    print(f"{'on ' + device + ', 512 x 32 px':30} {steps:7,.0f} steps/s before views")


if __name__ == "__main__":
    main()
