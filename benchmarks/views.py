"""SimCLR views per second: ours against torchvision, kornia and lightly, the same work in one run.

    python benchmarks/views.py --out views.json                       # all sides, 32 and 224 pixels, both on all cores
    python benchmarks/views.py --device cuda --size 224 --side ours kornia

The work: uint8 RGB images in memory (32 pixels for views of 32, 256 for views of 224) to two normalised float32 views
each. RandomResizedCrop (scale .08 to 1, ratio 3/4 to 4/3, bilinear, antialiased), horizontal flip .5, ColorJitter
(.8 .8 .8 .2) p .8 in random order, greyscale p .2, Gaussian blur p .5 with sigma .1 to 2 and a kernel of a tenth of the
view, ImageNet's mean and deviation. Where a peer does something else as shipped, its line says so.

Peers that work image by image run in one process per core, each with one thread; what they make is thrown away at once,
so neither collating nor passing it on is counted: their best case. Batched sides use one thread per core; ours on a CPU
also runs as the peers do, which suffers less from other work on the machine than threads that wait for each other.
Batches are small on a CPU, where large ones leave the caches; malloc keeps freed memory, for all sides.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode.data.views.views import IMAGENET_MEAN, IMAGENET_STD, views

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
VIEWS = 2
OURS = "ours, compiled, a process per core"
PIL, TENSOR = "torchvision, PIL", "torchvision, tensor"
LIGHTLY = "lightly (Pillow's blur: no kernel size)"
TEAMS: list[tuple[Barrier, list[Any]]] = []  # workers at work


class Work(NamedTuple):
    size: int  # pixels of a view
    pixels: int  # pixels of an image
    images: int  # of a batch
    device: str
    seconds: float  # of one measurement

    @property
    def taps(self) -> int:
        return 2 * (self.size // 20) + 1

    def batch(self) -> Tensor:
        """Smooth random images, so that compressible photographs and not noise are the model."""
        coarse = torch.rand(self.images, 3, 9, 9, generator=torch.Generator().manual_seed(0))
        smooth = torch.nn.functional.interpolate(
            coarse, (self.pixels, self.pixels), mode="bicubic"
        ).clamp(0, 1)
        return (smooth * 255).to(torch.uint8)


Rate = Callable[[], float]  # one measurement, in views per second


def keep_memory() -> None:
    """Have glibc keep freed memory, for all sides: page faults at every step would be what is measured."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, at its largest


# Ours and kornia: batches


def timed(work: Work, step: Callable[[], object]) -> float:
    wait = torch.cuda.synchronize if work.device == "cuda" else lambda: None
    step()
    wait()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < work.seconds:
        for _ in range(10 if work.device == "cuda" else 1):
            step()
            steps += 1
        wait()
    return VIEWS * work.images * steps / (time.perf_counter() - start)


def ours(work: Work) -> dict[str, Rate]:
    """Eager, compiled, and on a GPU captured in a CUDA graph; the draws are counted."""
    make, images = views("simclr", size=work.size).to(work.device), work.batch().to(work.device)
    compiled = torch.compile(make.apply, fullgraph=True, dynamic=False)

    def eager_step() -> object:
        return make(images)

    def compiled_step() -> object:
        return compiled(images, make.draw(work.images, device=work.device))

    sides: dict[str, Rate] = {"ours, eager": lambda: timed(work, eager_step)}
    sides["ours, compiled"] = lambda: timed(work, compiled_step)
    if work.device == "cpu":
        sides[OURS] = processes(OURS, work)
    else:
        sides["ours, eager in a CUDA graph"] = captured(work, eager_step)
        sides["ours, compiled in a CUDA graph"] = captured(work, compiled_step)
    return sides


def captured(work: Work, step: Callable[[], object]) -> Rate:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda: timed(work, graph.replay)


def kornia(work: Work) -> dict[str, Rate]:
    import kornia.augmentation as K

    kernel, crop = (work.taps, work.taps), {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
    policy = torch.nn.Sequential(
        K.RandomResizedCrop((work.size, work.size), **crop),
        K.RandomHorizontalFlip(p=0.5),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur(kernel, (0.1, 2.0), p=0.5),
        K.Normalize(torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)),
    ).to(work.device)
    images = work.batch().to(work.device)

    def step() -> object:
        return [policy(images.float() / 255) for _ in range(VIEWS)]

    return {"kornia (no antialiasing, one jitter order a batch)": lambda: timed(work, step)}


# torchvision, lightly and, on a CPU, ours: one process per core, with one thread


class Step(NamedTuple):
    run: Callable[[int], object]  # the number of the step
    views: int  # that it makes


