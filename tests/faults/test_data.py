"""Data sets in the face of damaged and hostile files: never fewer or other images without a word.

Every test goes through the command line or the public functions.
"""

import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

import antipode
from antipode import cli

TRAIN = [
    *("--method", "dcl", "--backbone", "resnet10-slim", "--epochs", "1", "--batch", "4"),
    *("--device", "cpu", "--set", "views.size=16", "--set", "data.workers=0"),
]
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202egnp"  # sets a title, clears a screen, reverses a text


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "1000")


def call(*words):
    """Run a command in this process, and return its status and what it printed on stderr."""
    err = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        warnings.simplefilter("always")
        cli.main([str(word) for word in words])
    return end.value.code or 0, err.getvalue()


def check_sentence(status, err, *parts):
    """The command ended with one sentence and status 2."""
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert status == 2 and len(lines) == 1 and lines[0].startswith("antipode: "), (status, err)
    for part in parts:
        assert re.search(part, lines[0]), (part, lines[0])


def limited(*words, gigabytes=1, seconds=30):
    """Run a command in a forked process with limits of time and of the memory that it adds."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        result = -1, "no result"
        try:
            signal.alarm(seconds)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (gigabytes << 30),) * 2)
            result = call(*words)
        except BaseException as error:
            result = -1, repr(error)
        finally:
            os.write(send, json.dumps(result).encode())
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else (-1, f"ended by the limit of {seconds} seconds")


def pixels(seed, size=(24, 24)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def photograph(seed=0, kind="PNG"):
    """Return the bytes of a random image."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed)).save(buffer, kind)
    return buffer.getvalue()


