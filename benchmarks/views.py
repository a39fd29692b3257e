"""Compare the speed of SimCLR's views: ours, torchvision, kornia and lightly in one run.

    python benchmarks/views.py --out views.json                  # all sides, 32 and 224 pixels
    python benchmarks/views.py --device cuda --size 224 --side ours kornia

The work: make two normalised float32 views of each uint8 RGB image of a batch in memory. The images
have 32 pixels for views of 32 and 256 for views of 224. The policy is RandomResizedCrop (scale .08
to 1, ratio 3/4 to 4/3, bilinear, antialiased), horizontal flip p .5, ColorJitter (.8 .8 .8 .2) p .8
in random order, greyscale p .2, Gaussian blur p .5 with sigma .1 to 2 and a kernel of a tenth of
the view, ImageNet's mean and deviation. If a peer does something else as shipped, its line says so.

Peers that work image by image run in one process per core with one thread each. Their views are
dropped at once, so collating and transferring them is not counted; this is their best case. Sides
that work on batches use one thread per core. On a CPU ours also runs in one process per core, since
other work on the machine disturbs separate processes less than threads that wait for each other.
Batches are small on a CPU, because large ones do not fit its caches. malloc keeps freed memory, for
all sides.
"""

import argparse
import ctypes
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode.data.views.views import IMAGENET_MEAN, IMAGENET_STD, views
from machine import CORES, surroundings

VIEWS = 2
OURS = "ours, compiled, a process per core"
PIL = "torchvision, PIL"
TENSOR = "torchvision, tensor"
LIGHTLY = "lightly (Pillow's blur: no kernel size)"
TEAMS: list[tuple[Barrier, list[Any]]] = []  # worker processes that wait for the next measurement


