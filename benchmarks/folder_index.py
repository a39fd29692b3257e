"""Measure how long a large folder of images takes to open, without an index and with one.

    python benchmarks/folder_index.py --files 1000000 --out folder-index.json

The folder has one subfolder for each 1,000 files. The files are links to 50 JPEG files of 64 px, so
they are in the page cache. It is opened four times: right after it was written (which leaves no
index), again (which writes the index), and twice with the index. Temporary folders hold the images
and the index, and are removed at the end.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from antipode.data.sources.catalog import load
from antipode.data.sources.index import SETTLED
from machine import surroundings

ORIGINALS = 50
PER_FOLDER = 1000
NAMES = ("right after it was written", "first", "second", "third")


def write(root: Path, count: int) -> None:
    """Write the images, and `count` links to them in subfolders."""
    generator = np.random.default_rng(0)
    originals = root / "originals"
    originals.mkdir()
    for number in range(ORIGINALS):
        pixels = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(originals / f"{number}.jpg")
    for first in range(0, count, PER_FOLDER):
        folder = root / "images" / f"{first // PER_FOLDER:06d}"
        folder.mkdir(parents=True)
        for number in range(first, min(first + PER_FOLDER, count)):
            (folder / f"{number:08d}.jpg").symlink_to(originals / f"{number % ORIGINALS}.jpg")


def open_folder(root: Path, count: int) -> float:
    """Return the seconds in which the folder is opened."""
    start = time.perf_counter()
    splits = load(f"folder:{root / 'images'}")
    seconds = time.perf_counter() - start
    held_out = 0 if splits.test is None else len(splits.test)
    assert len(splits.pretrain) + held_out == count
    return seconds


def measure(count: int, root: Path) -> dict[str, Any]:
    """Return the seconds of each opening of a folder of `count` files."""
    start = time.perf_counter()
    write(root, count)
    print(f"{count:,} links written in {time.perf_counter() - start:.0f} s", flush=True)
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    seconds = {}
    for name in NAMES:
        seconds[name] = open_folder(root, count)
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
        time.sleep(SETTLED / 1e9)  # a folder that has just changed gets no index
    return {"files": count, "seconds": seconds, **surroundings("antipode", "pillow")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="the file of results, in JSON")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="folder-index-"))
    try:
        result = measure(args.files, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