def folder(root, seed=0, count=8, kind="PNG"):
    """Write two class folders of random images."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            data = photograph(1000 * seed + index + 100 * (name == "dog"), kind)
            (root / name / f"{index}.{kind.lower()}").write_bytes(data)
    return root


def shard(path, count=16, extra=(), seed=0):
    """Write a tar of `count` images and of `extra` members (name, data)."""
    members = [(f"{number:04d}.png", photograph(seed + number)) for number in range(count)]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in [*members, *extra]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def packed_names(home):
    """Return the names of the images in a pack, of all splits."""
    return [name.decode() for file in home.glob("*/names.npy") for name in np.load(file).tolist()]


# The data are the data


def replaced_folder(root):
    folder(root / "images", seed=5)


def replaced_shard(root):
    shard(root / "a.tar", seed=77)


def replaced_pack(root):
    shutil.rmtree(root / "packed")
    call("pack", f"folder:{folder(root / 'others', seed=5)}", "--out", root / "packed")


@pytest.mark.parametrize("kind", ["folder", "webdataset", "packed"])
def test_a_resume_with_other_images_of_the_same_names_stops(tmp_path, kind):
    folder(tmp_path / "images")
    if kind == "packed":
        call("pack", f"folder:{tmp_path / 'images'}", "--out", tmp_path / "packed")
    name = {
        "folder": f"folder:{tmp_path / 'images'}",
        "webdataset": f"webdataset:{shard(tmp_path / 'a.tar')}",
        "packed": f"packed:{tmp_path / 'packed'}",
    }[kind]
    words = ("pretrain", "--data", name, *TRAIN, "--out", tmp_path / "run")
    assert call(*words)[0] == 0
    before = sorted((tmp_path / "run").rglob("*"))
    replace = {"folder": replaced_folder, "webdataset": replaced_shard, "packed": replaced_pack}
    replace[kind](tmp_path)
    check_sentence(*call(*words), "trained on other images", "contents differ", "another --out")
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_a_resume_with_one_renamed_image_stops(tmp_path):
    name = f"folder:{folder(tmp_path / 'images')}"
    words = ("pretrain", "--data", name, *TRAIN, "--out", tmp_path / "run")
    assert call(*words)[0] == 0
    (tmp_path / "images" / "cat" / "3.png").rename(tmp_path / "images" / "cat" / "33.png")
    check_sentence(*call(*words), "their names .*differ")


class Own(Dataset):
    """Images from memory."""

    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return pixels(self.seed + index)


def test_a_resume_with_another_dataset_of_the_user_stops(tmp_path):
    settings = dict(method="dcl", backbone="resnet10-slim", epochs=1, batch=8, quiet=True)
    settings |= dict(out=tmp_path / "run", device="cpu", overrides={"views.size": 16})
    antipode.pretrain(data=Own(0), **settings)
    antipode.pretrain(data=Own(0), **settings)
    with pytest.raises(ValueError, match=r"trained on other images than .*contents differ"):
        antipode.pretrain(data=Own(100), **settings)


# Damaged tars


def flipped(data):
    """Flip one bit in the sixth header."""
    at = data.index(b"0005.png")
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def zeroed(data):
    """Overwrite the sixth header with zeros, so that it looks like the end of the archive."""
    at = data.index(b"0005.png")
    return data[:at] + bytes(512) + data[at + 512 :]


def negative(data):
    """Give the sixth member a negative size, in the binary form of GNU tar."""
    at = data.index(b"0005.png")
    header = bytearray(data[at : at + 512])
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


@pytest.mark.parametrize("damage", [flipped, zeroed, negative, lambda data: data * 2])
def test_a_damaged_or_concatenated_tar_is_refused(tmp_path, damage):
    path = shard(tmp_path / "x.tar")
    path.write_bytes(damage(path.read_bytes()))
    words = ("pretrain", "--data", f"webdataset:{path}", *TRAIN, "--out", tmp_path / "run")
    status, err = limited(*words)
    check_sentence(status, err, r"x.tar (is damaged at byte [\d,]+, after 5|continues at byte)")


@pytest.mark.parametrize("name", ["", ".", "./"])
def test_a_member_without_a_name_is_counted(tmp_path, name):
    path = shard(tmp_path / "x.tar", extra=[("odd.png", photograph())])
    data = bytearray(path.read_bytes())
    at = data.index(b"odd.png")
    data[at : at + 8] = name.encode().ljust(8, b"\0")
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    status, err = call("pack", f"webdataset:{path}", "--out", tmp_path / "p")
    assert status == 0 and len(packed_names(tmp_path / "p")) == 16
    if name != "./":  # a name that ends with a slash is a folder
        assert "1 of 17 files" in err and "has no file name" in err, err


def test_a_class_number_does_not_take_the_memory(tmp_path):
    label = ("0000.cls", b"0"), ("0001.cls", b"400000000")
    path = shard(tmp_path / "x.tar", 2, extra=label)
    words = ("pack", f"webdataset:{path}", "--out", tmp_path / "p")
    status, err = limited(*words)
    assert status == 0, err
    meta = json.loads((tmp_path / "p" / "meta.json").read_text())
    assert meta["splits"]["train"]["classes"] == ["0", "400000000"]


# Huge images, deep folders, many files


def huge_png(side):
    """Return a PNG of black pixels with one bit each, which decodes to gigabytes."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    rows = zlib.compress(bytes((side // 8 + 2) * side), 1)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_a_huge_image_is_named_and_not_decoded(tmp_path):
    root = folder(tmp_path / "images")
    (root / "cat" / "huge.png").write_bytes(huge_png(13_300))
    status, err = call("pack", f"folder:{root}", "--out", tmp_path / "p")
    assert status == 0 and len(packed_names(tmp_path / "p")) == 16
    assert re.search(r"1 of 17 files .*cat/huge.png has 13300 x 13300 pixels", err), err


def test_a_folder_of_any_depth_is_read(tmp_path):
    """There are more levels than Python's functions may call themselves."""
    root = folder(tmp_path / "images")
    try:
        os.chdir(root)
        for _ in range(1100):
            Path("d").mkdir()
            os.chdir("d")
        Path("deep.png").write_bytes(photograph(9))
        os.chdir(tmp_path)
        status, err = call("pack", f"folder:{root}", "--out", tmp_path / "p")
    finally:
        os.chdir(tmp_path)
        subprocess.run(["rm", "-rf", str(root / "d")], check=True)  # shutil calls itself
    assert status == 0, err[-300:]
    names = packed_names(tmp_path / "p")
    assert len(names) == 17 and max(map(len, names)) > 2200


def test_ordinary_files_are_opened_without_pillow(tmp_path, monkeypatch):
    """Pillow takes ten times as long for a header, which counts for 100,000 files."""
    root = folder(tmp_path / "images", kind="JPEG")
    opened = []
    original = Image.open

    def counting(*arguments, **options):
        opened.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(Image, "open", counting)
    assert call("pack", f"folder:{root}", "--out", tmp_path / "p")[0] == 0
    assert len(packed_names(tmp_path / "p")) == 16 and not opened


