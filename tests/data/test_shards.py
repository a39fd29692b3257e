"""Tests of WebDataset shards and of data sets from the Hugging Face Hub."""

import io
import json
import sys
import tarfile
import types
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image

from antipode.data.sources.catalog import load
from antipode.data.sources.shards import expand_ranges, index_shard
from antipode.data.sources.source import BrokenImages


def photograph(seed=0, size=(30, 20)):
    """Return the bytes of a random PNG."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def shard(path, members, mode="w"):
    """Write a tar file of members (name, data) and return its path; None as data is a link."""
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type = tarfile.SYMTYPE
                member.linkname = "/etc/passwd"
            else:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data or b""))
    return path


def samples(first, count):
    """Yield the members of `count` labelled images."""
    for number in range(first, first + count):
        yield f"{number:04d}.png", photograph(number)
        yield f"{number:04d}.cls", str(number % 3).encode()


def test_a_pattern_of_shards_is_one_source(tmp_path):
    for number in range(3):
        shard(tmp_path / f"train-{number:02d}.tar", samples(10 * number, 10))
    splits = load(f"webdataset:{tmp_path}/train-{{00..02}}.tar")
    assert len(splits.train) + len(splits.test) == 30 and splits.classes == ["0", "1", "2"]
    wild = load(f"webdataset:{tmp_path}/*.tar")
    assert list(wild.train.names) == list(splits.train.names)
    for at, name in enumerate(splits.train.names):
        number = int(name.split(":")[1])
        pixels = np.asarray(Image.open(io.BytesIO(photograph(number))))
        assert torch.equal(splits.train.read(at), torch.from_numpy(pixels.copy()).permute(2, 0, 1))
        assert splits.train.labels[at] == number % 3


def test_braces():
    assert list(expand_ranges("a-{08..10}-{1..2}.tar")) == [
        f"a-{a}-{b}.tar" for a in ("08", "09", "10") for b in (1, 2)
    ]


@pytest.mark.parametrize("name", ["../../evil.png", "/etc/evil.png", "a/../../evil.png"])
def test_a_member_that_climbs_out_is_refused(tmp_path, name):
    path = shard(tmp_path / "a.tar", [*samples(0, 2), (name, photograph())])
    sentence = r"is unsafe: its member .*evil.png is outside the archive"
    with pytest.raises(ValueError, match=sentence):
        load(f"webdataset:{path}")


def test_what_cannot_be_used_is_left_out_and_listed(tmp_path):
    path = shard(
        tmp_path / "a.tar",
        [
            *samples(0, 2),
            ("link.png", None),
            ("empty.png", b""),
            ("alone.cls", b"1"),
            ("0001.png", photograph(9)),
        ],
    )
    with pytest.warns(BrokenImages, match="4 of 6"):
        splits = load(f"webdataset:{path}")
    reasons = {skip.name: skip.reason for skip in splits.train.skipped}
    assert reasons == {
        "a.tar:link.png": "is not a regular file",
        "a.tar:0001.png": "is in the shard twice; only the first copy is used",
        "a.tar:empty": "is empty (0 bytes)",
        "a.tar:alone": "has no image, only cls",
    }


def test_a_shard_that_is_cut_short_is_refused_or_said_to_be(tmp_path):
    path = shard(tmp_path / "a.tar", samples(0, 5))
    whole = path.read_bytes()
    at = whole.index(b"0003.png")
    path.write_bytes(whole[: at + 600])
    with pytest.raises(ValueError, match="is not an uncompressed tar file, or is truncated"):
        index_shard(path)
    path.write_bytes(whole[:at])  # tarfile does not notice a cut between two members
    places, skipped = index_shard(path)
    assert len(places) == 3 and "may be truncated" in skipped[0].reason


def test_every_changed_byte_of_a_header_is_noticed(tmp_path):
    path = shard(tmp_path / "a.tar", samples(0, 3))
    whole = path.read_bytes()
    at = whole.index(b"0001.png")
    for place in range(at, at + 512, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a.tar is damaged at byte [\d,]+, after 2 files"):
            index_shard(path)


def test_archives_that_were_joined_are_refused_and_padding_is_not(tmp_path):
    path = shard(tmp_path / "a.tar", samples(0, 3))
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(100_000))
    assert len(index_shard(path)[0]) == 3 and not index_shard(path)[1]
    path.write_bytes(whole + bytes(100_000) + whole)
    sentence = rf"continues at byte {len(whole) + 100_000:,}, after the end of its archive of 6 "
    with pytest.raises(ValueError, match=sentence):
        index_shard(path)


def test_a_second_image_of_a_sample_is_listed(tmp_path):
    path = shard(tmp_path / "a.tar", [("a.png", photograph()), ("a.webp", photograph(1))])
    places, skipped = index_shard(path)
    assert len(places) == 1 and [skip.name for skip in skipped] == ["a.tar:a.webp"]


def test_large_class_numbers_are_names_of_classes_and_small_ones_are_kept(tmp_path):
    def labels(*numbers):
        members = [(f"{at}.cls", str(number).encode()) for at, number in enumerate(numbers)]
        images = [(f"{at}.png", photograph(at)) for at in range(len(numbers))]
        splits = load(f"webdataset:{shard(tmp_path / 'a.tar', images + members)}")
        return splits.train.labels.tolist(), splits.classes

    assert labels(2, 0) == ([2, 0], ["0", "1", "2"])
    assert labels(9_999, 0)[0] == [9_999, 0]
    assert labels(60_000_000, 7) == ([1, 0], ["7", "60000000"])
    for number in (-1, 1 << 63, "1.5", "9" * 5000):
        with pytest.raises(
            ValueError, match=r"1.cls (contains the label|does not contain a label)"
        ):
            labels(0, number)


def test_a_pattern_of_too_many_shards_is_refused():
    with pytest.raises(ValueError, match="stands for 10,000,000,000 shards"):
        list(expand_ranges("a-{00000..99999}-{00000..99999}.tar"))


def test_labels_may_be_in_json_and_may_be_missing(tmp_path):
    path = shard(
        tmp_path / "a.tar", [("a.png", photograph()), ("a.json", json.dumps({"label": 4}).encode())]
    )
    assert index_shard(path)[0][0].label == 4
    path = shard(
        tmp_path / "b.tar", [("a.png", photograph()), ("b.png", photograph()), ("b.cls", b"1")]
    )
    sentence = "only 1 of 2 images in b.tar .* have a label, so the labels are not used"
    with pytest.warns(UserWarning, match=sentence):
        assert load(f"webdataset:{path}").train.labels is None
    path = shard(tmp_path / "c.tar", [("a.png", photograph()), ("a.cls", b"cat")])
    with pytest.raises(ValueError, match=r"a.cls does not contain a label: b'cat'"):
        load(f"webdataset:{path}")


def test_addresses_that_differ_in_what_they_ask_for_are_different_shards(tmp_path, monkeypatch):
    def retrieve(url, target):
        shard(target, [(f"{url[-5]}.png", photograph())])

    monkeypatch.setattr(urllib.request, "urlretrieve", retrieve)
    name = "webdataset:https://example.org/get?f=a-{0..1}.tar"
    names = list(load(name, root=tmp_path, download=True).train.names)
    assert len(set(names)) == 2 and [name[-1] for name in names] == ["0", "1"]


@pytest.mark.parametrize(
    "content", ["compressed", "text", "short", "missing", "no match", "empty", "pipe"]
)
def test_what_is_no_shard_is_refused(tmp_path, content):
    path = tmp_path / "a.tar"
    if content == "compressed":
        shard(path, samples(0, 2), "w:gz")
    if content == "text":
        path.write_text("hello" * 1000)
    if content == "short":
        path.write_bytes(bytes(512))
    if content == "empty":
        shard(path, [])
    name = {"no match": tmp_path / "b*.tar", "pipe": "pipe:cat /etc/passwd"}.get(content, path)
    sentence = (
        "not an uncompressed tar|there is no shard|no shard matches|contain no image|not pipe"
    )
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        load(f"webdataset:{name}")


def test_an_address_is_fetched_once_and_only_when_allowed(tmp_path, monkeypatch):
    served = shard(tmp_path / "served.tar", samples(0, 4))
    downloads = []

    def retrieve(url, target):
        downloads.append(url)
        target.write_bytes(served.read_bytes())

    monkeypatch.setattr(urllib.request, "urlretrieve", retrieve)
    name = "webdataset:https://example.org/../x/a-{0..1}.tar"
    with pytest.raises(FileNotFoundError, match=r"set data.download=true to download it"):
        load(name, root=tmp_path)
    load(name, root=tmp_path, download=True)
    load(name, root=tmp_path)
    assert len(downloads) == 2 and len(list((tmp_path / "webdataset").iterdir())) == 2


def test_the_webdataset_package_writes_what_we_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(4):
            writer.write({"__key__": f"s{number}", "png": photograph(number), "cls": number % 2})
    places, skipped = index_shard(tmp_path / "a.tar")
    assert [place.label for place in places] == [0, 1, 0, 1] and not skipped


class Table:
    """The part of a Hugging Face table that the reader uses."""

    def __init__(self, count, label=True):
        kinds = {"image": "Image", "label": "ClassLabel"} if label else {"text": "Value"}
        self.features = {
            name: type(kind, (), {"names": ["cat", "dog"]})() for name, kind in kinds.items()
        }
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, key):
        if isinstance(key, str):
            return [number % 2 for number in range(self.count)]
        return {"image": Image.open(io.BytesIO(photograph(key))), "label": key % 2}


def fake_hub(monkeypatch, tables):
    """Replace the datasets package by one that has only some/cats, with these tables."""
    fake = types.ModuleType("datasets")

    def load_dataset(name, config):
        if name != "some/cats":
            raise RuntimeError(f"{name} does not exist\non the hub")
        return tables

    fake.load_dataset = load_dataset
    fake.config = types.SimpleNamespace(HF_HUB_OFFLINE=True)
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_a_data_set_of_the_hub(monkeypatch):
    fake_hub(monkeypatch, {"train": Table(6), "test": Table(4)})
    splits = load("hf:some/cats")
    assert (len(splits.train), len(splits.test)) == (6, 4) and splits.classes == ["cat", "dog"]
    assert splits.train.labels.tolist() == [0, 1] * 3
    assert splits.train.images.shape == (6, 3, 20, 30)


def test_the_hub_explains_what_is_missing(monkeypatch):
    fake_hub(monkeypatch, {"train": Table(6, label=False)})
    with pytest.raises(ValueError, match="hf:some/cats has no image column, only text"):
        load("hf:some/cats")
    with pytest.raises(
        FileNotFoundError, match=r"hf:dogs cannot be loaded .dogs does not exist on the hub"
    ):
        load("hf:dogs")
    fake_hub(monkeypatch, {"all": Table(6)})
    with pytest.raises(ValueError, match="has no train split, only all"):
        load("hf:some/cats")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ValueError, match=r"hf:some/cats needs the datasets package: pip install 'antipode\[data\]'"
    ):
        load("hf:some/cats")
