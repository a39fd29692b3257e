"""Damage data sets at random and open them under a limit of memory and time.

    python tests/faults/fuzz_data.py
    python tests/faults/fuzz_data.py --only tars --count 100 --seed 3

Every damaged image, tar, pack, COCO file and VOC file must either be read, or raise a ValueError or
OSError of one sentence. Each process may use SPARE bytes of address space more than it has at its
start. A case that needs more than SECONDS, or that ends the process, counts as a failure. So does
a tar with changed bytes that loses images without a word.
"""

import argparse
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import tarfile
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from antipode.data.sources.annotated import detection
from antipode.data.sources.catalog import load
from antipode.data.sources.decode import decode
from antipode.data.sources.headers import header
from antipode.data.sources.pack import pack
from antipode.data.sources.packed import verify
from antipode.data.sources.source import Decoded

COUNTS = {"images": 20_000, "tars": 5_000, "packs": 5_000, "coco": 3_000, "voc": 3_000}
SPARE = 3 << 29  # bytes that a process may add to its address space
SECONDS = 60
BATCH = 250  # cases per process
NUMBERS = (0, 1, -1, 2, 7, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 10**30)
ODD = (None, True, "", "x", "\x1b[2J", "../../x", "/x", [], {}, [[]], [1], {"id": 1}, 1.5, 1e308)
ODD += (float("nan"), float("-inf"), "9" * 5000, *NUMBERS)

Files = dict[str, bytes]  # path below the folder of a case -> content


# Changes of bytes


def changed(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with one to four random changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(CHANGES)(rng, data)
    return data


def flipped(rng: random.Random, data: bytes) -> bytes:
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def number_in_the_header(rng: random.Random, data: bytes) -> bytes:
    form = rng.choice((">H", "<H", ">I", "<I", ">Q", "<Q", "B"))
    value = rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form))
    at = rng.randrange(min(len(data), 400) or 1)
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def removed(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 16, 512)) :]


