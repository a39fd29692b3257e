"""What a run costs: parameters, time and memory; and what JCL's closed form saves."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from antipode import rng
from antipode.analysis.embeddings import Stored, Subject
from antipode.analysis.result import Result, curve
from antipode.core.loss import Gaussian
from antipode.core.objective import Contrast
from antipode.core.scores import unit
from antipode.data.progress import bar
from antipode.functional import info_nce, jcl
from antipode.runs.folder import RunFolder
from antipode.training.build import Setup, build

KEYS = [1, 2, 3, 5, 7, 9, 11]  # M' of JCL's figure M.2a
NEGATIVES = 8192, 65536  # at most, on a CPU and on a GPU
REPEATS = 5
STEPS = 5  # timed on a GPU, after as many that are not


class Measured(NamedTuple):
    """Some steps of training on the present device."""

    images_per_second: float
    peak: int | None  # bytes on a GPU, None elsewhere


def parameters(module: nn.Module | None) -> int:
    """Scalars that a module holds as parameters, each counted once."""
    return 0 if module is None else sum(one.numel() for one in module.parameters())


def operations(backbone: nn.Module, shape: tuple[int, ...]) -> int:
    """Floating-point operations of a backbone for one image of a shape (C,H,W); a product with its sum counts two."""
    device = next(backbone.parameters()).device
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone(torch.zeros(1, *shape, device=device))
    return int(counter.get_total_flops())


def kept_bytes(loss: Callable[[], Tensor], *inputs: Tensor) -> int:
    """Bytes that a loss keeps for its backward pass, beside its inputs: the same on every device."""
    given = {one.untyped_storage().data_ptr() for one in inputs}
    found: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in given:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        held = (
            loss()
        )  # alive until all is counted, or storages would be used again under the same address
    del held
    return sum(found.values())


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median time of some repeats, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        start = _now(device)
        work()
        times.append(_now(device) - start)
    return statistics.median(times[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def closed_form(
    query: Tensor, keys: Tensor, negatives: Tensor, tau: float, strength: float
) -> Tensor:
    """JCL's loss of queries (N,D), keys (M,N,D) and negatives (K,D): one product with the negatives whatever M is."""
    return jcl(query, keys, negatives, tau=tau, strength=strength)


def vanilla(query: Tensor, keys: Tensor, negatives: Tensor, tau: float) -> Tensor:
    """The supplement's baseline as it is stated: M ordinary losses, each with its own product with the negatives."""
    return torch.stack([info_nce(query, key, negatives, tau=tau) for key in keys]).mean()


def steps(job: Setup, count: int = STEPS, before: int = 0) -> Measured:
    """Time and memory of steps of training, after as many that warm up; `before` are bytes that are not the job's."""
    device, run = job.device, job.run(0)
    list(islice(run, count))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = _now(device)
    done = len(list(islice(run, count)))
    if done < count:
        raise ValueError(
            f"the run has only {job.loader.total} steps, too few to be timed: {2 * count} are needed"
        )
    speed = done * job.loader.batch / (_now(device) - start)
    return Measured(
        speed, torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    )


# The same of a run


def cost(subject: Subject) -> Result:
    """Parameters, operations, speed, device hours per epoch, and on a GPU the memory of a step."""
    learner, recipe, notes = subject.learner, subject.recipe, list[str]()
    online, stored = learner.online, subject.stored
    twin = learner.twin
    values: dict[str, float] = {
        "parameters, backbone": parameters(online.backbone),
        "parameters, head": parameters(online.head),
        "parameters, predictor": parameters(learner.predictor),
        "parameters, twin": parameters(twin if isinstance(twin, nn.Module) else None),
        **_scalars(stored),
        "operations of the backbone per view": operations(
            online.backbone, (subject.splits.channels, recipe.views.size, recipe.views.size)
        ),
        "passes of the network per image": len(learner.seen),
        "passes of the twin per image": len(learner.key_views)
        if parameters(getattr(twin, "net", None))
        else 0,
    }
    environment = RunFolder(subject.path).read_json("env.json")
    speeds = [row["images_per_second"] for row in subject.rows() if row.get("images_per_second")]
    ranks = int(environment.get("ranks", 1))
    if speeds:
        values |= _pace(statistics.median(speeds), len(subject.splits.pretrain), ranks)
    else:
        notes.append("the log holds no speed")
    if subject.device.type == "cuda":
        _now_here(subject, values, notes)
    else:
        notes.append("the memory of a step is measured on a GPU only")
    device = str(environment.get("device", "unknown"))
    settings = subject.settings(
        trained_on=device, ranks=ranks, batch=recipe.train.batch, size=recipe.views.size
    )
    return {"settings": settings, "values": values, "notes": notes}


