"""Tests of the cached index of a folder: the same images, quickly, unless something changed."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from antipode.data.sources import index as module
from antipode.data.sources.arrays import member
from antipode.data.sources.folder import folder, tree
from antipode.data.sources.index import cache_folder, index
from antipode.data.sources.stamp import stamp
from tests.data.test_folder import classes, photograph


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder; every folder is large enough for an index, and all files are compared.

    The folders were last changed a while ago, unless a test says otherwise.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ANTIPODE_INDEX", raising=False)
    monkeypatch.setattr(module, "LEAST", 1)
    return tmp_path / "cache" / "antipode" / "folders"


def aged(root):
    """Set the times of all folders back by a minute, and return the root."""
    for place, _, _ in os.walk(root):
        status = Path(place).stat()
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns - 60 * 10**9))
    return root


def made(tmp_path):
    """Return a folder of images with a few files that cannot be used."""
    root = classes(tmp_path / "images", names=("cat", "cat-like", "dog"), count=12)
    (root / "dog" / "broken.png").write_bytes(b"no image")
    (root / "cat" / "empty.png").touch()
    (root / "dog" / "link.png").symlink_to(tmp_path / "elsewhere.png")
    np.save(root / "dog" / "deep.npy", np.zeros((8, 8, 5), np.uint8))
    return aged(root)


def opened(root):
    """Return the splits of a folder, without its warnings about broken files."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*were skipped")
        return folder(root)


