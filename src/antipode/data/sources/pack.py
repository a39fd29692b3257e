"""Pack a data set into a few large files, which are read through memory maps.

The layout of the files is in packed.py. An image is stored in one of three forms:

- by default, the bytes of its file, unchanged: a crop is then a crop of the full image, and there
  are no longer a million small files;
- with `size`, as pixels, which need no decoding;
- with `size` and `quality`, as JPEG.

`size` reduces the shorter side of an image to this size if it is longer.

Each part is written to a temporary file, synced and renamed. A run that was killed therefore
resumes with the first missing part. The folder gets its final name when everything is written.
"""

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from antipode import json_text
from antipode.data.loader import cores
from antipode.data.progress import bar
from antipode.data.sources.catalog import load
from antipode.data.sources.encode import Stored, encode, name_of
from antipode.data.sources.label_folders import Labels, labels_note, unlike_classes
from antipode.data.sources.pack_checks import FORMAT, RECORD, checksum, read_meta
from antipode.data.sources.source import Skip, Source, warn_skipped
from antipode.data.sources.splits import Splits
from antipode.data.sources.stamp import stamp
from antipode.files import atomic_write, sync
from antipode.names import printable
from antipode.paths import absolute
from antipode.wording import option

PART = 1024  # images per part; a killed run loses at most one part

Encode = Callable[[int], Stored | Skip]


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
    labels: Labels = "folders",
) -> Path:
    """Pack all splits of a data set into the folder `out` and return that folder.

    Call it again with the same arguments to resume after an interruption.
    """
    home = absolute(out)
    splits = begin(data, home, size, quality, root, download, seed, labels)
    if progress and splits.name.startswith("folder:"):
        for line in _remarks(splits, labels):
            print(printable(line), file=sys.stderr)
    sources = sources_of(splits)
    partial_folder = unfinished(home)
    if not (partial_folder / "meta.json").exists():
        with (
            ThreadPoolExecutor(workers or cores(1)) as pool,
            bar(_count(sources), f"packing {splits.name}", show=progress) as advance,
        ):
            metas = {}
            for name, source in sources.items():
                encoded = partial(encode, source, size, quality)
                metas[name] = _write_split(partial_folder / name, source, encoded, pool, advance)
        _write_meta(partial_folder, splits, metas)
    skipped = _finish(partial_folder, home)
    skipped_before = sum(len(getattr(source, "skipped", ())) for source in sources.values())
    warn_skipped(splits.name, skipped, _count(sources) + skipped_before)
    return home


def _remarks(splits: Splits, labels: Labels) -> Iterator[str]:
    """Yield what is decided about the classes of a folder, or what may be wrong with them."""
    if splits.labelling:
        yield labels_note(splits.classes or (), splits.labelling)
    doubt = unlike_classes(splits.classes) if splits.classes else ""
    if doubt and labels == "folders":
        other = option("labels", "none")
        yield f"note: {doubt}; here they are packed as classes, and {other} packs no classes"


def pack_parts(
    data: "str | Dataset[Any] | Splits",
    home: Path,
    split: str,
    numbers: range,
    *,
    size: int | None = None,
    quality: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    workers: int | None = None,
    labels: Labels = "folders",
) -> None:
    """Write the missing ones of some parts of a split. `pack` later finds them and adds the rest.

    Several processes, also on several machines that share the folder, may write different parts at
    the same time. The arguments are those of `pack`.
    """
    source = sources_of(begin(data, home, size, quality, root, download, seed, labels))[split]
    folder = unfinished(home) / split
    folder.mkdir(exist_ok=True)
    encoded = partial(encode, source, size, quality)
    with ThreadPoolExecutor(workers or cores(1)) as pool:
        for number in numbers:
            if not (folder / f"part-{number:05d}.npz").exists():
                _write_part(folder, number, positions_of(source, number), encoded, pool)


def begin(
    data: "str | Dataset[Any] | Splits",
    home: Path,
    size: int | None = None,
    quality: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    labels: Labels = "folders",
) -> Splits:
    """Open a data set and its unfinished pack, which is created if needed.

    Raises ValueError if an argument of `pack` is out of range, if the pack exists already, or if an
    unfinished one was begun with other arguments.
    """
    if quality is not None and (size is None or not 1 <= quality <= 100):
        raise ValueError(
            "quality must be from 1 to 100 and needs a size, "
            f"but quality is {quality} and size is {size}"
        )
    if size is not None and size < 2:
        raise ValueError(f"size is the shorter side in pixels and must be at least 2, not {size}")
    if home.exists():
        remove = "remove it, or " if (home / "meta.json").exists() else ""
        raise ValueError(printable(f"{home} already exists; {remove}pack into another folder"))
    if labels != "folders" and not str(data).startswith("folder:"):
        raise ValueError(f"{option('labels', labels)} applies to the subfolders of folder:PATH")
    splits = load(data, root=root, download=download, seed=seed, labels=labels)
    plan: dict[str, Any] = {
        "data": splits.name,
        "size": size,
        "quality": quality,
        "seed": seed,
        "images": [stamp(source) for source in sources_of(splits).values()],
    }
    in_folder = isinstance(data, str) and data.startswith("folder:")
    if in_folder and not splits.train.classes:  # a pack of earlier versions has classes
        plan["labels"] = "none"
    _start_or_resume(unfinished(home), plan)
    return splits


