"""Tests of packed data sets: equality with the original, interruptions and damage."""

import json
import multiprocessing
import pickle
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from antipode.data.loader import Loader
from antipode.data.sources import pack as module
from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.data.sources.packed import packed, verify
from antipode.data.sources.source import BrokenImages, Decoded, Memory
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views


def folder(root, count=12):
    """Write two class folders of random images of different sizes, half JPEG and half PNG."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for index in range(count):
            size = (40 + 3 * index, 50)
            pixels = np.random.default_rng(index).integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.{'jpg' if index % 2 else 'png'}")
    return root


def smooth(root):
    """Write smooth images: like photographs, they have little noise and suit JPEG."""
    root.mkdir()
    for index in range(3):
        coarse = np.random.default_rng(index).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((120, 90), Image.Resampling.BICUBIC).save(
            root / f"{index}.png"
        )
    return root


def pixels(source):
    """Return all images of a source."""
    return [source.read(index) for index in range(len(source))]


def test_packed_bytes_give_the_very_same_images_labels_and_batches(tmp_path):
    name = f"folder:{folder(tmp_path / 'photos')}"
    before = load(name)
    after = load(f"packed:{pack(name, tmp_path / 'packed')}")
    for part in ("train", "test"):
        old, new = getattr(before, part), getattr(after, part)
        assert all(torch.equal(a, b) for a, b in zip(pixels(old), pixels(new), strict=True))
        assert torch.equal(old.labels, new.labels) and list(old.names) == list(new.names)
        assert (old.classes, old.size, old.channels) == (new.classes, new.size, new.channels)
    assert (before.size, before.mean, before.std) == (after.size, after.mean, after.std)
    loaders = [
        Loader(s.pretrain, views("simclr", size=16), batch=4, epochs=1, seed=0, workers=w)
        for s, w in ((before, 0), (after, 2))
    ]
    for (_, _, a), (_, _, b) in zip(*(loader.steps() for loader in loaders), strict=True):
        assert torch.equal(a.image_ids, b.image_ids)
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


def test_packed_pixels_are_the_stated_resize_and_never_an_enlargement(tmp_path):
    name = f"folder:{folder(tmp_path / 'photos')}"
    before = load(name)
    after = packed(pack(name, tmp_path / "packed", size=45))
    for old, new in zip(pixels(before.train), pixels(after.train), strict=True):
        expected = F.resize(old, [45], antialias=True) if min(old.shape[1:]) > 45 else old
        assert torch.equal(new, expected)


def test_packed_jpeg_is_close_to_the_resize(tmp_path):
    name = f"folder:{smooth(tmp_path / 'photos')}"
    raw, jpeg = (packed(pack(name, tmp_path / f"q{q}", size=45, quality=q)) for q in (None, 95))
    assert isinstance(jpeg.train, Decoded) and isinstance(raw.train, Memory)
    for old, new in zip(raw.train.images, pixels(jpeg.train), strict=True):
        assert old.shape == new.shape and (old.float() - new.float()).abs().mean() < 3
    sizes = [
        (tmp_path / name / "train" / "part-00000.bin").stat().st_size for name in ("q95", "qNone")
    ]
    assert sizes[0] < sizes[1] / 2


def test_images_in_memory_are_in_memory_again(tmp_path):
    before = load("digits")
    after = packed(pack("digits", tmp_path / "packed"))
    assert isinstance(after.train, Memory) and torch.equal(before.train.images, after.train.images)
    assert torch.equal(before.test.labels, after.test.labels) and after.classes == before.classes
    assert after.channels == 1 and after.pretrain is after.train


def test_a_pretraining_split_of_its_own_is_kept(tmp_path):
    whole = Memory(torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8))
    part = Memory(whole.images[:4], torch.arange(4), list("abcd"))
    after = packed(pack(Splits("own", whole, part, None, 8), tmp_path / "packed"))
    assert (len(after.pretrain), len(after.train), after.test) == (9, 4, None)
    assert after.pretrain.labels is None and after.name == "own"


def test_arrays_of_many_channels_stay_as_they_are(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "arrays" / name).mkdir(parents=True)
        for index in range(3):
            array = np.full((20, 30, 6), 10 * index, np.uint8)
            np.save(tmp_path / "arrays" / name / f"{index}.npy", array)
    after = packed(pack(f"folder:{tmp_path / 'arrays'}", tmp_path / "packed"))
    assert after.channels == 6 and after.train.read(0).shape == (6, 20, 30)


def test_broken_images_are_left_out_counted_and_listed(tmp_path):
    root = folder(tmp_path / "photos")
    data = (root / "cat" / "3.jpg").read_bytes()
    (root / "cat" / "3.jpg").write_bytes(data[: len(data) // 2])
    (root / "dog" / "empty.png").touch()
    with pytest.warns(BrokenImages, match="2 of 25 files of .* were skipped"):
        after = packed(pack(f"folder:{root}", tmp_path / "packed"))
    skipped = {skip.name for part in (after.train, after.test) for skip in part.skipped}
    assert skipped == {"cat/3.jpg", "dog/empty.png"}
    assert len(after.train) + len(after.test) == 23
    assert "cat/3.jpg" not in [*after.train.names, *after.test.names]


def test_a_split_without_any_readable_image_is_refused(tmp_path):
    root = folder(tmp_path / "photos", count=1)
    for file in root.glob("*/*"):
        file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(ValueError, match="none of the 2 images of train can be read"):
        pack(f"folder:{root}", tmp_path / "packed")


def interrupted(monkeypatch, after):
    """Make packing stop with KeyboardInterrupt once `after` images are encoded."""
    encode = module.encode
    count = 0

    def stop(*arguments):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return encode(*arguments)

    monkeypatch.setattr(module, "encode", stop)


def test_an_interrupted_run_goes_on_with_the_missing_parts(tmp_path, monkeypatch):
    name = f"folder:{folder(tmp_path / 'photos')}"
    expected = packed(pack(name, tmp_path / "whole"))
    monkeypatch.setattr(module, "PART", 4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, 10)
        pack(name, tmp_path / "packed", workers=1)
    assert not (tmp_path / "packed").exists()
    kept = sorted((tmp_path / "packed.partial" / "train").glob("*.npz"))
    assert len(kept) == 2
    written = {
        file: file.stat().st_mtime_ns
        for file in (tmp_path / "packed.partial" / "train").glob("*.bin")
    }
    after = packed(pack(name, tmp_path / "packed"))
    assert all(
        (tmp_path / "packed" / "train" / file.name).stat().st_mtime_ns == when
        for file, when in written.items()
    )
    assert all(
        torch.equal(a, b) for a, b in zip(pixels(expected.train), pixels(after.train), strict=True)
    )
    assert not (tmp_path / "packed.partial").exists()
    assert not list((tmp_path / "packed").rglob("*.npz"))


def test_parts_that_others_wrote_give_the_bytes_of_one_process(tmp_path, monkeypatch):
    root = folder(tmp_path / "photos")
    broken = root / "cat" / "4.png"
    broken.write_bytes(broken.read_bytes()[:-400])
    name = f"folder:{root}"
    monkeypatch.setattr(module, "PART", 4)
    with pytest.warns(BrokenImages):
        pack(name, tmp_path / "one", size=32)
    for split, numbers in (("test", range(1)), ("train", range(3, 6)), ("train", range(3))):
        module.pack_parts(name, tmp_path / "all", split, numbers, size=32, workers=2)
    with monkeypatch.context() as patch, pytest.warns(BrokenImages):
        interrupted(patch, 0)  # nothing is left to encode
        pack(name, tmp_path / "all", size=32)
    one, several = (
        {file.relative_to(home): file.read_bytes() for file in home.rglob("*.*")}
        for home in (tmp_path / "one", tmp_path / "all")
    )
    assert one == several and len(one) > 8
    with pytest.raises(ValueError, match="already exists"):
        module.pack_parts(name, tmp_path / "all", "train", range(1), size=32)


def pack_slowly(name, out):
    """Pack in parts of four images, each of which takes a while."""
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    module.PART, encode = 4, module.encode
    module.encode = lambda *arguments: (time.sleep(0.02), encode(*arguments))[1]
    pack(name, out, workers=1)


def test_a_killed_process_leaves_nothing_half_done(tmp_path):
    name = f"folder:{folder(tmp_path / 'photos', count=40)}"
    process = multiprocessing.get_context("fork").Process(
        target=pack_slowly, args=(name, tmp_path / "packed")
    )
    process.start()
    deadline = time.time() + 60
    unfinished = tmp_path / "packed.partial" / "train"
    while len(list(unfinished.glob("*.npz"))) < 3 and time.time() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "packed").exists()
    (unfinished / ".part-00009.bin.1.tmp").touch()  # a process killed while writing leaves this
    part = module.PART
    module.PART = 4
    try:
        after = packed(pack(name, tmp_path / "packed"))
    finally:
        module.PART = part
    before = load(name)
    assert all(
        torch.equal(a, b) for a, b in zip(pixels(before.train), pixels(after.train), strict=True)
    )
    assert verify(tmp_path / "packed") == [] and not list((tmp_path / "packed").rglob(".*"))


def test_a_run_killed_just_before_its_end_is_finished(tmp_path, monkeypatch):
    name = f"folder:{folder(tmp_path / 'photos')}"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        pack(name, tmp_path / "packed")
    assert len(packed(pack(name, tmp_path / "packed")).train) == 22


def test_other_work_is_not_mixed_in(tmp_path, monkeypatch):
    name = f"folder:{folder(tmp_path / 'photos')}"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, 3)
        pack(name, tmp_path / "packed", workers=1)
    sentence = "left by an earlier packing with different size; remove it to start again"
    with pytest.raises(ValueError, match=sentence):
        pack(name, tmp_path / "packed", size=20)


def test_a_changed_byte_is_found_by_verify_and_a_lost_one_at_once(tmp_path):
    home = pack(f"folder:{folder(tmp_path / 'photos')}", tmp_path / "packed", size=30)
    part = home / "train" / "part-00000.bin"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    assert [skip.reason for skip in verify(home)] == ["has a wrong checksum"]
    part.write_bytes(data[:-1])
    sentence = r"part-00000.bin is missing or not [\d,]+ bytes long; pack the data set again"
    with pytest.raises(ValueError, match=sentence):
        packed(home)
    part.write_bytes(data)
    labels = home / "train" / "labels.npy"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ValueError, match=r"labels.npy is missing or damaged"):
        packed(home)


def test_what_is_not_packed_or_already_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a packed data set"):
        load(f"packed:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="is not a packed data set"):
        verify(tmp_path)
    with pytest.raises(ValueError, match="already exists; pack into"):
        pack("digits", tmp_path)
    for settings in ({"quality": 90}, {"quality": 101, "size": 9}, {"size": 1}):
        with pytest.raises(ValueError, match=r"^quality must be|^size is the shorter side"):
            pack("digits", tmp_path / "x", **settings)
    home = pack("digits", tmp_path / "packed")
    with pytest.raises(ValueError, match="already exists; remove it, or pack"):
        pack("digits", home)
    meta = json.loads((home / "meta.json").read_text())
    (home / "meta.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(
        ValueError, match="is packed in format 99, but this version reads only format 1"
    ):
        packed(home)


def sums(source, indices):
    """Return the sum of the pixels of each image."""
    return [int(source.read(index).long().sum()) for index in indices]


def test_several_processes_read_one_pack(tmp_path):
    home = pack(f"folder:{folder(tmp_path / 'photos')}", tmp_path / "packed", size=30)
    source = packed(home).train
    expected = sums(source, range(len(source)))
    # a spawned worker gets the source without its memory maps, which would copy the whole part
    sent = pickle.dumps(source)
    assert len(sent) < 10_000 and sums(pickle.loads(sent), range(len(source))) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        parts = [(source, range(0, 11)), (source, range(11, len(source)))]
        first, second = pool.starmap(sums, parts)
    assert first + second == expected
