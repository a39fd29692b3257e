"""Feature extraction with a frozen network, with a cache on disk.

Every image is seen once, through a deterministic view.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist
from antipode.core.pieces import cut
from antipode.core.scores import raised
from antipode.data.loader import cores, in_order
from antipode.data.progress import bar
from antipode.data.sources.source import Decoded, Memory, Source, fingerprint
from antipode.data.views.views import Views
from antipode.evaluation import feature_cache, storage
from antipode.evaluation.shares import joined, share, shared
from antipode.types import Features

# Version of the cache files. Increase it when the same weights would give different features.
FORM = 2
GATHERED = 1 << 24  # numbers of one rank in one transfer


@torch.no_grad()
def extract(
    net: nn.Module,
    eval_view: Views,
    source: Source,
    *,
    batch: int = 256,
    workers: int | None = None,
    cache: Path | None = None,
) -> Features:
    """Return features (N,D) and labels (N,) or (N,K) of all images of a source.

    The labels are -1 if the source has none. With several ranks, each rank processes its share of
    the images and every rank gets all features. Features that take more than half of the free
    memory are written to a temporary file and read from there as a memory map.

    Args:
        net: the network that maps views to features. It runs in eval mode and keeps its own mode.
        eval_view: makes the one deterministic view of each image.
        source: the images.
        batch: the number of images per forward pass.
        workers: the number of processes that read images.
        cache: a folder. Features of the same weights, images and view are read from there, and new
            ones are written there. The cache is not used if it is unknown whether the images are
            the same, as with your own Dataset that is not held in memory. The temporary file of
            large features lies there, too, or else in the system's folder for temporary files.
    """
    name = key(net, eval_view, source) if cache is not None else None
    file = cache / f"{name}.npz" if cache is not None and name is not None else None
    cached = None if file is None else feature_cache.read(file)
    if (
        file is not None
        and dist.world() > 1
        and dist.any_rank(cached is None, eval_view.normal.mean.device)
    ):
        # If ranks have separate folders, the file may be missing on some of them. Then all ranks
        # compute: otherwise those without the file would wait forever for the others.
        cached = None
    x, ids = cached or _compute(net, eval_view, source, batch, workers, cache)
    _check_finite(x)
    if file is not None and cached is None and dist.rank() == 0:
        feature_cache.write(file, x, ids)
        if x.nbytes > storage.host_budget():  # read the new file, and give the temporary one up
            x, ids = feature_cache.read(file) or (x, ids)
    return with_labels(x, ids, source)


@torch.no_grad()
def extract_rows(
    net: nn.Module,
    eval_view: Views,
    source: Source,
    rows: range,
    *,
    batch: int = 256,
    workers: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features (B,D) of some images of a source, and the ids (B,) of the images behind them.

    If the first row is a multiple of the batch, the features have the bits that `extract` gives
    them. `with_labels` turns the joined rows of all images into what `extract` returns.
    """
    x, ids = _compute_share(net, eval_view, source, batch, workers, None, rows)
    _check_finite(x)
    return x, ids


def with_labels(x: Tensor, ids: Tensor, source: Source) -> Features:
    """Return features (N,D) with the labels of the images (N,) behind them.

    Images that could not be read, and that others replaced, are recorded in the source.
    """
    if isinstance(source, Decoded):
        # Also record broken images that another rank read, or an earlier run that filled the cache.
        replaced = (ids != torch.arange(len(ids))).nonzero().flatten().tolist()
        for index in replaced:
            source.failed.setdefault(source.names[index], "cannot be read")
    y = torch.full((len(x),), -1) if source.labels is None else source.labels.cpu()[ids]
    return Features(x, y)


def _check_finite(x: Tensor) -> None:
    """Raise ValueError if features (N,D) are NaN or infinite."""
    pieces = torch.split(x, 8192)  # in pieces, since x may take most of the memory
    bad = sum([int((~rows.isfinite()).any(1).sum()) for rows in pieces])
    if bad:
        raise ValueError(f"{bad} of {len(x)} images have NaN or infinite features")


def key(net: nn.Module, eval_view: Views, source: Source) -> str | None:
    """Return a cache key that changes with the weights, the images and the view.

    Return None if it is unknown whether the images have changed.
    """
    description = f"{FORM} {net} {eval_view} {eval_view.policy}"
    # the repr of a function contains its memory address, which differs between processes
    description = re.sub(" at 0x[0-9a-f]+", "", description)
    digest = hashlib.blake2b(description.encode(), digest_size=16)
    for module in (net, eval_view):
        for name, value in module.state_dict().items():
            digest.update(name.encode())
            digest.update(_bytes(value))
    if isinstance(source, Memory):
        digest.update(_bytes(source.images))
        return digest.hexdigest()
    # Images on disk are identified by their files. Reading them all would defeat the cache.
    images = fingerprint(source.read) if isinstance(source, Decoded) else None
    if images is None:
        return None
    digest.update(f"{images} {source.channels}".encode())
    return digest.hexdigest()


def _bytes(value: Tensor) -> memoryview:
    flat: Any = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(flat)


def _compute(
    net: nn.Module,
    eval_view: Views,
    source: Source,
    batch: int,
    workers: int | None,
    folder: Path | None,
) -> tuple[Tensor, Tensor]:
    """Return features (N,D) and ids (N,) of all images, computed by all ranks together.

    An id differs from the position of its image if that image could not be read and another one
    took its place. `folder` is the place of a memory map for features that do not fit into memory.
    """
    n = len(source)
    ours = share(n)
    x, ids = _compute_share(net, eval_view, shared(source), batch, workers, folder)
    if dist.world() == 1:
        return x, ids
    device = next(net.parameters(), torch.empty(0)).device
    return _gathered(x, n, device, folder), joined(ours[ids].to(device), n).cpu()


def _gathered(x: Tensor, n: int, device: torch.device, folder: Path | None) -> Tensor:
    """Return the features (N,D) of all ranks from the rows of this rank, in portions."""
    out = storage.empty((n, x.shape[1]), x.dtype, folder=folder)
    for rows in cut(len(x), max(1, GATHERED // x.shape[1])):
        portions = dist.gather(x[rows].to(device)).cpu().chunk(dist.world())
        for number, portion in enumerate(portions):
            first = number * len(x) + rows.start
            room = out[first : first + len(portion)]  # shorter, or empty, at the end
            room.copy_(portion[: len(room)])
    return out


def _compute_share(
    net: nn.Module,
    eval_view: Views,
    source: Source,
    batch: int,
    workers: int | None,
    folder: Path | None,
    rows: range | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features (N,D) and ids (N,) of images of a source, computed by this rank.

    `rows` are the images, by default all.
    """
    count = len(source) if rows is None else len(rows)
    like = next(net.parameters(), torch.empty(0))  # a module without parameters runs on the CPU
    modes = {module: module.training for module in net.modules()}
    net.eval()
    workers = cores(dist.world()) if workers is None else workers
    x = torch.empty(0)
    ids = torch.empty(count, dtype=torch.int64)
    start = 0
    with bar(count, "features") as advance:
        for view, image_ids in in_order(
            source, eval_view, batch=batch, device=like.device, workers=workers, rows=rows
        ):
            part = raised(net(view.to(like.dtype)))
            if not start:
                # One array from the start: concatenating would hold a large set twice in memory.
                x = storage.empty((count, part.shape[1]), part.dtype, folder=folder)
            end = start + len(part)
            x[start:end] = part.cpu()
            ids[start:end] = image_ids.cpu()
            start = end
            advance(len(part))
    for module, mode in modes.items():
        module.training = mode
    return x, ids