class Work(NamedTuple):
    """What every side has to do."""

    size: int  # pixels of a view
    pixels: int  # pixels of an image
    images: int  # images of a batch
    device: str
    seconds: float  # duration of one measurement

    @property
    def taps(self) -> int:
        """The kernel size of the blur."""
        return 2 * (self.size // 20) + 1

    def batch(self) -> Tensor:
        """Return smooth random images, which resemble photographs more than noise does."""
        coarse = torch.rand(self.images, 3, 9, 9, generator=torch.Generator().manual_seed(0))
        smooth = torch.nn.functional.interpolate(
            coarse, (self.pixels, self.pixels), mode="bicubic"
        ).clamp(0, 1)
        return (smooth * 255).to(torch.uint8)


Rate = Callable[[], float]  # one measurement, in views per second


def keep_memory() -> None:
    """Make glibc keep freed memory. Otherwise page faults at every step would dominate."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, at its largest


# Sides that work on batches: ours and kornia


def timed(work: Work, step: Callable[[], object]) -> float:
    """Return the views per second of a step that makes the views of one batch."""
    wait = torch.cuda.synchronize if work.device == "cuda" else lambda: None
    step()
    wait()
    steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < work.seconds:
        for _ in range(10 if work.device == "cuda" else 1):
            step()
            steps += 1
        wait()
    return VIEWS * work.images * steps / (time.perf_counter() - start)


def ours(work: Work) -> dict[str, Rate]:
    """Ours eager, compiled, and on a GPU as a CUDA graph. The random draws are included."""
    make = views("simclr", size=work.size).to(work.device)
    images = work.batch().to(work.device)
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
    """Capture a step as a CUDA graph, and return the measurement of its replay."""
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
    """kornia's augmentations."""
    import kornia.augmentation as K

    side = (work.size, work.size)
    kernel = (work.taps, work.taps)
    policy = torch.nn.Sequential(
        K.RandomResizedCrop(side, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
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


# One process per core with one thread each: torchvision, lightly and, on a CPU, ours


class Step(NamedTuple):
    """A step of a worker process."""

    run: Callable[[int], object]  # takes the number of the step
    views: int  # number of views that one step makes


def one_by_one(transform: Callable[[Any], object], images: list[Any]) -> Step:
    """Return a step that transforms one image."""
    return Step(lambda step: transform(images[step % len(images)]), VIEWS)


def torchvision_step(work: Work, images: list[Any], *convert: Any) -> Step:
    """Return torchvision's transforms of one image; `convert` makes a tensor of a Pillow image."""
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
    return one_by_one(lambda image: [transform(image) for _ in range(VIEWS)], images)


def step_of(kind: str, work: Work) -> Step:
    """Return the step of a side by its name."""
    from PIL import Image

    if kind == OURS:
        make = views("simclr", size=work.size)
        batch = work.batch()
        compiled = torch.compile(make.apply, fullgraph=True, dynamic=False)
        return Step(lambda step: compiled(batch, make.draw(work.images)), VIEWS * work.images)
    tensors = list(work._replace(images=64).batch())
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in tensors]
    if kind == LIGHTLY:
        from lightly.transforms import SimCLRTransform

        return one_by_one(SimCLRTransform(input_size=work.size), pictures)
    if kind == TENSOR:
        return torchvision_step(work, tensors)
    from torchvision.transforms.v2 import ToImage

    return torchvision_step(work, pictures, ToImage())


def worker(kind: str, work: Work, barrier: Barrier, results: Any) -> None:
    """Measure whenever all workers meet at the barrier; end when the barrier is broken."""
    torch.set_num_threads(1)
    keep_memory()
    step = step_of(kind, work)
    for number in range(8):  # warm-up
        step.run(number)
    while True:
        try:
            barrier.wait()
        except BrokenBarrierError:
            return
        count = 0
        start = time.perf_counter()
        while time.perf_counter() - start < work.seconds:
            step.run(count)
            count += 1
        results.put(step.views * count / (time.perf_counter() - start))


def processes(kind: str, work: Work) -> Rate:
    """Start one worker per core, and return the measurement of their common rate."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(CORES + 1)
    results = context.Queue()
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


def end_workers() -> None:
    """End all worker processes."""
    while TEAMS:
        barrier, team = TEAMS.pop()
        barrier.abort()
        for member in team:
            member.join()


def torchvision(work: Work) -> dict[str, Rate]:
    """torchvision's transforms on Pillow images and on tensors."""
    return {kind: processes(kind, work) for kind in (PIL, TENSOR)}


def lightly(work: Work) -> dict[str, Rate]:
    """lightly's SimCLR transform."""
    import lightly as _  # noqa: F401  (raises ImportError here rather than in the workers)

    return {LIGHTLY: processes(LIGHTLY, work)}


SIDES = {"ours": ours, "kornia": kornia, "torchvision": torchvision, "lightly": lightly}


def compare(work: Work, chosen: list[str], rounds: int) -> dict[str, Any]:
    """Return the best of some rounds for every side; the sides take turns within a round."""
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
    end_workers()
    our_speeds = [speed for name, speed in best.items() if name.startswith("ours")]
    fastest = max(our_speeds, default=float("nan"))
    count = VIEWS * work.images
    print(f"\n{work.size} px from {work.pixels} px, {count} views a batch, on {work.device}")
    for name, speed in best.items():
        per_batch = f"{1e3 * count / speed:9.3f} ms a batch"
        print(f"  {name:52} {speed:12,.0f} views/s {per_batch}   ours/it {fastest / speed:6.2f}")
    for sentence in missing:
        print(f"  not installed: {sentence}")
    ratios = {name: fastest / speed for name, speed in best.items() if not name.startswith("ours")}
    return {**work._asdict(), "views_per_second": best, "ours_over": ratios, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs="+", default=[32, 224], choices=[32, 224])
    parser.add_argument("--side", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(CORES)
    keep_memory()
    print(__doc__.split("\n\n")[2])  # the paragraph that describes the work
    report: dict[str, Any] = {
        "surroundings": surroundings("torch", "torchvision", "kornia", "lightly", "pillow"),
        "results": [],
    }
    print(report["surroundings"])
    for size in args.size:
        images = {"cuda": {32: 256, 224: 256}, "cpu": {32: 64, 224: 2}}[args.device][size]
        work = Work(size, 32 if size == 32 else 256, images, args.device, args.seconds)
        report["results"].append(compare(work, args.side, args.rounds))
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
