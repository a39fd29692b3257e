"""Images per second of `pretrain`, of the bare step on a fixed batch, and of lightly as its example does it: one run.

    python benchmarks/throughput.py                      # adds a line to results/throughput.jsonl
    python benchmarks/throughput.py --recipe cifar10.simclr cifar10.byol --no-lightly

ResNet-18 with the small stem, two views of 32 px, batch 256, bf16, 50,000 CIFAR-10 images (ANTIPODE_DATA). The sides
take turns. Ours is the whole of `pretrain`: loading, views, records, health and checkpoints; left out is the time
before the first epoch ends, in which the step is compiled. The bare step is overhead.py's: forward, backward and
optimiser on one batch that is ready on the device, compiled and captured in one CUDA graph.
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
from antipode.data.sources.catalog import load
from antipode.recipe.resolve import resolve
from antipode.training.loop import build
from antipode.training.step import Slower
from overhead import bare

RECIPES: dict[str, dict[str, Any]] = {
    "cifar10.simclr": {},
    "cifar10.dcl": {},
    "cifar10.mocov2": {"method.queue": 65536},
    "cifar10.adco": {"method.bank": 8192, "method.symmetric": True},
    "cifar10.jcl": {"method.keys": 5},
    "cifar10.msbreg": {"method.views": 4},
    "cifar10.byol": {},
}


def ours(name: str, values: dict[str, Any], epochs: int) -> dict[str, float]:
    """Images/s of `pretrain` after its first epoch, and the seconds before that."""
    torch.compiler.reset()
    with TemporaryDirectory() as place:
        start = time.perf_counter()
        run = antipode.pretrain(
            name, epochs=epochs, out=Path(place) / "run", overrides=values, quiet=True
        )
        seconds = time.perf_counter() - start
        rows = [row for row in run.metrics() if "images_per_second" in row]
    later = [row for row in rows if row["epoch"] > 0]
    # a row's images over its speed is its time; all rows have as many images but the last
    mean = len(later) / sum(1 / row["images_per_second"] for row in later)
    return {"images_per_second": mean, "start": seconds - (epochs - 1) * 50000 / mean}


def step(name: str, values: dict[str, Any], steps: int) -> dict[str, float]:
    """The bare step in milliseconds, and its parts' memory."""
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    recipe = resolve(name, overrides=values)
    job = build(recipe, load("cifar10", recipe.data.root))
    job.step.compile()
    seconds = bare(job, steps)
    return {"ms": 1e3 * seconds, "memory_gib": torch.cuda.max_memory_allocated() / 2**30}


def lightly(steps: int, workers: int) -> dict[str, Any]:
    """lightly's SimCLR example: its transform in loader workers, its head and loss, a plain loop; bf16 as ours."""
    import lightly as package
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform
    from torchvision.datasets import CIFAR10

    from antipode.nets.backbone import backbone

    data = CIFAR10(
        os.environ["ANTIPODE_DATA"], transform=SimCLRTransform(input_size=32, gaussian_blur=0.0)
    )
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=256,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
    )
    net = backbone(
        "resnet18", stem="small"
    )  # the same network; their example's has ImageNet's stem
    model = torch.nn.Sequential(net, SimCLRProjectionHead(512, 512, 128)).cuda()
    optimiser, loss = torch.optim.SGD(model.parameters(), lr=0.06), NTXentLoss()
    count, start = 0, 0.0
    while count < steps + 50:
        for (x0, x1), _ in loader:
            with torch.autocast("cuda", torch.bfloat16):
                z0, z1 = model(x0.cuda(non_blocking=True)), model(x1.cuda(non_blocking=True))
            loss(z0.float(), z1.float()).backward()
            optimiser.step()
            optimiser.zero_grad()
            count += 1
            if count == 50:  # workers are up, and so are the GPU's clocks
                torch.cuda.synchronize()
                start = time.perf_counter()
            if count == steps + 50:
                break
    torch.cuda.synchronize()
    speed = steps * 256 / (time.perf_counter() - start)
    return {"images_per_second": speed, "workers": workers, "version": package.__version__}


def row(name: str, steps: int, epochs: int) -> dict[str, Any]:
    """A recipe's bare step and whole loop, and whether anything of it could not be compiled."""
    values = RECIPES.get(name, {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        plain, whole = step(name, values, steps), ours(name, values, epochs)
    batch = resolve(name, overrides=values).train.batch
    share = whole["images_per_second"] * plain["ms"] / 1e3 / batch
    slow = [str(one.message) for one in caught if issubclass(one.category, Slower)]
    summary = f"{whole['images_per_second']:,.0f} images/s, {100 * share:.1f} % of the bare {plain['ms']:.2f} ms"
    print(
        f"{name}: {summary}, {whole['start']:.0f} s to start{''.join(f'; {one}' for one in slow)}",
        flush=True,
    )
    found = {
        "recipe": name,
        "set": values,
        "batch": batch,
        "bare": plain,
        "ours": whole,
        "share": share,
    }
    return found | ({"slower": slow} if slow else {})


class Visit:
    """One line of results, written anew with each thing measured; earlier lines stay."""

    def __init__(self, file: Path, line: dict[str, Any]) -> None:
        self.file, self.line = file, line
        self.earlier = file.read_text() if file.exists() else ""

    def add(self, key: str, value: dict[str, Any]) -> None:
        self.line[key].append(value)
        self.file.write_text(self.earlier + json.dumps(self.line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--lightly", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "throughput.jsonl"
    )
    args = parser.parse_args()
    facts: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    facts |= {
        "cores": os.cpu_count(),
        "commit": os.environ.get("ANTIPODE_COMMIT", ""),
        "date": time.strftime("%Y-%m-%d"),
    }
    visit = Visit(args.out, {**facts, "lightly": [], "rows": []})
    for number, name in enumerate(args.recipe):
        if args.lightly and number < 2:  # before and after ours
            visit.add("lightly", lightly(args.steps, args.workers))
        try:
            visit.add("rows", row(name, args.steps, args.epochs))
        except Exception as error:  # what others measured must not be lost for one that fails
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    theirs = [one["images_per_second"] for one in visit.line["lightly"]]
    ours_too = [one for one in visit.line["rows"] if one["recipe"] == "cifar10.simclr"]
    if theirs and ours_too:
        ratio = ours_too[0]["ours"]["images_per_second"] / max(theirs)
        print(
            f"lightly {', '.join(f'{speed:,.0f}' for speed in theirs)} images/s; ours over its best {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
