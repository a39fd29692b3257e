"""Images per second of `pretrain`, of the bare step on a fixed batch, and of lightly as its example does it: one run.

    python benchmarks/throughput.py --out throughput.json
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import antipode
from antipode.data.catalog import load
from antipode.engine.recipe import resolve
from antipode.engine.train import build
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
        run = antipode.pretrain(name, epochs=epochs, out=Path(place) / "run", overrides=values, quiet=True)
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

    data = CIFAR10(os.environ["ANTIPODE_DATA"], transform=SimCLRTransform(input_size=32, gaussian_blur=0.0))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=256,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
    )
    net = backbone("resnet18", stem="small")  # the same network; their example's has ImageNet's stem
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--lightly", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("throughput.json"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cores": os.cpu_count()}
    facts["commit"] = os.environ.get("ANTIPODE_COMMIT", "")
    theirs = [lightly(args.steps, args.workers)] if args.lightly else []
    for name in args.recipe:
        values = RECIPES.get(name, {})
        plain, whole = step(name, values, args.steps), ours(name, values, args.epochs)
        batch = resolve(name, overrides=values).train.batch
        row = {"recipe": name, "set": values, "batch": batch, "bare": plain, "ours": whole}
        row["share"] = whole["images_per_second"] * plain["ms"] / 1e3 / batch
        rows.append(row)
        said = (
            f"{whole['images_per_second']:,.0f} images/s, {100 * row['share']:.1f} % of the bare {plain['ms']:.2f} ms"
        )
        print(f"{name}: {said}, {whole['start']:.0f} s to start", flush=True)
        args.out.write_text(json.dumps({**facts, "lightly": theirs, "rows": rows}, indent=1) + "\n")
    if args.lightly:
        theirs.append(lightly(args.steps, args.workers))  # again: ours ran in between
        best = max(one["images_per_second"] for one in theirs)
        print(
            f"lightly {best:,.0f} images/s; ours over it {rows[0]['ours']['images_per_second'] / best:.2f}", flush=True
        )
        args.out.write_text(json.dumps({**facts, "lightly": theirs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