# Annotations of others


def voc(root, annotation):
    home = root / "VOCdevkit" / "VOC2007"
    for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (home / part).mkdir(parents=True)
    for part in ("trainval", "test"):
        (home / "ImageSets" / "Main" / f"{part}.txt").write_text("000001\n")
    (home / "JPEGImages" / "000001.jpg").write_bytes(photograph(kind="JPEG"))
    (home / "Annotations" / "000001.xml").write_bytes(annotation)


BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox>"
OBJECT = "<annotation><object><name>{}</name>{}</object></annotation>"
VOC = {
    "empty": (b"", "is not XML"),
    "malformed": (b"<annotation><object>", "is not XML"),
    "binary": (bytes(range(256)), "is not XML"),
    "page": (b"<html></html>", "annotation"),
    "unknown class": (OBJECT.format("dragon", BOX.format(9)).encode(), "dragon"),
    "no box": (OBJECT.format("dog", "").encode(), "dog"),
    "text": (OBJECT.format("dog", BOX.format("wide")).encode(), "wide"),
    "infinite": (OBJECT.format("dog", BOX.format("1e999")).encode(), "1e999"),
    "not a number": (OBJECT.format("dog", BOX.format("nan")).encode(), "nan"),
}


@pytest.mark.parametrize("case", VOC)
def test_a_wrong_annotation_of_voc_is_named(tmp_path, case):
    content, part = VOC[case]
    voc(tmp_path / "data", content)
    words = ("pack", "voc07", "--root", tmp_path / "data", "--out", tmp_path / "p")
    check_sentence(*call(*words), r"000001\.xml", part)


def coco_content():
    return {
        "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 9, "file_name": "9.jpg"}],
        "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}],
        "annotations": [
            {"image_id": 7, "category_id": 90, "bbox": [2, 3, 6, 6], "segmentation": []}
        ],
    }


def edited(*path, value=...):
    """Return a COCO file with another value at a path, or without that key."""
    content = coco_content()
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(content)


