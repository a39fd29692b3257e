"""Analysis of what a run costs: parameters, operations, time and memory."""

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result
from antipode.core.traits import Stored
from antipode.training.build import Setup, build

STEPS = 5  # training steps that are timed on a GPU, after as many steps of warm-up


class StepCost(NamedTuple):
    """Speed and memory of training steps on the present device."""

    images_per_second: float
    peak: int | None  # bytes on a GPU, None on other devices


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


def measure_steps(setup: Setup, count: int = STEPS, before: int = 0) -> StepCost:
    """Time `count` training steps, after as many steps of warm-up, and measure their memory.

    `before` is the number of bytes that were allocated before the setup was built.
    """
    device = setup.device
    run = setup.run(0)
    list(islice(run, count))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = _now(device)
    done = len(list(islice(run, count)))
    if done < count:
        raise ValueError(
            f"the run has only {setup.loader.total} steps, which is too few to time it: "
            f"{2 * count} are needed"
        )
    speed = done * setup.loader.batch / (_now(device) - start)
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    return StepCost(speed, peak)


# The analysis of a run


def cost(subject: RunEmbeddings) -> Result:
    """Return parameters, operations, speed and device hours per epoch of a run.

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
    if subject.device.type == "cuda":
        _measure_here(subject, values, notes)
    else:
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

    The steps are the first steps of the run's recipe, without compilation.
    """
    kind = subject.device.type
    changes = {"device": kind, "compile": "off"}
    recipe = subject.recipe.model_copy(
        update={"train": subject.recipe.train.model_copy(update=changes)}
    )
    before = torch.cuda.memory_allocated(subject.device) if kind == "cuda" else 0
    try:
        measured = measure_steps(build(recipe, subject.splits, fresh=False), before=before)
    except (torch.OutOfMemoryError, ValueError) as error:
        notes.append(f"no training step could be measured here: {str(error).splitlines()[0]}")
        return
    values["images per second here"] = measured.images_per_second
    if measured.peak is not None:
        values["peak memory of a step (bytes)"] = measured.peak
    name = torch.cuda.get_device_name(subject.device) if kind == "cuda" else kind
    notes.append(f"peak memory and speed here were measured on {name}, not compiled")
