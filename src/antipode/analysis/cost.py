"""Analysis of what a run costs: parameters, operations, time and memory."""

import copy
import math
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result
from antipode.core.traits import Stored, stored_size
from antipode.recipe.recipe import Recipe
from antipode.training.build import Setup, build
from antipode.training.graph import WARM, Slower
from antipode.training.loop import unchanged
from antipode.training.step import filling

# Training steps that are timed on a CPU and on a GPU, and steps of warm-up before them. A step on a
# GPU is compiled and captured in the warm-up.
STEPS = 3, 100
WARM_UP = 1, 20
# Times are not comparable if other processes hold more than this on the GPU. It is more than the
# context of a process that does nothing (about 0.5 GiB).
SHARED = 2 << 30


class StepCost(NamedTuple):
    """Speed and memory of training steps on the present device."""

    images_per_second: float
    peak: int | None  # bytes on a GPU, None on other devices
    others: int  # bytes that other processes hold on the GPU, 0 on other devices


def parameters(module: nn.Module | None) -> int:
    """Return the number of scalars in the parameters of a module, each counted once."""
    return 0 if module is None else sum(weight.numel() for weight in module.parameters())


def operations(backbone: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the floating-point operations of a backbone for one image of shape (C,H,W).

    A multiplication followed by an addition counts as two operations.
    """
    device = next(backbone.parameters()).device
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone(torch.zeros(1, *shape, device=device))
    return int(counter.get_total_flops())


def kept_bytes(loss: Callable[[], Tensor], *inputs: Tensor) -> int:
    """Return how many bytes a loss keeps for its backward pass, without its inputs.

    The number is the same on every device.
    """
    input_storages = {x.untyped_storage().data_ptr() for x in inputs}
    sizes: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in input_storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        # The result must stay alive until everything is counted. Otherwise a storage could be freed
        # and another one allocated at the same address.
        value = loss()
    del value
    return sum(sizes.values())


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of `repeats` calls, after one call of warm-up."""
    times = []
    for _ in range(repeats + 1):
        start = _now(device)
        work()
        times.append(_now(device) - start)
    return statistics.median(times[1:])


def _now(device: torch.device) -> float:
    """Return the time in seconds at which the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure_steps(setup: Setup, count: int, warm_up: int, before: int = 0) -> StepCost:
    """Time `count` training steps as a run takes them, and measure their memory.

    The clock starts after `warm_up` steps, which are counted from the step in which a bank is full.
    `before` is the number of bytes that were allocated before the setup was built.
    """
    device = setup.device
    run = setup.run(0)
    settled = 0
    while settled < warm_up and next(run, None) is not None:
        settled = 0 if filling(setup.learner) else settled + 1
        if settled == WARM and device.type == "cuda":
            # the next step is captured, and allocates what the replayed steps use
            torch.cuda.reset_peak_memory_stats(device)
    start = _now(device)
    done = len(list(islice(run, count)))
    seconds_taken = _now(device) - start
    if done < count:
        raise ValueError(
            f"the run has only {setup.loader.total} steps, which is too few to time {count} steps "
            f"after {warm_up} steps of warm-up"
        )
    speed = done * setup.loader.batch / seconds_taken
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    return StepCost(speed, peak, _held_by_others(device))


def _held_by_others(device: torch.device) -> int:
    """Return the bytes on a GPU that are not this process's tensors, 0 on other devices."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


# The analysis of a run


def cost(subject: RunEmbeddings) -> Result:
    """Return parameters, operations, speed and device hours per epoch of a run.

    Speed and hours are those of the log, and those of training steps that are taken now ("here").
    On a GPU, the memory of a training step is measured, too.
    """
    notes: list[str] = []
    recipe = subject.recipe
    environment = subject.run.environment
    ranks = int(environment.get("ranks", 1))
    values = _network_cost(subject)
    speeds = [row["images_per_second"] for row in subject.rows() if row.get("images_per_second")]
    if speeds:
        values |= _pace(statistics.median(speeds), len(subject.splits.pretrain), ranks)
    else:
        notes.append("the log of this run has no speed")
    _measure_here(subject, values, notes)
    if subject.device.type != "cuda":
        notes.append("the memory of a training step is measured on a GPU only")
    settings = subject.settings(
        trained_on=str(environment.get("device", "unknown")),
        ranks=ranks,
        batch=recipe.train.batch,
        size=recipe.views.size,
    )
    return {"settings": settings, "values": values, "notes": notes}


def _network_cost(subject: RunEmbeddings) -> dict[str, float]:
    """Return the parameters, stored scalars, operations and forward passes of a run."""
    learner = subject.learner
    online = learner.online
    twin = learner.twin
    size = subject.recipe.views.size
    shape = (subject.splits.channels, size, size)
    has_network = parameters(getattr(twin, "net", None)) > 0
    return {
        "parameters, backbone": parameters(online.backbone),
        "parameters, head": parameters(online.head),
        "parameters, predictor": parameters(learner.predictor),
        "parameters, twin": parameters(twin if isinstance(twin, nn.Module) else None),
        **_scalars(subject.stored),
        "operations of the backbone per view": operations(online.backbone, shape),
        "passes of the network per image": len(learner.seen),
        "passes of the twin per image": len(learner.key_views) if has_network else 0,
    }


def _scalars(stored: Stored | None) -> dict[str, float]:
    """Return the number of scalars in a bank, queue or memory.

    Table 5 of AdCo compares them with the parameters of a predictor.
    """
    return {} if stored is None else {f"scalars, {stored.kind}": stored.vectors.numel()}


def _pace(speed: float, images: int, ranks: int) -> dict[str, float]:
    """Return the speed and the device hours per epoch.

    Table 5 of AdCo has a column "(GPU*Time)/epoch", which is in GPU-hours: 53 h x 8 GPUs / 200
    epochs = 2.12 for MoCo v2.
    """
    return {"images per second": speed, "device-hours per epoch": images / speed / 3600 * ranks}


def _measure_here(subject: RunEmbeddings, values: dict[str, float], notes: list[str]) -> None:
    """Add the speed and memory of training steps on the present device to `values` and `notes`.

    The steps are the first ones of the run's recipe. On a GPU they are compiled and captured as in
    training. The speed is left out if other processes use the GPU.
    """
    device = subject.device
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else device.type
    before = torch.cuda.memory_allocated(device) if gpu else 0
    count, warm_up = STEPS[gpu], WARM_UP[gpu]
    recipe = _for_timing(subject, count + warm_up)
    if gpu:
        torch.compiler.reset()  # the compiler also counts what it compiled for other learners
    try:
        with warnings.catch_warnings(record=True) as caught, unchanged(), torch.enable_grad():
            warnings.simplefilter("always", Slower)
            module = copy.deepcopy(subject.run.module)
            setup = build(recipe, subject.splits, module, fresh=False)
            measured = measure_steps(setup, count, warm_up, before)
    except (torch.OutOfMemoryError, ValueError) as error:
        notes.append(f"no training step could be measured here: {str(error).splitlines()[0]}")
        return
    notes += [str(one.message) for one in caught if issubclass(one.category, Slower)]
    if measured.peak is not None:
        values["peak memory of a step (bytes)"] = measured.peak
    if measured.others > SHARED:
        notes.append(
            f"no speed was measured here: other processes hold {measured.others / 2**30:.1f} GiB "
            f"of {name}"
        )
        return
    speed = measured.images_per_second
    values["images per second here"] = speed
    values["device-hours per epoch here"] = len(subject.splits.pretrain) / speed / 3600
    notes.append(f"speed here: {count} training steps of batch {recipe.train.batch} on {name}")


def _for_timing(subject: RunEmbeddings, steps: int) -> Recipe:
    """Return the recipe of a run for the present device, long enough to time that many steps.

    A bank is filled before. Neither the length nor the precision of a run that was trained on
    another device changes what a step on this device does.
    """
    train = subject.recipe.train
    needed = steps + math.ceil(stored_size(subject.learner) / train.batch)
    kind = subject.device.type
    changes: dict[str, Any] = {
        "device": kind,
        "epochs": max(train.epochs, math.ceil(needed / subject.per_epoch)),
    }
    if kind == "cpu" and train.precision == "bf16":
        changes["precision"] = "auto"  # bf16 autocast crashes on some CPUs
    return subject.recipe.model_copy(update={"train": train.model_copy(update=changes)})