def sources_of(splits: Splits) -> dict[str, Source]:
    """Return the images to pack, by the name of their split."""
    sources = {"train": splits.train}
    if splits.pretrain is not splits.train:
        sources["pretrain"] = splits.pretrain
    if splits.test is not None:
        sources["test"] = splits.test
    return sources


def unfinished(home: Path) -> Path:
    """Return the name of a pack until everything is written."""
    return home.with_name(home.name + ".partial")


def positions_of(source: Source, number: int) -> range:
    """Return the images of a part."""
    return range(number * PART, min((number + 1) * PART, len(source)))


def _write_meta(folder: Path, splits: Splits, metas: dict[str, Any]) -> None:
    """Write meta.json, whose presence means that all parts are written."""
    meta = {
        "format": FORMAT,
        "name": splits.name,
        "size": splits.size,
        "mean": splits.mean,
        "std": splits.std,
    }
    with atomic_write(folder / "meta.json") as file:
        file.write(json.dumps(meta | {"splits": metas}, indent=1).encode())


def _finish(folder: Path, home: Path) -> list[Skip]:
    """Remove temporary files, rename the folder to `home` and return the skipped images."""
    for temporary in [*folder.glob("*/part-*.npz"), folder / "plan.json"]:
        temporary.unlink(missing_ok=True)
    for unfinished in folder.rglob(".*.tmp"):  # left by a process that was killed while writing
        unfinished.unlink()
    folder.rename(home)
    sync(home.parent)
    return [skip for part in read_meta(home).splits.values() for skip in part.skipped]


def _start_or_resume(folder: Path, plan: dict[str, Any]) -> None:
    """Create the folder, or check that an earlier run left it with the same plan."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    if file.exists():
        earlier = json_text.read(file)
        if earlier != plan:
            known = earlier if isinstance(earlier, dict) else {}
            changed = ", ".join(key for key in plan if known.get(key) != plan[key])
            text = f"{folder} was left by an earlier packing with different {changed}; "
            raise ValueError(printable(text + "remove it to start again"))
        return
    with atomic_write(file) as handle:
        handle.write(json.dumps(plan).encode())


def _write_split(
    home: Path,
    source: Source,
    encode: Encode,
    pool: ThreadPoolExecutor,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Write the missing parts of a split, then its index; return its entry in meta.json."""
    home.mkdir(exist_ok=True)
    indices = []
    skipped = []
    lengths = []
    for number in range(-(-len(source) // PART)):
        positions = positions_of(source, number)
        summary = home / f"part-{number:05d}.npz"
        if not summary.exists():
            _write_part(home, number, positions, encode, pool)
        index, left_out = _read_summary(summary)
        indices.append(index)
        skipped += left_out
        lengths.append((home / f"part-{number:05d}.bin").stat().st_size)
        advance(len(positions))
    index = np.concatenate(indices)
    if not len(index):
        text = f"none of the {len(source)} images of {home.name} can be read, the first: "
        raise ValueError(printable(f"{text}{' '.join(skipped[0])}"))
    tables = {
        "index": index,
        "names": np.array([os.fsencode(name_of(source, at)) for at in index["at"].tolist()]),
    }
    if source.labels is not None:
        tables["labels"] = source.labels.cpu().numpy()[index["at"]]
    for name, array in tables.items():
        with atomic_write(home / f"{name}.npy") as file:
            np.save(file, array)
    skipped_before = [list(skip) for skip in getattr(source, "skipped", ())]
    return {
        "classes": source.classes,
        "channels": source.channels,
        "size": getattr(source, "size", 224),
        "files": {f"{name}.npy": checksum(home / f"{name}.npy") for name in tables},
        "parts": lengths,
        "skipped": skipped_before + skipped,
    }


def _read_summary(file: Path) -> tuple[np.ndarray[Any, Any], list[list[str]]]:
    """Return the records and the skipped images of a part that is complete."""
    try:
        with np.load(file) as arrays:
            index: np.ndarray[Any, Any] = arrays["index"]
            skipped: list[list[str]] = arrays["skipped"].tolist()
    except Exception as error:  # a damaged archive can raise almost anything
        text = f"{file} is damaged; remove {file.parent.parent} to start again"
        raise ValueError(printable(text)) from error
    return index, skipped


def _write_part(
    home: Path, number: int, positions: range, encode: Encode, pool: ThreadPoolExecutor
) -> None:
    """Write one part, then its summary, whose presence means that the part is complete."""
    records = []
    skipped = []
    offset = 0
    with atomic_write(home / f"part-{number:05d}.bin") as file:
        for at, stored in zip(positions, pool.map(encode, positions), strict=True):
            if isinstance(stored, Skip):
                skipped.append(stored)
                continue
            data, height, width = stored
            file.write(data)
            records.append((number, offset, len(data), height, width, zlib.crc32(data), at))
            offset += len(data)
    with atomic_write(home / f"part-{number:05d}.npz") as file:
        rows = np.array(skipped, dtype=np.str_).reshape(-1, 2)
        np.savez(file, index=np.array(records, RECORD), skipped=rows)


def _count(sources: dict[str, Source]) -> int:
    return sum(len(source) for source in sources.values())