def unchanged(root, monkeypatch):
    """Return the splits of a folder; listing it or reading all headers is an error."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "walk", None)
        patch.setattr(module, "read_headers", None)
        return opened(root)


def test_an_index_gives_the_same_images(tmp_path, monkeypatch, cache):
    root = made(tmp_path)
    first = opened(root)
    assert len(list(cache.iterdir())) == 1
    second = unchanged(root, monkeypatch)
    for one, other in ((first.train, second.train), (first.test, second.test)):
        assert list(one.names) == list(other.names) and one.classes == other.classes
        assert torch.equal(one.labels, other.labels) and one.skipped == other.skipped
        assert (one.channels, one.size) == (other.channels, other.size)
        assert stamp(one) == stamp(other)
        assert torch.equal(one.read(0), other.read(0))
    assert len(first.train.skipped) == 4


def test_a_published_data_set_has_an_index_of_its_own(tmp_path, cache):
    root = made(tmp_path)
    opened(root)
    first, second = (tree(root, trusted=True) for _ in range(2))
    assert len(list(cache.iterdir())) == 2
    assert list(first.names) == list(second.names) and len(first.names) == 37
    assert first.read.starts is None and second.read.starts is None


def add(root):
    photograph(root / "cat" / "new.png", seed=77)


def remove(root):
    (root / "dog" / "3.png").unlink()


def deeper(root):
    photograph(root / "dog" / "more" / "new.png", seed=78)


def overwrite(root):
    photograph(root / "cat" / "4.png", size=(50, 40), seed=79)  # the folder does not change


def swap(root):
    """Replace a file, with the time of its folder restored."""
    place = root / "cat"
    status = place.stat()
    (place / "5.png").unlink()
    (place / "6.png").unlink()
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def repair(root):
    photograph(root / "dog" / "broken.png", seed=80)  # in place


def fill(root):
    photograph(root / "cat" / "empty.png", seed=81)


def mount(root):
    """Bring back the file to which a link points, in another folder."""
    photograph(root.parent / "elsewhere.png", seed=82)


@pytest.mark.parametrize("change", [add, remove, deeper, overwrite, swap, repair, fill, mount])
def test_a_change_is_noticed(tmp_path, change):
    root = made(tmp_path)
    opened(root)
    change(root)
    aged(root) if change is not swap else None
    with_index = opened(root)
    os.environ["ANTIPODE_INDEX"] = "off"
    try:
        plain = opened(root)
    finally:
        del os.environ["ANTIPODE_INDEX"]
    assert list(with_index.train.names) == list(plain.train.names)
    assert stamp(with_index.train) == stamp(plain.train)


def test_the_variable_makes_an_index_again_or_uses_none(tmp_path, monkeypatch, cache):
    root = made(tmp_path)
    monkeypatch.setenv("ANTIPODE_INDEX", "off")
    opened(root)
    assert not cache.exists()
    monkeypatch.delenv("ANTIPODE_INDEX")
    opened(root)
    (file,) = cache.iterdir()
    before = file.stat().st_ino
    unchanged(root, monkeypatch)
    assert file.stat().st_ino == before
    monkeypatch.setenv("ANTIPODE_INDEX", "new")
    opened(root)
    assert file.stat().st_ino != before
    monkeypatch.setenv("ANTIPODE_INDEX", "maybe")
    with pytest.raises(ValueError, match="ANTIPODE_INDEX must be new or off if it is set, not"):
        opened(root)


def test_a_folder_that_has_just_changed_and_a_small_one_have_no_index(tmp_path, monkeypatch, cache):
    root = made(tmp_path)
    photograph(root / "cat" / "new.png")
    opened(root)
    assert not cache.exists()
    monkeypatch.setattr(module, "LEAST", 100)
    opened(aged(root))
    assert not cache.exists()


def test_an_index_never_lies_among_the_images(tmp_path, monkeypatch):
    root = made(tmp_path)
    before = sorted(root.rglob("*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    opened(root)
    assert sorted(root.rglob("*")) == before
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard ignores relative paths
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "antipode"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    root = made(tmp_path)
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(UserWarning, match=r"cannot write the index of .*listed again next time"):
        assert len(opened(root).train) > 20


class Exploit:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def changed(file, **arrays):
    """Write an index again with some arrays changed."""
    with np.load(file) as content:
        old = dict(content)
    np.savez(file, **old | arrays)


def text(value):
    return np.frombuffer(value, np.uint8)


DAMAGE = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:3000]),
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("no index"),
    "flipped": lambda file: file.write_bytes(file.read_bytes()[::-1]),
    "pickle": lambda file: file.write_bytes(pickle.dumps(Exploit(file.parent / "done"))),
    "objects": lambda file: changed(file, sizes=np.array([Exploit(file.parent / "done")] * 39)),
    "ends": lambda file: changed(file, ends=np.arange(40, dtype=np.int64)),
    "negative ends": lambda file: changed(file, ends=-member(file, "ends")),
    "kinds": lambda file: changed(file, sizes=np.zeros(39, np.float64)),
    "lengths": lambda file: changed(file, starts=np.zeros(3, np.uint32)),
    "above": lambda file: changed(file, names=_renamed(file, b"../../")),
    "absolute": lambda file: changed(file, names=_renamed(file, b"/etc/a")),
    "folders": lambda file: changed(file, folders=text(b"\0../..\0cat-like\0dog\0")),
    "another folder": lambda file: changed(file, root=text(b"/elsewhere\0")),
}


def _renamed(file, start):
    names = bytes(member(file, "names"))
    return text(start + names[len(start) :])


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_hostile_index_is_ignored_with_one_sentence(tmp_path, damage, cache):
    root = made(tmp_path)
    expected = list(opened(root).train.names)
    (file,) = cache.iterdir()
    DAMAGE[damage](file)
    with pytest.warns(UserWarning, match=r"the index .* is damaged .* made again") as caught:
        assert list(opened(root).train.names) == expected
    assert sum("is damaged" in str(one.message) for one in caught) == 1
    assert not (cache / "done").exists()
    with warnings.catch_warnings():  # it has been made again
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*were skipped")
        opened(root)


def test_an_index_of_another_version_is_made_again_silently(tmp_path, cache):
    root = made(tmp_path)
    opened(root)
    (file,) = cache.iterdir()
    changed(file, form=np.array([99]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*were skipped")
        opened(root)
    assert member(file, "form").tolist() == [module.FORM]


def test_odd_names_survive(tmp_path, monkeypatch):
    root = tmp_path / "images"
    for name in ("new\nline.png", "ümlaut.png", "a b.png"):
        photograph(root / "x" / name)
    (root / "x" / os.fsdecode(b"\xff\xfe.png")).write_bytes((root / "x" / "a b.png").read_bytes())
    first = index(aged(root), opened=True)
    monkeypatch.setattr(module, "walk", None)
    second = index(root, opened=True)
    assert list(first.names) == list(second.names) and len(first.names) == 4
    assert first.folders == second.folders
