"""Write a data set once into a few large files that are read through memory maps (packed.py has the layout).

Stored are the bytes of the files as they are (the default: a crop is a crop of the full image, and a million small
files are gone), or, with `size`, images reduced to that shorter side where theirs is longer: as pixels, which need no
decoding, or with `quality` as JPEG. Parts are written aside, synced and renamed, so a run that was killed goes on with
the first part that is missing; the folder gets its name when all is there.
"""

import io
import json
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as F

from antipode.data.loader import cores
from antipode.data.progress import bar
from antipode.data.sources.catalog import load
from antipode.data.sources.packed import FORMAT, RECORD, checksum
from antipode.data.sources.source import Decoded, Memory, Skip, Source, warn_skipped
from antipode.data.sources.splits import Splits
from antipode.files import atomic_write, sync

PART = 1024  # images in a part: what a killed run may lose

Stored = tuple[
    bytes, int, int
]  # bytes, height, width; height and width are 0 where the bytes are encoded
Store = Callable[[int], Stored | Skip]


def pack(
    data: "str | Dataset[Any] | Splits",
    out: str | Path,
    *,
    size: int | None = None,
    quality: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> Path:
    """Pack all splits of a data set into the folder `out`; run again after an interruption, it goes on where it was."""
    if quality is not None and (size is None or not 1 <= quality <= 100):
        raise ValueError(
            f"quality is a number from 1 to 100 for images reduced by size, not {quality} with size {size}"
        )
    if size is not None and size < 2:
        raise ValueError(f"size is the shorter side in pixels, not {size}")
    home = Path(out).expanduser()
    if home.exists():
        remove = "remove it, or " if (home / "meta.json").exists() else ""
        raise ValueError(f"{home} is there already; {remove}pack into another folder")
    splits = load(data, root=root, download=download, seed=seed)
    parts = {"train": splits.train}
    if splits.pretrain is not splits.train:
        parts["pretrain"] = splits.pretrain
    if splits.test is not None:
        parts["test"] = splits.test
    aside = home.with_name(home.name + ".partial")
    _begin(
        aside,
        {
            "data": splits.name,
            "size": size,
            "quality": quality,
            "seed": seed,
            "images": _digest(parts),
        },
    )
    if not (aside / "meta.json").exists():
        with (
            ThreadPoolExecutor(workers or cores(1)) as pool,
            bar(_count(parts), f"packing {splits.name}", show=progress) as done,
        ):
            metas = {
                name: _split(
                    aside / name, source, partial(_stored, source, size, quality), pool, done
                )
                for name, source in parts.items()
            }
        _describe(aside, splits, metas)
    lost = _finish(aside, home)
    warn_skipped(
        splits.name,
        lost,
        _count(parts) + sum(len(getattr(source, "skipped", ())) for source in parts.values()),
    )
    return home


def _describe(aside: Path, splits: Splits, metas: dict[str, Any]) -> None:
    """Write meta.json, which says that all is there."""
    meta = {
        "format": FORMAT,
        "name": splits.name,
        "size": splits.size,
        "mean": splits.mean,
        "std": splits.std,
    }
    with atomic_write(aside / "meta.json") as file:
        file.write(json.dumps(meta | {"splits": metas}, indent=1).encode())


def _finish(aside: Path, home: Path) -> list[Skip]:
    """Clear away the notes of the work and give the folder its name; returns what was left out."""
    for note in [*aside.glob("*/part-*.npz"), aside / "plan.json"]:
        note.unlink(missing_ok=True)
    for left in aside.rglob(".*.tmp"):  # of a process that was killed while it wrote
        left.unlink()
    aside.rename(home)
    sync(home.parent)
    splits = json.loads((home / "meta.json").read_text())["splits"]
    return [Skip(*skip) for part in splits.values() for skip in part["skipped"]]


def _begin(aside: Path, plan: dict[str, Any]) -> None:
    """Make the folder, or make sure that what an earlier run left there is the same work."""
    aside.mkdir(parents=True, exist_ok=True)
    file = aside / "plan.json"
    if file.exists():
        earlier = json.loads(file.read_text())
        if earlier != plan:
            changed = ", ".join(key for key in plan if earlier.get(key) != plan[key])
            raise ValueError(
                f"{aside} is left from packing with other {changed}; remove it to begin anew"
            )
        return
    with atomic_write(file) as handle:
        handle.write(json.dumps(plan).encode())


def _split(
    home: Path, source: Source, store: Store, pool: ThreadPoolExecutor, done: Callable[[int], None]
) -> dict[str, Any]:
    """Write a split's missing parts, then its index; returns what meta.json says of it."""
    home.mkdir(exist_ok=True)
    indices, skipped, lengths = [], [], []
    for number, first in enumerate(range(0, len(source), PART)):
        wanted = range(first, min(first + PART, len(source)))
        note = home / f"part-{number:05d}.npz"
        if not note.exists():
            _part(home, number, wanted, store, pool)
        with np.load(note) as kept:
            indices.append(kept["index"])
            skipped += kept["skipped"].tolist()
        lengths.append((home / f"part-{number:05d}.bin").stat().st_size)
        done(len(wanted))
    index = np.concatenate(indices)
    if not len(index):
        raise ValueError(
            f"none of the {len(source)} images of {home.name} can be read, the first: {' '.join(skipped[0])}"
        )
    arrays = {
        "index": index,
        "names": np.array([os.fsencode(_name(source, at)) for at in index["at"].tolist()]),
    }
    if source.labels is not None:
        arrays["labels"] = source.labels.cpu().numpy()[index["at"]]
    for name, array in arrays.items():
        with atomic_write(home / f"{name}.npy") as file:
            np.save(file, array)
    facts = {
        "classes": source.classes,
        "channels": source.channels,
        "size": getattr(source, "size", 224),
    }
    files = {f"{name}.npy": checksum(home / f"{name}.npy") for name in arrays}
    earlier = [list(skip) for skip in getattr(source, "skipped", ())]
    return facts | {"files": files, "parts": lengths, "skipped": earlier + skipped}


def _part(home: Path, number: int, wanted: range, store: Store, pool: ThreadPoolExecutor) -> None:
    """Write one part and then the note that says it is whole."""
    records, skipped, offset = [], [], 0
    with atomic_write(home / f"part-{number:05d}.bin") as file:
        for at, found in zip(wanted, pool.map(store, wanted), strict=True):
            if isinstance(found, Skip):
                skipped.append(found)
                continue
            data, height, width = found
            file.write(data)
            records.append((number, offset, len(data), height, width, zlib.crc32(data), at))
            offset += len(data)
    with atomic_write(home / f"part-{number:05d}.npz") as file:
        lost = np.array(skipped, dtype=np.str_).reshape(-1, 2)
        np.savez(file, index=np.array(records, RECORD), skipped=lost)


def _stored(source: Source, size: int | None, quality: int | None, at: int) -> Stored | Skip:
    """What is kept of an image. It is decoded in any case: a packed data set has no broken images."""
    try:
        if isinstance(source, Decoded):
            image = source.read(at)
            encoded = getattr(source.read, "encoded", None)
            data = encoded(at) if encoded and size is None else None
            if data is not None:
                return data, 0, 0
        else:
            image = source.take(torch.tensor([at]))[0][0].cpu()
        if size is not None and min(image.shape[1:]) > size:
            image = F.resize(image, [size], antialias=True)
        if quality is not None:
            return _jpeg(image, quality), 0, 0
        return _rows(image), *image.shape[1:]
    except (ValueError, OSError) as error:
        return Skip(_name(source, at), str(error))


def _rows(image: Tensor) -> bytes:
    return image.permute(1, 2, 0).contiguous().numpy().tobytes()


def _jpeg(image: Tensor, quality: int) -> bytes:
    if len(image) not in (1, 3):
        raise ValueError(f"has {len(image)} channels, which JPEG cannot hold")
    file = io.BytesIO()
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels if len(image) == 3 else pixels[:, :, 0]).save(
        file, "JPEG", quality=quality
    )
    return file.getvalue()


def _name(source: Source, at: int) -> str:
    return source.names[at] if isinstance(source, Decoded) else f"image {at}"


def _count(parts: dict[str, Source]) -> int:
    return sum(len(source) for source in parts.values())


def _digest(parts: dict[str, Source]) -> list[int]:
    """A number for the images of each split: names, and pixels where they are in memory."""
    digests = []
    for source in parts.values():
        if isinstance(source, Memory):
            digests.append(zlib.crc32(source.images.cpu().contiguous().numpy().data))
        else:
            digests.append(
                zlib.crc32(
                    "\n".join(_name(source, at) for at in range(len(source))).encode(
                        "utf-8", "replace"
                    )
                )
            )
    return digests