def doubled(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[: at + rng.randrange(1, 600)] + data[at:]


def filled(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    count = rng.choice((1, 4, 64))
    return data[:at] + bytes([rng.choice((0, 255, 127))]) * count + data[at + count :]


CHANGES: list[Callable[[random.Random, bytes], bytes]] = [
    flipped,
    flipped,
    number_in_the_header,
    number_in_the_header,
    cut,
    removed,
    doubled,
    filled,
]


def changed_value(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with another value, or none, at a random place."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        keys = item if isinstance(item, dict) else range(len(item))
        places += [(item, key) for key in keys]
        waiting += [item[key] for key in keys if isinstance(item[key], dict | list)]
    for place, key in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
        left = place if isinstance(place, dict) else range(len(place))
        if key not in left:  # an earlier change has removed it
            continue
        action = rng.randrange(4)
        if action == 0:
            del place[key]
        elif action == 1 and isinstance(place, list):
            place.append(place[key])
        elif isinstance(place[key], int | float) and action == 2:
            place[key] = rng.choice(NUMBERS)
        else:
            place[key] = rng.choice(ODD)
    return value


# Images


def pixels(seed: int = 0, shape: tuple[int, ...] = (30, 40, 3)) -> np.ndarray[Any, Any]:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    size = (shape[1], shape[0])
    return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def original_images() -> list[bytes]:
    """Return small images in every format and in many modes."""
    rgb = Image.fromarray(pixels())
    deep = Image.fromarray(pixels()[:, :, 0].astype(np.uint16) * 257)
    results = [
        encoded(rgb, "JPEG"),
        encoded(rgb, "JPEG", progressive=True),
        encoded(rgb.convert("CMYK"), "JPEG"),
        encoded(rgb.convert("L"), "JPEG"),
        encoded(rgb, "JPEG", exif=Image.Exif().tobytes() + bytes(5000)),
        *(encoded(rgb.convert(mode), "PNG") for mode in ("RGB", "L", "P", "RGBA", "LA", "1")),
        encoded(deep, "PNG"),
        encoded(rgb, "PNG", compress_level=0),
        encoded(rgb, "WEBP"),
        encoded(rgb, "WEBP", lossless=True),
        encoded(rgb, "WEBP", save_all=True, append_images=[rgb]),
        encoded(rgb, "GIF"),
        encoded(rgb, "GIF", save_all=True, append_images=[rgb.rotate(90)]),
        *(encoded(rgb, "TIFF", compression=name) for name in (None, "tiff_lzw", "tiff_deflate")),
        encoded(rgb, "TIFF", compression="jpeg"),
        encoded(rgb, "TIFF", save_all=True, append_images=[rgb]),
        encoded(deep, "TIFF"),
        encoded(rgb, "BMP"),
        encoded(rgb.convert("P"), "BMP"),
        encoded(rgb, "PPM"),
        encoded(rgb, "JPEG2000"),
    ]
    for array in (pixels(), pixels()[:, :, 0] / 255, pixels().astype(np.uint16)):
        buffer = io.BytesIO()
        np.save(buffer, array)
        results.append(buffer.getvalue())
    return results + _tiffs()


def _tiffs() -> list[bytes]:
    """Return a TIFF of five channels, if the package tifffile is installed."""
    try:
        import tifffile
    except ImportError:
        return []
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.zeros((20, 25, 5), np.uint16), photometric="minisblack")
    return [buffer.getvalue()]


def image_case(rng: random.Random, originals: list[bytes]) -> Files:
    data = rng.choice(originals)
    if rng.random() < 0.05:  # the beginning of one file and the end of another
        other = rng.choice(originals)
        data = data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]
    else:
        data = changed(rng, data)
        if data.startswith(b"\x89PNG") and rng.random() < 0.5:
            data = with_checksums(data)
    return {"image": data}


def with_checksums(data: bytes) -> bytes:
    """Return a PNG with right checksums, so that its changed numbers are used."""
    content = bytearray(data)
    at = 8
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(content):
            break
        content[end : end + 4] = zlib.crc32(content[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(content)


def read_image(folder: Path) -> None:
    data = (folder / "image").read_bytes()
    for channels in (3, 1):
        image = decode(data, channels=channels)
        if image.dtype != torch.uint8 or len(image) != channels:
            raise AssertionError(f"decoded to {image.dtype} {tuple(image.shape)}")
    with (folder / "image").open("rb") as file:
        header(file)


# Tars


def original_tars() -> list[bytes]:
    """Return tars of eight labelled images, in three formats and with long names."""
    results = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        # the other formats store long names in a member of their own
        for name in ("{}" if form == tarfile.USTAR_FORMAT else "long" * 30 + "{}", "folder/{}"):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
                for number in range(8):
                    _add(tar, name.format(f"{number}.png"), encoded_small(number))
                    text = str(number % 2) if number < 4 else json.dumps({"label": number % 2})
                    _add(
                        tar,
                        name.format(f"{number}.{'cls' if number < 4 else 'json'}"),
                        text.encode(),
                    )
            results.append(buffer.getvalue())
    return results


def encoded_small(seed: int) -> bytes:
    return encoded(Image.fromarray(pixels(seed, (8, 9))), "PNG")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def tar_case(rng: random.Random, originals: list[bytes]) -> Files:
    data = rng.choice(originals)
    kind = rng.randrange(4)
    if kind == 0:
        return {"x.tar": flipped(rng, data), "flipped": b""}
    if kind == 1:
        return {"x.tar": data + rng.choice((data, bytes(1024) + data, data[: rng.randrange(5000)]))}
    if kind == 2:
        return {"x.tar": changed(rng, data)}
    return {"x.tar": changed_header(rng, data)}


def changed_header(rng: random.Random, data: bytes) -> bytes:
    """Change a field of a random header of a tar and give it the right checksum."""
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(starts)
    block = bytearray(data[at : at + 512])
    for _ in range(rng.choice((1, 1, 2))):
        field = rng.choice(("size", "size", "type", "name", "prefix", "any"))
        if field == "size":
            value = rng.choice((*NUMBERS, -512, -1024, 512, 5 * 10**9)) % (1 << 95)
            octal = b"%011o\0" % (value % (1 << 33))
            binary = b"\x80" + value.to_bytes(12, "big")[1:]
            negative = (-rng.choice((1, 512, 5000))).to_bytes(12, "big", signed=True)
            block[124:136] = rng.choice((octal, binary, negative, b"xyz".ljust(12, b"\0")))
        elif field == "type":
            block[156] = rng.choice(b"01234567gxLKSNX\0\xff")
        elif field == "name":
            name = rng.choice((b"", b".", b"./", b"..", b"/", b".png", b"a" * 100, b"\xff\x1b.png"))
            block[0:100] = name.ljust(100, b"\0")
        elif field == "prefix":
            block[345:500] = rng.choice((b"..", b"/", b"x" * 155, b"\xff")).ljust(155, b"\0")
        else:
            block[rng.randrange(512)] = rng.randrange(256)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block) + data[at + 512 :]


def read_tar(folder: Path) -> None:
    splits = load(f"webdataset:{folder / 'x.tar'}")
    sources = [source for source in (splits.train, splits.test) if source is not None]
    count = sum(len(source) for source in sources)
    skipped = sum(len(getattr(source, "skipped", ())) for source in sources)
    if (folder / "flipped").exists() and count + skipped < 8:
        raise AssertionError(f"{count} images and {skipped} skipped files of 8")
    read_all(*sources)


def read_all(*sources: Any) -> None:
    """Read every image; a broken image may raise a ValueError or OSError."""
    for source in sources:
        if isinstance(source, Decoded):
            for index in range(len(source)):
                try:
                    source.read(index)
                except (ValueError, OSError) as error:
                    check_sentence(error)


# Packs


def original_packs() -> list[Files]:
    """Return packs of encoded images, of pixels, and of pixels of equal size."""
    results = []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for kind in ("cat", "dog"):
            (root / "images" / kind).mkdir(parents=True)
            for index in range(4):
                data = encoded(Image.fromarray(pixels(index, (20 + index, 30, 3))), "PNG")
                (root / "images" / kind / f"{index}.png").write_bytes(data)
        for number, options in enumerate(({}, {"size": 25}, {"size": 8, "quality": 90})):
            home = pack(f"folder:{root / 'images'}", root / str(number), progress=False, **options)
            results.append(contents(home))
        for file in (root / "images").rglob("*.png"):
            file.write_bytes(encoded_small(1))
        home = pack(f"folder:{root / 'images'}", root / "equal", size=8, progress=False)
        results.append(contents(home))
    return results


def contents(home: Path) -> Files:
    return {str(file.relative_to(home)): file.read_bytes() for file in home.rglob("*.*")}


def pack_case(rng: random.Random, originals: list[Files]) -> Files:
    files = dict(rng.choice(originals))
    kind = rng.randrange(4)
    if kind == 0:
        name = rng.choice(sorted(files))
        files[name] = changed(rng, files[name])
        return files
    meta = json.loads(files["meta.json"])
    if kind == 1:
        files["meta.json"] = json.dumps(changed_value(rng, meta)).encode()
        return files
    tables = sorted(name for name in files if name.endswith(".npy"))
    name = rng.choice(tables)
    files[name] = changed(rng, files[name]) if kind == 2 else changed_table(rng, files[name])
    split, table = name.split("/")
    meta["splits"][split]["files"][table] = zlib.crc32(files[name])
    files["meta.json"] = json.dumps(meta).encode()
    return files


def changed_table(rng: random.Random, data: bytes) -> bytes:
    """Return a .npy file with another number, another type or another length."""
    array = np.load(io.BytesIO(data))
    kind = rng.randrange(4)
    if kind == 0:
        array = array[: rng.randrange(len(array) + 1)]
    elif kind == 1:
        array = np.concatenate([array, array[:1]])
    elif kind == 2:
        array = np.zeros(len(array), rng.choice(("f4", "i4", "S3", "U2", "?", "c8", "M8[s]")))
    elif array.dtype.names:
        field = rng.choice(array.dtype.names)
        limits = np.iinfo(array[field].dtype)
        value = rng.choice((*NUMBERS, -5, int(limits.max), int(limits.min)))
        array[field][rng.randrange(len(array))] = min(max(value, limits.min), limits.max)
    elif array.dtype.kind == "i":
        array[0] = rng.choice((-2, 99, 2**40, -(2**63)))
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def read_pack(folder: Path) -> None:
    splits = load(f"packed:{folder}")
    read_all(splits.train, splits.pretrain, splits.test)
    verify(folder)


# Annotations


def original_coco() -> dict[str, Any]:
    polygon = [[2, 3, 8, 3, 8, 9, 2, 9]]
    runs = {"size": [16, 20], "counts": [16 * 4, 16, 16 * 15]}
    boxes = [([2, 3, 6, 6], polygon, 90), ([4, 0, 1, 16], runs, 1)]
    return {
        "info": {"year": 2017},
        "images": [
            {"id": number, "file_name": f"{number}.jpg", "width": 20, "height": 16}
            for number in (30, 9)
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}],
        "annotations": [
            {
                "image_id": 30,
                "category_id": kind,
                "bbox": box,
                "segmentation": outline,
                "iscrowd": 0,
            }
            for box, outline, kind in boxes
        ],
    }


def coco_case(rng: random.Random, original: dict[str, Any]) -> Files:
    photograph = encoded(Image.fromarray(pixels(0, (16, 20, 3))), "JPEG")
    text = json.dumps(original)
    if rng.random() < 0.3:
        content = changed(rng, text.encode())
    else:
        content = json.dumps(changed_value(rng, json.loads(text))).encode()
    if rng.random() < 0.02:
        content = b'{"images": ' + b"[" * rng.choice((70, 5_000, 100_000)) + content
    return {
        "coco/instances_train.json": content,
        "coco/instances_val.json": text.encode(),
        "coco/images/30.jpg": photograph,
        "coco/images/9.jpg": photograph,
    }


def read_coco(folder: Path) -> None:
    splits = load("coco", root=folder)
    read_all(splits.train)
    read_objects(detection("coco", "train", folder))


def read_objects(objects: Any) -> None:
    for index in range(len(objects)):
        try:
            objects[index]
        except (ValueError, OSError) as error:
            check_sentence(error)


ANNOTATION = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE annotation [<!ENTITY a "dog">]>
<annotation><folder>VOC2007</folder><filename>1.jpg</filename>
<size><width>20</width><height>16</height><depth>3</depth></size>
<object><name>dog</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>
<object><name>sofa</name><difficult>1</difficult>
<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>
<bndbox><xmin>2</xmin><ymin>3.5</ymin><xmax>12</xmax><ymax>15</ymax></bndbox></object>
</annotation>"""
WORDS = (
    "",
    "nan",
    "-inf",
    "1e999",
    "dragon",
    "-5",
    "9" * 5000,
    "&a;",
    "&b;",
    "&#0;",
    "\x1b[2J",
    "<x>",
)
WORDS += ("<object>", "</object>", "<!--", "<bndbox/>", "<" + "x" * 5000 + ">", "<a>" * 5000)


def voc_case(rng: random.Random, original: str) -> Files:
    photograph = encoded(Image.fromarray(pixels(0, (16, 20, 3))), "JPEG")
    if rng.random() < 0.4:
        content = changed(rng, original.encode())
    else:
        parts = re.split(r"(<[^>]*>)", original)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(parts))
            parts[at] = rng.choice((*WORDS, rng.choice(parts)))
        content = "".join(parts).encode()
    names = changed(rng, b"000001\n") if rng.random() < 0.05 else b"000001\n"
    home = "VOCdevkit/VOC2007"
    return {
        f"{home}/ImageSets/Main/trainval.txt": names,
        f"{home}/ImageSets/Main/test.txt": names,
        f"{home}/Annotations/000001.xml": content,
        f"{home}/JPEGImages/000001.jpg": photograph,
    }


def read_voc(folder: Path) -> None:
    read_all(load("voc07", root=folder).train)
    read_objects(detection("voc07", "train", folder))


# The harness

KINDS: dict[str, tuple[Callable[[], Any], Callable[..., Files], Callable[[Path], None]]] = {
    "images": (original_images, image_case, read_image),
    "tars": (original_tars, tar_case, read_tar),
    "packs": (original_packs, pack_case, read_pack),
    "coco": (original_coco, coco_case, read_coco),
    "voc": (lambda: ANNOTATION, voc_case, read_voc),
}


def check_sentence(error: Exception) -> None:
    """Raise AssertionError unless an error is one sentence that is not about memory."""
    text = str(error)
    if not text or len(text) > 1000 or re.search("[\x00-\x1f\x7f-\x9f]", text):
        raise AssertionError(f"not one sentence: {text[:300]!r}")
    if "MemoryError" in text or "alloc" in text:
        raise AssertionError(f"out of memory: {text[:300]!r}")


def outcome(folder: Path, files: Files, read: Callable[[Path], None]) -> str:
    """Write the files of a case, read them, and return what happened."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    try:
        read(folder)
    except (ValueError, OSError) as error:
        try:
            check_sentence(error)
        except AssertionError as wrong:
            return f"FAILED {wrong}"
        return "refused"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"FAILED {type(error).__name__} {str(error)[:200]!r} at {place.name}:{place.lineno}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "read"


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))