COCO = {
    "a list": "[]",
    "nested": '{"images": ' + "[" * 50_000,
    "cut": json.dumps(coco_content())[:-9],
    "no categories": edited("categories"),
    "categories of text": edited("categories", value="all"),
    "images as an object": edited("images", value={"a": 1}),
    "an image without an id": edited("images", 0, "id"),
    "two images of one id": edited("images", 0, "id", value=9),
    "an image without a name": edited("images", 0, "file_name"),
    "a name that is a number": edited("images", 0, "file_name", value=7),
    "a name outside the folder": edited("images", 0, "file_name", value="../../7.jpg"),
    "an unknown image": edited("annotations", 0, "image_id", value=8),
    "an unknown category": edited("annotations", 0, "category_id", value=2),
    "a category of text": edited("annotations", 0, "category_id", value="90"),
    "a list as id": edited("annotations", 0, "image_id", value=[7]),
    "no box": edited("annotations", 0, "bbox"),
    "a short box": edited("annotations", 0, "bbox", value=[1, 2, 3]),
    "a box of text": edited("annotations", 0, "bbox", value=["a", 2, 3, 4]),
    "an infinite box": edited("annotations", 0, "bbox", value=[0, 0, 1e300, 4]),
    "a number of 5,000 digits": '{"images": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("case", COCO)
def test_a_wrong_file_of_coco_is_named(tmp_path, case):
    home = tmp_path / "data" / "coco"
    (home / "images").mkdir(parents=True)
    for name in ("7.jpg", "9.jpg"):
        (home / "images" / name).write_bytes(photograph(kind="JPEG"))
    for part in ("train", "val"):
        (home / f"instances_{part}.json").write_text(COCO[case])
    words = ("pack", "coco", "--root", tmp_path / "data", "--out", tmp_path / "p")
    check_sentence(*call(*words), r"instances_train\.json")


# Damaged packs


def rewritten(home, name, edit):
    """Change a table of a pack, with the right checksum."""
    file = home / "train" / name
    array = edit(np.load(file))
    np.save(file, array)
    meta = json.loads((home / "meta.json").read_text())
    meta["splits"]["train"]["files"][name] = zlib.crc32(file.read_bytes())
    (home / "meta.json").write_text(json.dumps(meta))


def field(name, value):
    def edit(index):
        index[name][0] = value
        return index

    return edit


TABLES = {
    "a part that is not there": ("index.npy", field("part", 7)),
    "a negative part": ("index.npy", field("part", -1)),
    "an offset behind the end": ("index.npy", field("offset", 1 << 60)),
    "a negative offset": ("index.npy", field("offset", -5)),
    "a huge length": ("index.npy", field("length", (1 << 63) - 1)),
    "a length of nothing": ("index.npy", field("length", 0)),
    "a height without a width": ("index.npy", field("height", 9)),
    "too few records": ("index.npy", lambda index: index[:-1]),
    "other records": ("index.npy", lambda index: np.zeros(len(index))),
    "names that are numbers": ("names.npy", lambda names: np.arange(len(names))),
    "a large label": ("labels.npy", lambda labels: labels + (1 << 40)),
    "labels of floats": ("labels.npy", lambda labels: labels / 2),
}
METAS = {
    "a list": lambda meta: [meta],
    "no splits": lambda meta: {key: meta[key] for key in meta if key != "splits"},
    "splits of text": lambda meta: meta | {"splits": "train"},
    "no train": lambda meta: meta | {"splits": {}},
    "a split of text": lambda meta: meta | {"splits": {"train": "x"}},
    "a split outside": lambda meta: meta | {"splits": meta["splits"] | {"../x": {}}},
    "no mean": lambda meta: {key: meta[key] for key in meta if key != "mean"},
    "a mean of text": lambda meta: meta | {"mean": ["a", "b", "c"]},
    "a std of zero": lambda meta: meta | {"std": [0, 0, 0]},
    "a name that is a number": lambda meta: meta | {"name": 3},
    "a size of text": lambda meta: meta | {"size": "big"},
    "a huge size": lambda meta: meta | {"size": 10**9},
}


@pytest.fixture
def pack_home(tmp_path):
    call("pack", f"folder:{folder(tmp_path / 'images')}", "--out", tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize("case", TABLES)
def test_a_wrong_table_of_a_pack_is_named(tmp_path, pack_home, case):
    name, edit = TABLES[case]
    rewritten(pack_home, name, edit)
    words = ("pretrain", "--data", f"packed:{pack_home}", *TRAIN, "--out", tmp_path / "run")
    check_sentence(*call(*words), name, "is damaged")


@pytest.mark.parametrize("case", METAS)
def test_a_wrong_description_of_a_pack_is_named(tmp_path, pack_home, case):
    meta = json.loads((pack_home / "meta.json").read_text())
    (pack_home / "meta.json").write_text(json.dumps(METAS[case](meta)))
    words = ("pretrain", "--data", f"packed:{pack_home}", *TRAIN, "--out", tmp_path / "run")
    check_sentence(*call(*words), "meta.json is damaged")


# Names from files


@pytest.mark.parametrize("kind", ["file", "member", "class", "decoded"])
def test_escape_sequences_in_names_do_not_reach_the_terminal(tmp_path, kind):
    root = folder(tmp_path / "images")
    name = f"folder:{root}"
    if kind == "file":
        (root / "cat" / f"{ESCAPES}.png").write_bytes(b"text")
    elif kind == "member":
        name = f"webdataset:{shard(tmp_path / 'x.tar', extra=[(f'{ESCAPES}.cls', b'1')])}"
    elif kind == "class":
        shutil.rmtree(root / "dog")
        (root / "cat").rename(root / ESCAPES)
    else:
        data = photograph(3)
        (root / "cat" / f"{ESCAPES}.png").write_bytes(data[: len(data) // 2])
    status, err = call("pack", name, "--out", tmp_path / "p")
    assert status == 0 and "owned" in err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", err), err


def test_escape_sequences_in_classes_do_not_reach_the_terminal_in_an_error(tmp_path):
    for part, name in (("train", "cat"), ("train", "dog"), ("val", ESCAPES)):
        place = tmp_path / "images" / part / name
        place.mkdir(parents=True)
        (place / "0.png").write_bytes(photograph())
    status, err = call("pack", f"folder:{tmp_path / 'images'}", "--out", tmp_path / "p")
    check_sentence(status, err, "owned")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", err), err