def _scalars(stored: Stored | None) -> dict[str, float]:
    """Scalars that a bank, queue or memory holds: AdCo's table 5 sets them beside a predictor's."""
    return {} if stored is None else {f"scalars, {stored.kind}": stored.vectors.numel()}


def _pace(speed: float, images: int, ranks: int) -> dict[str, float]:
    """AdCo's table 5 has "(GPU*Time)/epoch", which is GPU-hours: 53 h x 8 GPUs / 200 epochs = 2.12 for MoCo v2."""
    return {"images per second": speed, "device-hours per epoch": images / speed / 3600 * ranks}


def _now_here(subject: Subject, values: dict[str, float], notes: list[str]) -> None:
    """Steps of the run's recipe, from the start and without compilation, on the present device."""
    kind = subject.device.type
    changes = {"device": kind, "compile": "off"}
    recipe = subject.recipe.model_copy(
        update={"train": subject.recipe.train.model_copy(update=changes)}
    )
    before = torch.cuda.memory_allocated(subject.device) if kind == "cuda" else 0
    try:
        found = steps(build(recipe, subject.splits, fresh=False), before=before)
    except (torch.OutOfMemoryError, ValueError) as error:
        notes.append(f"no step could be measured here: {str(error).splitlines()[0]}")
        return
    values["images per second here"] = found.images_per_second
    if found.peak is not None:
        values["peak memory of a step (bytes)"] = found.peak
    name = torch.cuda.get_device_name(subject.device) if kind == "cuda" else kind
    notes.append(f"memory and speed here are of {name}, not compiled")


def jcl_complexity(subject: Subject) -> Result:
    """Time and memory of JCL's loss and of the vanilla baseline against M', with the run's own dimensions."""
    n, stored, cap = (
        subject.recipe.train.batch,
        subject.stored,
        NEGATIVES[subject.device.type != "cpu"],
    )
    sizes = {
        "queries": n,
        "negatives": min(len(stored.vectors) if stored else 2 * n - 2, cap),
        "dim": _dim(subject),
    }
    tau = subject.tau or 0.2
    strength = next((part.positives.strength for part in subject.parts() if _gaussian(part)), 4.0)
    found: dict[str, list[float]] = {}
    with bar(len(KEYS), "numbers of keys", least=1) as done:
        for m in KEYS:
            vectors = _vectors(subject.seed, m, subject.device, **sizes)
            for name, number in _race(vectors, tau, strength).items():
                found.setdefault(name, []).append(number)
            done(1)
    curves = {
        name: curve(KEYS, numbers, "keys M'", LABELS[name.split(",")[0]])
        for name, numbers in found.items()
    }
    values = {
        f"{what} of vanilla over closed form, M' = {KEYS[place]}": found[f"{what}, vanilla"][place]
        / found[f"{what}, closed form"][place]
        for what in LABELS
        for place in (KEYS.index(5), -1)
    }
    settings = subject.settings(
        **sizes, tau=tau, strength=strength, device=subject.device.type, repeats=REPEATS
    )
    notes = [
        "random unit vectors of the run's dimensions; the networks' own passes are not counted"
    ]
    return {"settings": settings, "values": values, "curves": curves, "notes": notes}


LABELS = {"time": "time forward and backward (ms)", "memory": "kept for the backward pass (MiB)"}


def _race(vectors: tuple[Tensor, Tensor, Tensor], tau: float, strength: float) -> dict[str, float]:
    """Time and memory of both losses on the same vectors."""
    forms: dict[str, Callable[[], Tensor]] = {
        "closed form": partial(closed_form, *vectors, tau, strength),
        "vanilla": partial(vanilla, *vectors, tau),
    }
    device, found = vectors[0].device, dict[str, float]()
    for name, loss in forms.items():
        found[f"time, {name}"] = 1000 * seconds(partial(_both, loss), device, REPEATS)
        found[f"memory, {name}"] = kept_bytes(loss, *vectors) / 2**20
    return found


def _both(loss: Callable[[], Tensor]) -> None:
    loss().backward()  # type: ignore[no-untyped-call]


def _gaussian(part: Any) -> bool:
    return isinstance(part, Contrast) and isinstance(part.positives, Gaussian)


def _dim(subject: Subject) -> int:
    """Dimensions of the projection."""
    weights = [one for one in subject.learner.online.head.parameters() if one.ndim == 2]
    return int(weights[-1].shape[0])


def _vectors(
    seed: int, m: int, device: torch.device, *, queries: int, negatives: int, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Unit queries (N,D) that ask for a gradient, keys (M,N,D) and negatives (K,D)."""
    chance, shapes = (
        rng.generator(seed, "jcl-complexity", m),
        ((queries,), (m, queries), (negatives,)),
    )
    query, keys, others = (unit(torch.randn(*shape, dim, generator=chance)) for shape in shapes)
    return query.to(device).requires_grad_(), keys.to(device), others.to(device)
