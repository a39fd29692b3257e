"""`embed` and `pack` over the nodes of a Ray cluster.

The images are cut into contiguous parts, and each part is a task. The results are those of one
process: parts of features begin with a whole batch, and a pack consists of parts anyway.
"""

import shutil
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antipode.data.sources import pack as packing
from antipode.data.sources.catalog import Given
from antipode.data.sources.source import Source
from antipode.evaluation import feature_cache, storage
from antipode.evaluation.features import extract_rows, with_labels
from antipode.launch.place import Resources
from antipode.launch.ray_cluster import perform
from antipode.launch.ray_connect import Cluster, Needs, check, connected, needs
from antipode.launch.task import JobFailed, Task
from antipode.runs import features
from antipode.runs.run import Run
from antipode.types import Features

BATCH = 256  # images per forward pass, as in one process
# images of one task of `embed`: a worker opens the data set for each of them
LEAST = 4096
MOST = 65536
PER_SLOT = 4  # tasks for each task that the cluster performs at the same time, if they are many


def embed_on_ray(
    run: Run, data: Given, out: Path | None, *, address: str, resources: Resources
) -> Features:
    """Return the features of a data set, computed by the nodes of a Ray cluster.

    They are written to `out` if it is given. The result equals that of one process with the same
    number of threads. The parts are stored beside `out`, or in the working directory, until all of
    them are there.
    """
    check(resources)
    if out is not None:
        features.check(out)
    splits = run.splits(data)
    sources = features.parts_of(splits)
    folder = (out.parent if out else Path.cwd()) / f".embed-{uuid.uuid4().hex}"
    bare = Run(run.path, run.module, run.data, run.network)  # without what is loaded
    try:
        with connected(address, False) as cluster:
            each = needs(cluster, resources)
            cuts = {name: ranges(len(one), _slots(cluster, each)) for name, one in sources.items()}
            tasks = [
                _embed_task(bare, data, folder, name, number, rows)
                for name, parts in cuts.items()
                for number, rows in enumerate(parts)
            ]
            _perform(cluster, tasks, each)

        def compute(name: str, source: Source) -> Features:
            files = [folder / f"{name}-{number}" / "rows.npz" for number in range(len(cuts[name]))]
            return with_labels(*_joined(files, len(source)), source)

        return features.collected(splits, data, compute, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ranges(n: int, slots: int) -> list[range]:
    """Cut `n` images into contiguous parts of whole batches, for `slots` tasks at a time."""
    share = min(MOST, max(LEAST, n // (PER_SLOT * slots)))
    size = -(-share // BATCH) * BATCH
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def _embed_task(run: Run, data: Given, folder: Path, name: str, number: int, rows: range) -> Task:
    """Return the task that computes the features of some images of a split."""
    place = folder / f"{name}-{number}"
    label = f"{name} images {rows.start} to {rows.stop - 1}"
    return Task(label, place, partial(_embed_rows, run, data, place, name, rows), float(len(rows)))


def _embed_rows(run: Run, data: Given, place: Path, name: str, rows: range, quiet: bool) -> None:
    """Write the features of some images of a split. A worker of the cluster calls this."""
    splits = run.splits(data)
    net, eval_view = features.prepared(run, splits)
    x, ids = extract_rows(net, eval_view, features.parts_of(splits)[name], rows, batch=BATCH)
    feature_cache.write(place / "rows.npz", x, ids)


def _joined(files: Sequence[Path], n: int) -> tuple[Tensor, Tensor]:
    """Return the features (N,D) and ids (N,) of all parts, one after the other."""
    x = torch.empty(0)
    ids = torch.empty(n, dtype=torch.int64)
    start = 0
    for file in files:
        part = feature_cache.read(file)
        if part is None:
            raise JobFailed(f"{file} is missing or damaged, although its task has ended")
        if not start:
            x = storage.empty((n, part[0].shape[1]), part[0].dtype)
        end = start + len(part[1])
        x[start:end] = part[0]
        ids[start:end] = part[1]
        start = end
        file.unlink()
    return x, ids


def pack_on_ray(
    data: Any, home: Path, options: Mapping[str, Any], *, address: str, resources: Resources
) -> Path:
    """Pack a data set into the folder `home` by the nodes of a Ray cluster, and return it.

    `options` are keyword arguments of `data.sources.pack.pack`. The files have the bytes that one
    process writes. The same call resumes after an interruption.
    """
    check(resources)
    shown = bool(options.get("progress", True))
    given = {key: value for key, value in options.items() if key != "progress"}
    keys = ("size", "quality", "root", "download", "seed", "labels")
    splits = packing.begin(data, home, **{key: given[key] for key in keys if key in given})
    if (packing.unfinished(home) / "meta.json").exists():  # only its name is not final
        return packing.pack(data, home, **options)
    with connected(address, not shown) as cluster:
        each = needs(cluster, resources)
        tasks = [
            _pack_task(
                data, home, name, numbers, given | {"workers": given.get("workers") or each.cpus}
            )
            for name, source in packing.sources_of(splits).items()
            for numbers in _numbers(len(source), _slots(cluster, each))
        ]
        _perform(cluster, tasks, each, quiet=not shown)
    return packing.pack(data, home, **options)


def _numbers(n: int, slots: int) -> list[range]:
    """Return the numbers of the parts of a pack of `n` images, by task."""
    count = -(-n // packing.PART)
    size = max(1, min(MOST // packing.PART, count // (PER_SLOT * slots)))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def _pack_task(
    data: Any, home: Path, name: str, numbers: range, options: Mapping[str, Any]
) -> Task:
    """Return the task that writes some parts of a split."""
    place = home.with_name(f"{home.name}-{name}-{numbers.start}")  # a name only
    label = f"{name} parts {numbers.start} to {numbers.stop - 1}"
    do = partial(_pack_numbers, data, home, name, numbers, dict(options))
    return Task(label, place, do, float(len(numbers)))


def _pack_numbers(
    data: Any, home: Path, name: str, numbers: range, options: dict[str, Any], quiet: bool
) -> None:
    """Write some parts of a split. A worker of the cluster calls this."""
    packing.pack_parts(data, home, name, numbers, **options)


def _slots(cluster: Cluster, each: Needs) -> int:
    """Return how many tasks the cluster performs at the same time, at least 1."""
    return max(1, sum(each.fit(node) for node in cluster.nodes()))


def _perform(cluster: Cluster, tasks: Sequence[Task], each: Needs, *, quiet: bool = False) -> None:
    """Perform tasks. Raises JobFailed with the first failure."""
    failed = perform(cluster, tasks, each, quiet=quiet)
    if failed:
        more = f" ({len(failed)} of {len(tasks)} parts failed)" if len(failed) > 1 else ""
        raise JobFailed(f"{next(iter(failed.values()))}{more}")