def work(kind: str, seed: int, numbers: range, place: Path, report: Any) -> None:
    """Run some cases in this process and write a line for each."""
    make_originals, make_case, read = KINDS[kind]
    originals = make_originals()
    limit_memory()
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 2)  # libjpeg and libtiff print what they find
    for number in numbers:
        files = make_case(random.Random(f"{kind} {seed} {number}"), originals)
        signal.alarm(SECONDS)
        begin = time.monotonic()
        result = outcome(place / str(number), files, read)
        signal.alarm(0)
        line = {"number": number, "result": result, "seconds": time.monotonic() - begin}
        report.write(json.dumps(line) + "\n")
        report.flush()


def run(kind: str, count: int, seed: int = 0) -> tuple[Counter[str], tuple[float, int]]:
    """Return how often each outcome happened in `count` cases, and time and number of the slowest.

    An outcome that is a failure has the number of the case.
    """
    counts: Counter[str] = Counter()
    slowest = (0.0, 0)
    first = 0
    with tempfile.TemporaryDirectory() as place:
        while first < count:
            numbers = range(first, min(count, first + BATCH))
            lines, status = in_child(kind, seed, numbers, Path(place))
            for line in lines:
                text = line["result"]
                failed = text.startswith("FAILED")
                counts[f"{kind} {seed} {line['number']}: {text}" if failed else text] += 1
                slowest = max(slowest, (line["seconds"], line["number"]))
            first = numbers.start + len(lines)
            if len(lines) < len(numbers):  # the process has ended in the next case
                counts[f"{kind} {seed} {first}: FAILED the process ended with {status}"] += 1
                first += 1
    return counts, slowest


def in_child(kind: str, seed: int, numbers: range, place: Path) -> tuple[list[Any], int]:
    """Run some cases in a forked process; return their lines and the status of the process."""
    report = place / "report"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with report.open("w") as file:
                work(kind, seed, numbers, place, file)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return [json.loads(line) for line in report.read_text().splitlines()], status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in [options.only] if options.only else KINDS:
        begin = time.monotonic()
        counts, slowest = run(kind, options.count or COUNTS[kind], options.seed)
        failed = {text: number for text, number in counts.items() if "FAILED" in text}
        print(
            f"{kind}: {counts.total()} cases, {counts['read']} read, {counts['refused']} refused, "
            f"{sum(failed.values())} failed, slowest {slowest[0]:.1f} s (case {slowest[1]}), "
            f"{time.monotonic() - begin:.0f} s in all",
            flush=True,
        )
        for text in list(failed)[:20]:
            print(f"  {text}", flush=True)


if __name__ == "__main__":
    main()
