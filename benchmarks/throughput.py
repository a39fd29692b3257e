"""Measure images per second of `pretrain`, of the bare step, and of lightly's SimCLR example.

    python benchmarks/throughput.py                     # appends to results/throughput.jsonl
    python benchmarks/throughput.py --recipe cifar10.simclr cifar10.byol --no-lightly

ResNet-18 with the small stem, two views of 32 px, batch 256, bf16, the 50,000 train images of
CIFAR-10 (in the folder ANTIPODE_DATA), on one GPU. All sides take turns in one process.

- ours: all of `pretrain`, with loading, views, records, health checks and checkpoints. The time
  before the end of the first epoch, in which the step is compiled, does not count.
- bare step: as in overhead.py. Forward pass, backward pass and optimiser on one batch that is
  already on the device, compiled and captured as one CUDA graph.
- lightly: its example, with its transform in loader workers.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import antipode
import overhead
from antipode.data.sources.catalog import load
from antipode.nets.backbone import backbone
from antipode.recipe.resolve import resolve
from antipode.training.build import build
from antipode.training.graph import Slower

IMAGES = 50_000  # train images of CIFAR-10
WARM_UP = 50  # steps of lightly before the clock starts
RECIPES: dict[str, dict[str, Any]] = {
    "cifar10.simclr": {},
    "cifar10.dcl": {},
    "cifar10.mocov2": {"method.queue": 65536},
    "cifar10.adco": {"method.bank": 8192, "method.symmetric": True},
    "cifar10.jcl": {"method.keys": 5},
    "cifar10.msbreg": {"method.views": 4},
    "cifar10.byol": {},
}


def pretrain_speed(name: str, values: dict[str, Any], epochs: int) -> dict[str, float]:
    """Return the images per second of `pretrain` after its first epoch, and the seconds before."""
    torch.compiler.reset()
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        run = antipode.pretrain(
            name, epochs=epochs, out=Path(folder) / "run", overrides=values, quiet=True
        )
        seconds = time.perf_counter() - start
        rows = [row for row in run.metrics() if "images_per_second" in row]
    later = [row for row in rows if row["epoch"] > 0]
    # All rows but the last cover the same number of images, so the mean speed over time is the
    # harmonic mean.
    mean = len(later) / sum(1 / row["images_per_second"] for row in later)
    return {"images_per_second": mean, "start": seconds - (epochs - 1) * IMAGES / mean}


def bare_step(name: str, values: dict[str, Any], steps: int) -> dict[str, float]:
    """Return the milliseconds of the bare step and the GPU memory that it takes."""
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    recipe = resolve(name, overrides=values)
    setup = build(recipe, load("cifar10", recipe.data.root))
    setup.step.compile()
    seconds = overhead.seconds(overhead.bare_step(setup), steps, setup.device)
    return {"ms": 1e3 * seconds, "memory_gib": torch.cuda.max_memory_allocated() / 2**30}


def lightly_speed(steps: int, workers: int) -> dict[str, Any]:
    """Return the images per second of lightly's SimCLR example, in bf16 like ours.

    Its transform runs in loader workers; head, loss and plain loop are the example's.
    """
    import lightly
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform
    from torchvision.datasets import CIFAR10

    transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    loader = torch.utils.data.DataLoader(
        CIFAR10(os.environ["ANTIPODE_DATA"], transform=transform),
        batch_size=256,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
    )
    # our network for both sides; the one of lightly's example has ImageNet's stem
    net = backbone("resnet18", stem="small")
    model = torch.nn.Sequential(net, SimCLRProjectionHead(512, 512, 128)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.06)
    loss = NTXentLoss()
    count = 0
    start = 0.0
    while count < steps + WARM_UP:
        for (x0, x1), _ in loader:
            with torch.autocast("cuda", torch.bfloat16):
                z0 = model(x0.cuda(non_blocking=True))
                z1 = model(x1.cuda(non_blocking=True))
            loss(z0.float(), z1.float()).backward()
            optimiser.step()
            optimiser.zero_grad()
            count += 1
            if count == WARM_UP:  # workers have started, and the GPU runs at full clock speed
                torch.cuda.synchronize()
                start = time.perf_counter()
            if count == steps + WARM_UP:
                break
    torch.cuda.synchronize()
    speed = steps * 256 / (time.perf_counter() - start)
    return {"images_per_second": speed, "workers": workers, "version": lightly.__version__}


def measure(name: str, steps: int, epochs: int) -> dict[str, Any]:
    """Return the bare step and the whole loop of a recipe, and warnings of failed compilation."""
    values = RECIPES.get(name, {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        bare = bare_step(name, values, steps)
        ours = pretrain_speed(name, values, epochs)
    batch = resolve(name, overrides=values).train.batch
    share = ours["images_per_second"] * bare["ms"] / 1e3 / batch
    slower = [str(warning.message) for warning in caught if issubclass(warning.category, Slower)]
    speed = f"{ours['images_per_second']:,.0f} images/s"
    summary = f"{speed}, {100 * share:.1f} % of the bare {bare['ms']:.2f} ms"
    sentences = "; ".join([f"{ours['start']:.0f} s to start", *slower])
    print(f"{name}: {summary}, {sentences}", flush=True)
    row = {
        "recipe": name,
        "set": values,
        "batch": batch,
        "bare": bare,
        "ours": ours,
        "share": share,
    }
    return row | ({"slower": slower} if slower else {})


class Visit:
    """The last line of the results file, rewritten after each measurement; other lines stay."""

    def __init__(self, file: Path, line: dict[str, Any]) -> None:
        self.file = file
        self.line = line
        self.earlier = file.read_text() if file.exists() else ""

    def add(self, key: str, value: dict[str, Any]) -> None:
        """Append a measurement to the list `key` and write the file."""
        self.line[key].append(value)
        self.file.write_text(self.earlier + json.dumps(self.line) + "\n")

    def compare(self) -> None:
        """Print our SimCLR against the best of lightly's measurements, if both are there."""
        theirs = [result["images_per_second"] for result in self.line["lightly"]]
        ours = [
            row["ours"]["images_per_second"]
            for row in self.line["rows"]
            if row["recipe"] == "cifar10.simclr"
        ]
        if theirs and ours:
            speeds = ", ".join(f"{speed:,.0f}" for speed in theirs)
            print(f"lightly {speeds} images/s; ours / its best {ours[0] / max(theirs):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--epochs", type=int, default=6, help="epochs of `pretrain`")
    parser.add_argument("--steps", type=int, default=300, help="bare steps, and lightly's steps")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="lightly's workers")
    parser.add_argument("--lightly", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results" / "throughput.jsonl",
        help="the file that a line is appended to",
    )
    args = parser.parse_args()
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "commit": os.environ.get("ANTIPODE_COMMIT", ""),
        "date": time.strftime("%Y-%m-%d"),
    }
    visit = Visit(args.out, {**facts, "lightly": [], "rows": []})
    for number, name in enumerate(args.recipe):
        if args.lightly and number < 2:  # before and after our first recipe
            visit.add("lightly", lightly_speed(args.steps, args.workers))
        try:
            visit.add("rows", measure(name, args.steps, args.epochs))
        except Exception as error:  # one failing recipe must not end the others
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    visit.compare()


if __name__ == "__main__":
    main()
