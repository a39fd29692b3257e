"""Images to features: a frozen network over a source, each image seen once and without chance; kept on the disk."""

import hashlib
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from antipode import dist
from antipode.data.loader import in_order
from antipode.data.progress import bar
from antipode.data.sources.source import Decoded, Memory, Source, stamp, subset
from antipode.data.views.views import Views
from antipode.files import atomic_write
from antipode.types import Features

FORM = 2  # of the files: raise it when features of the same weights would come out otherwise


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
    """Features (N,D) and labels (N,) or (N,K) of a source, -1 where it has none; `look` makes the one view.

    With several ranks each sees its share of the images and all get all features. `cache` is a folder: features of
    the same weights, images and view are read from there; images of which nobody can tell whether they are the same,
    such as those of a Dataset of one's own that is not held in memory, are seen anew.
    """
    name = key(net, eval_view, source) if cache is not None else None
    file = cache / f"{name}.npz" if cache is not None and name is not None else None
    found = _read(file) if file is not None and file.exists() else None
    if (
        file is not None
        and dist.world() > 1
        and dist.any_rank(found is None, eval_view.normal.mean.device)
    ):
        found = None  # ranks that do not share a folder see the images together, or one waits for the others forever
    x, ids = found if found is not None else _gathered(net, eval_view, source, batch, workers)
    pieces = torch.split(x, 8192)  # x may be all that fits
    bad = sum([int((~rows.isfinite()).any(1).sum()) for rows in pieces])
    if bad:
        raise ValueError(f"{bad} of {len(x)} images have features that are not numbers")
    if file is not None and found is None and dist.rank() == 0:
        _keep(file, x, ids)
    if isinstance(
        source, Decoded
    ):  # another rank's too, and those of the time when the features were made
        replaced = (ids != torch.arange(len(ids))).nonzero().flatten().tolist()
        for at in replaced:
            source.failed.setdefault(source.names[at], "cannot be read")
    y = torch.full((len(x),), -1) if source.labels is None else source.labels.cpu()[ids]
    return Features(x, y)


def key(net: nn.Module, eval_view: Views, source: Source) -> str | None:
    """A name that changes when weights, images or view do; None where nobody can tell whether the images have."""
    seen = re.sub(
        " at 0x[0-9a-f]+", "", f"{FORM} {net} {eval_view} {eval_view.policy}"
    )  # a function shows where it lies
    digest = hashlib.blake2b(seen.encode(), digest_size=16)
    for module in (net, eval_view):
        for name, value in module.state_dict().items():
            digest.update(name.encode())
            digest.update(_bytes(value))
    if isinstance(source, Memory):
        digest.update(_bytes(source.images))
        return digest.hexdigest()
    # images of a large set are known by their files: reading them all is what the cache is to spare
    images = stamp(source.read) if isinstance(source, Decoded) else None
    if images is None:
        return None
    digest.update(f"{images} {source.channels}".encode())
    return digest.hexdigest()


def _bytes(value: Tensor) -> memoryview:
    return memoryview(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]


def _keep(file: Path, x: Tensor, ids: Tensor) -> None:
    """Write features for the next time; a folder that cannot be written to only costs that time."""
    try:
        with atomic_write(file) as handle:
            np.savez(handle, x=x.numpy(), ids=ids.numpy())
    except OSError as error:
        warnings.warn(
            f"features cannot be kept in {file.parent} ({error.strerror or error})", stacklevel=3
        )


def _read(file: Path) -> tuple[Tensor, Tensor] | None:
    """Features of an earlier time; None where the file is damaged, and they are made again."""
    try:
        with np.load(file) as content:
            return torch.from_numpy(content["x"]), torch.from_numpy(content["ids"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _gathered(
    net: nn.Module, eval_view: Views, source: Source, batch: int, workers: int | None
) -> tuple[Tensor, Tensor]:
    """Features of all images, made by all ranks."""
    world, n = dist.world(), len(source)
    if world == 1:
        return _run(net, eval_view, source, batch, workers)
    # equal shares, as a gather needs: the last image fills up, and what is over is cut off again
    each = -(-n // world)
    mine = (torch.arange(each) + dist.rank() * each).clamp(max=n - 1)
    x, ids = _run(net, eval_view, subset(source, mine), batch, workers)
    device = next(net.parameters(), torch.empty(0)).device
    parts = dist.gather(x.to(device)).cpu(), dist.gather(mine[ids].to(device)).cpu()
    return parts[0][:n], parts[1][:n]


def _run(
    net: nn.Module, eval_view: Views, source: Source, batch: int, workers: int | None
) -> tuple[Tensor, Tensor]:
    like = next(net.parameters(), torch.empty(0))  # a module without weights lives on the CPU
    device, dtype = like.device, like.dtype
    modes = {module: module.training for module in net.modules()}
    net.eval()
    x, ids, at = torch.empty(0), torch.empty(len(source), dtype=torch.int64), 0
    with bar(len(source), "features") as done:
        for view, image_ids in in_order(
            source, eval_view, batch=batch, device=device, workers=workers
        ):
            rows = net(view.to(dtype)).float()
            if not at:  # one array from the start: features of a large set would not fit twice
                x = torch.empty(len(source), rows.shape[1])
            x[at : at + len(rows)], ids[at : at + len(rows)] = rows.cpu(), image_ids.cpu()
            at += len(rows)
            done(len(rows))
    for module, mode in modes.items():
        module.training = mode
    return x, ids