def one_by_one(work: Work, transform: Callable[[Any], object], images: list[Any]) -> Step:
    return Step(lambda step: transform(images[step % len(images)]), VIEWS)


def torchvision_step(work: Work, images: list[Any], *convert: Any) -> Step:
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(work.size, scale=(0.08, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(work.taps, (0.1, 2.0))], p=0.5),
            *convert,
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    return one_by_one(work, lambda image: [transform(image) for _ in range(VIEWS)], images)


def step_of(kind: str, work: Work) -> Step:
    from PIL import Image

    if kind == OURS:
        make, batch = views("simclr", size=work.size), work.batch()
        compiled = torch.compile(make.apply, fullgraph=True, dynamic=False)
        return Step(lambda step: compiled(batch, make.draw(work.images)), VIEWS * work.images)
    tensors = list(work._replace(images=64).batch())
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in tensors]
    if kind == LIGHTLY:
        from lightly.transforms import SimCLRTransform

        return one_by_one(work, SimCLRTransform(input_size=work.size), pictures)
    if kind == TENSOR:
        return torchvision_step(work, tensors)
    from torchvision.transforms.v2 import ToImage

    return torchvision_step(work, pictures, ToImage())


def worker(kind: str, work: Work, barrier: Barrier, results: Any) -> None:
    torch.set_num_threads(1)
    keep_memory()
    step = step_of(kind, work)
    for warm in range(8):
        step.run(warm)
    while True:
        try:
            barrier.wait()
        except BrokenBarrierError:
            return
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < work.seconds:
            step.run(done)
            done += 1
        results.put(step.views * done / (time.perf_counter() - start))


def processes(kind: str, work: Work) -> Rate:
    """Workers that wait for each measurement, until the barrier breaks."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(CORES + 1), context.Queue()
    team = [
        context.Process(target=worker, args=(kind, work, barrier, results), daemon=True)
        for _ in range(CORES)
    ]
    for member in team:
        member.start()
    TEAMS.append((barrier, team))

    def rate() -> float:
        barrier.wait()
        return float(sum(results.get() for _ in range(CORES)))

    return rate


def dismiss() -> None:
    while TEAMS:
        barrier, team = TEAMS.pop()
        barrier.abort()
        for member in team:
            member.join()


def torchvision(work: Work) -> dict[str, Rate]:
    return {kind: processes(kind, work) for kind in (PIL, TENSOR)}


def lightly(work: Work) -> dict[str, Rate]:
    import lightly as _  # noqa: F401

    return {LIGHTLY: processes(LIGHTLY, work)}


SIDES = {"ours": ours, "kornia": kornia, "torchvision": torchvision, "lightly": lightly}


def compare(work: Work, chosen: list[str], rounds: int) -> dict[str, Any]:
    """The best of some rounds for every side, the sides taking turns within a round."""
    rates: dict[str, Rate] = {}
    missing = []
    for side in chosen:
        try:
            rates |= SIDES[side](work)
        except ImportError as error:
            missing.append(f"{side}: {error}")
    best = dict.fromkeys(rates, 0.0)
    for _ in range(rounds):
        for name, rate in rates.items():
            best[name] = max(best[name], rate())
    dismiss()
    print(
        f"\n{work.size} px from {work.pixels} px, {VIEWS * work.images} views a batch, on {work.device}"
    )
    fastest = max(
        (each for name, each in best.items() if name.startswith("ours")), default=float("nan")
    )
    for name, each in best.items():
        per_batch = 1e3 * VIEWS * work.images / each
        print(
            f"  {name:52} {each:12,.0f} views/s {per_batch:9.3f} ms a batch   ours/it {fastest / each:6.2f}"
        )
    for sentence in missing:
        print(f"  not there: {sentence}")
    ratios = {name: fastest / each for name, each in best.items() if not name.startswith("ours")}
    return {**work._asdict(), "views_per_second": best, "ours_over": ratios, "missing": missing}


def surroundings() -> dict[str, Any]:
    found = {}
    for package in ("torch", "torchvision", "kornia", "lightly", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": CORES,
        "cpu": platform.processor() or platform.machine(),
        "gpu": gpu,
        "load": os.getloadavg(),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs="+", default=[32, 224], choices=[32, 224])
    parser.add_argument("--side", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the best of which counts")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(CORES)
    keep_memory()
    print(__doc__.split("\n\n")[2])
    report: dict[str, Any] = {"surroundings": surroundings(), "results": []}
    print(report["surroundings"])
    for size in chosen.size:
        images = {"cuda": {32: 256, 224: 256}, "cpu": {32: 64, 224: 2}}[chosen.device][size]
        work = Work(size, 32 if size == 32 else 256, images, chosen.device, chosen.seconds)
        report["results"].append(compare(work, chosen.side, chosen.rounds))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
