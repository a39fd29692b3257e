"""Tests of folders of images: splits, classes, file names and broken files."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from antipode.data.loader import Loader
from antipode.data.sources.catalog import load
from antipode.data.sources.folder import held_out, tree
from antipode.data.sources.image_names import Names, Numbered
from antipode.data.sources.source import BrokenImages, Memory
from antipode.data.sources.walk import walk
from antipode.data.views.views import views


def photograph(path, size=(40, 30), seed=0, **options):
    """Write a random image and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


def classes(root, names=("cat", "dog"), count=10):
    """Write `count` images into each class folder and return the root."""
    for number, name in enumerate(names):
        for index in range(count):
            photograph(root / name / f"{index}.png", seed=100 * number + index)
    return root


def opened(path):
    """Load a folder; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load(f"folder:{path}")


def test_class_folders_read_as_torchvisions_image_folder(tmp_path):
    source = tree(classes(tmp_path))
    expected = ImageFolder(str(tmp_path))
    assert source.classes == expected.classes and source.labels.tolist() == expected.targets
    for index, (image, _) in enumerate(expected):
        assert torch.equal(source.read(index), torch.from_numpy(np.array(image)).permute(2, 0, 1))


def test_a_tenth_of_each_class_is_held_out_and_stays_so_when_files_come(tmp_path):
    splits = opened(classes(tmp_path, count=20))
    assert (len(splits.train), len(splits.test)) == (36, 4)
    assert splits.test.labels.tolist() == [0, 0, 1, 1]
    assert not set(splits.train.names) & set(splits.test.names)
    before = set(splits.test.names)
    photograph(tmp_path / "cat" / "new.png")
    assert len(before & set(opened(tmp_path).test.names)) >= 3


def test_a_class_of_two_images_or_more_has_a_test_image_and_one_of_a_single_image_none():
    counts = [1, 2, 9, 10, 19, 20, 25, 3]
    labels = torch.repeat_interleave(torch.tensor([*range(7), -1]), torch.tensor(counts))
    source = Memory(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), labels)
    train, test = held_out(source)
    assert test.labels.bincount(minlength=7).tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert (test.labels >= 0).all() and len(train) + len(test) == len(source)


def test_train_and_val_folders_are_the_splits(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "val", names=("dog",), count=3)
    splits = opened(tmp_path)
    assert (len(splits.train), len(splits.test)) == (20, 3)
    assert splits.test.labels.tolist() == [1, 1, 1] and splits.test.classes == ["cat", "dog"]


def test_test_images_outside_the_class_folders_are_listed(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "val", count=2)
    photograph(tmp_path / "val" / "stray.png")
    sentence = r"1 of 5 files of .* were skipped \(stray.png is not in a class folder\)"
    with pytest.warns(BrokenImages, match=sentence):
        assert len(load(f"folder:{tmp_path}").test) == 4


def test_train_alone_is_a_split_but_among_others_a_class(tmp_path):
    classes(tmp_path / "alone" / "train")
    assert opened(tmp_path / "alone").classes == ["cat", "dog"]
    vehicles = classes(tmp_path / "vehicles", names=("car", "train"))
    assert opened(vehicles).classes == ["car", "train"]


@pytest.mark.parametrize(
    ("first", "second"), [("Train", "Val"), ("TRAIN", "Test"), ("training", "validation")]
)
def test_splits_may_be_written_in_other_ways(first, second, tmp_path):
    classes(tmp_path / first)
    classes(tmp_path / second, count=3)
    splits = opened(tmp_path)
    assert splits.train.classes == ["cat", "dog"]
    assert (len(splits.train), len(splits.test)) == (20, 6)


def test_folders_beside_the_splits_are_said_not_to_be_read(tmp_path):
    for name in ("train", "val", "test", "extra"):
        classes(tmp_path / name, count=2)
    sentence = "contains extra, test besides train and val; these folders are not read"
    with pytest.warns(UserWarning, match=sentence):
        assert len(load(f"folder:{tmp_path}").test) == 4


def test_folders_that_look_like_splits_and_are_none_are_said_to_be_classes(tmp_path):
    classes(tmp_path, names=("train", "unlabeled"))
    with pytest.warns(UserWarning, match="train, unlabeled of .* are used as classes"):
        assert load(f"folder:{tmp_path}").classes == ["train", "unlabeled"]


def test_a_class_only_the_test_folder_has_is_refused(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "test", names=("dog", "eel"))
    with pytest.raises(ValueError, match="has 1 classes that are not in train, the first: eel"):
        opened(tmp_path)


def test_a_flat_tree_of_any_depth_has_no_labels(tmp_path):
    photograph(tmp_path / "a.png")
    photograph(tmp_path / "b.jpg")
    splits = opened(tmp_path)
    assert splits.train.labels is None and splits.test is None and len(splits.pretrain) == 2
    photograph(tmp_path / "2024" / "may" / "c.png")
    sentence = "2 images are directly in .*, next to 1 folder, so all images are used as unlabelled"
    with pytest.warns(UserWarning, match=sentence):
        assert len(load(f"folder:{tmp_path}").pretrain) == 3


def test_a_misspelt_folder_is_answered_with_the_one_beside_it(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "phots.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"no folder .*phtos, did you mean .*/photos\?"):
        load(f"folder:{tmp_path}/phtos")
    for name in ("entirely-different", "absent/phtos"):
        with pytest.raises(FileNotFoundError) as caught:
            load(f"folder:{tmp_path}/{name}")
        assert "did you mean" not in str(caught.value)


def test_a_file_in_the_place_of_a_folder_is_called_a_file(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(FileNotFoundError, match="notes is a file, and folder: takes the path of"):
        load(tmp_path / "notes")


def test_one_class_only_is_no_label(tmp_path):
    sentence = "has only one class, cat, so its images are used as unlabelled"
    with pytest.warns(UserWarning, match=sentence):
        splits = load(f"folder:{classes(tmp_path, names=('cat',))}")
    assert splits.train.labels is None and len(splits.train) == 10


def test_images_deep_inside_class_folders_belong_to_the_first(tmp_path):
    photograph(tmp_path / "cat" / "x" / "y" / "1.png")
    photograph(tmp_path / "dog" / "1.png")
    assert tree(tmp_path).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "höhle mit öl.png",
        "a b  c.png",
        "日本語.png",
        "emoji-🐈.png",
        "quote'\".png",
        "new\nline.png",
    ],
)
def test_any_name_is_a_name(tmp_path, name):
    classes(tmp_path, names=("größe 1", "größe 2"), count=2)
    photograph(tmp_path / "größe 1" / name)
    source = tree(tmp_path)
    assert f"größe 1/{name}" in list(source.names) and len(source) == 5
    assert source.read(list(source.names).index(f"größe 1/{name}")).shape == (3, 30, 40)


def test_a_name_that_is_not_unicode_is_read_and_listed(tmp_path):
    photograph(tmp_path / "a" / "1.png")
    photograph(tmp_path / "b" / "1.png")
    raw = os.fsencode(tmp_path / "a") + b"/\xff\xfe"
    Path(os.fsdecode(raw + b".png")).write_bytes((tmp_path / "a" / "1.png").read_bytes())
    Path(os.fsdecode(raw + b"-broken.png")).write_bytes(b"no image")
    with pytest.warns(BrokenImages, match="udcff"):
        source = tree(tmp_path)
    assert len(source) == 3 and all(source.read(index).shape == (3, 30, 40) for index in range(3))


def test_the_same_name_in_two_classes_is_two_images(tmp_path):
    photograph(tmp_path / "a" / "1.png", seed=1)
    photograph(tmp_path / "b" / "1.png", seed=2)
    photograph(tmp_path / "b" / "1.PNG", seed=3)
    source = tree(tmp_path)
    assert len(source) == 3 and not torch.equal(source.read(0), source.read(1))


def broken(root):
    """Write a folder with one file for each kind of fault.

    Returns {name: part of the reason why it is skipped}.
    """
    classes(root)
    cat = root / "cat"
    (cat / "empty.jpg").touch()
    (cat / "text.png").write_text("I am no image, whatever my name says")
    (cat / "video.mp4").write_bytes(bytes(range(256)) * 40)
    (cat / "lost.png").symlink_to(root / "nowhere.png")
    (cat / "self.png").symlink_to(cat / "self.png")
    os.mkfifo(cat / "pipe.png")
    photograph(cat / "dot.png", (1, 1))
    photograph(cat / "strip.png", (20_000, 20))
    Image.new("1", (20_000, 10_000)).save(cat / "bomb.png")
    (cat / "header.png").write_bytes((cat / "0.png").read_bytes()[:20])
    np.save(cat / "many.npy", np.zeros((30, 40, 7), np.uint8))
    return {
        "empty.jpg": "is empty",
        "text.png": "is not an image",
        "video.mp4": "is not an image",
        "lost.png": "is a broken link",
        "self.png": "cannot be opened|is a broken link",
        "pipe.png": "is not a regular file",
        "dot.png": "is 1 x 1 px",
        "strip.png": "20000 x 20 px",
        "bomb.png": "pixels",
        "header.png": "is not an image",
        "many.npy": "has 7 channels, but 3 are expected",
    }


def test_what_is_broken_is_left_out_counted_and_listed(tmp_path):
    reasons = broken(tmp_path)
    with pytest.warns(BrokenImages, match=f"{len(reasons)} of {20 + len(reasons)} files"):
        source = tree(tmp_path)
    assert len(source) == 20
    skipped = {skip.name.removeprefix("cat/"): skip.reason for skip in source.skipped}
    assert skipped.keys() == reasons.keys()
    assert all(re.search(reasons[name], skipped[name]) for name in reasons), skipped


def test_a_wrong_extension_is_read_by_its_content(tmp_path):
    classes(tmp_path)
    photograph(tmp_path / "cat" / "x.png").rename(tmp_path / "cat" / "x.jpg")
    photograph(tmp_path / "cat" / "y.png").rename(tmp_path / "cat" / "notes.txt")
    assert len(tree(tmp_path)) == 22


def test_what_breaks_only_when_decoded_is_replaced_in_the_middle_of_training(tmp_path):
    classes(tmp_path)
    whole = photograph(tmp_path / "cat" / "5.png").read_bytes()
    (tmp_path / "cat" / "5.png").write_bytes(whole[: len(whole) // 2])
    jpeg = photograph(tmp_path / "dog" / "truncated.jpg", (300, 200)).read_bytes()
    (tmp_path / "dog" / "truncated.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    source = tree(tmp_path)
    (tmp_path / "dog" / "3.png").unlink()  # a file may also disappear during training
    assert len(source) == 21 and not source.skipped
    with pytest.warns(BrokenImages, match="is replaced by the next"):
        steps = list(
            Loader(source, views("simclr", size=16), batch=7, epochs=2, seed=0, workers=2).steps()
        )
    assert len(steps) == 6
    assert set(source.failed) == {"cat/5.png", "dog/truncated.jpg", "dog/3.png"}
    assert "truncated" in source.failed["dog/truncated.jpg"]


def test_unreadable_files_and_folders_are_left_out(tmp_path):
    """This runs in a process without privileges, because root may read every file."""
    classes(tmp_path)
    (tmp_path / "cat" / "1.png").chmod(0)
    (tmp_path / "dog" / "secret").mkdir()
    (tmp_path / "dog" / "secret").chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    code = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path; from antipode.data.sources.folder import tree\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "print(sorted((s.name, s.reason) for s in tree(Path(sys.argv[1])).skipped))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    (tmp_path / "dog" / "secret").chmod(0o755)
    expected = [
        (name, "cannot be opened (Permission denied)") for name in ("cat/1.png", "dog/secret")
    ]
    assert done.stdout.strip() == str(expected), done.stderr


def test_a_folder_that_links_to_itself_is_walked_once(tmp_path):
    classes(tmp_path)
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    assert len(walk(tmp_path)[0]) == 20


def test_hidden_files_are_no_images(tmp_path):
    classes(tmp_path)
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / "cat" / "._1.png").write_bytes(b"x")
    assert len(opened(tmp_path).train) == 18


@pytest.mark.parametrize("content", ["missing", "empty", "only broken"])
def test_a_folder_without_images_is_refused(tmp_path, content):
    if content == "only broken":
        (tmp_path / "a.png").write_bytes(b"x")
    path = tmp_path / "no" if content == "missing" else tmp_path
    with (
        warnings.catch_warnings(),
        pytest.raises((ValueError, FileNotFoundError), match=r"no folder|has no image"),
    ):
        warnings.simplefilter("ignore")
        load(f"folder:{path}")


def test_sixteen_bits_are_scaled_with_a_warning(tmp_path):
    classes(tmp_path)
    Image.fromarray(np.full((30, 40), 0x1234, np.uint16)).save(tmp_path / "cat" / "deep.png")
    with pytest.warns(UserWarning, match=r"1 image in .* has more than 8 bits per channel"):
        source = tree(tmp_path)
    assert source.read(list(source.names).index("cat/deep.png")).unique().tolist() == [0x12]


@pytest.mark.parametrize("kind", ["npy", "tif"])
def test_more_channels_come_from_arrays(tmp_path, kind):
    for name in ("wheat", "maize"):
        (tmp_path / name).mkdir()
        for index in range(5):
            array = np.random.default_rng(index).integers(0, 256, (30, 40, 6), dtype=np.uint8)
            if kind == "npy":
                np.save(tmp_path / name / f"{index}.npy", array)
            else:
                pytest.importorskip("tifffile").imwrite(
                    tmp_path / name / f"{index}.tif", array, photometric="minisblack"
                )
    splits = opened(tmp_path)
    assert splits.channels == 6 and len(splits.mean) == 6
    assert splits.train.take(torch.tensor([0]))[0].shape == (1, 6, 30, 30)


@pytest.mark.parametrize(("bands", "channels"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (4, [0, 1, 2])])
def test_arrays_with_alpha_or_grey_are_read_among_those_of_three_channels(
    tmp_path, bands, channels
):
    """Alpha is the last of 2 or 4 bands and is dropped; grey is repeated."""
    for index in range(5):
        other = bands if index == 2 else 3
        array = np.random.default_rng(index).integers(0, 256, (30, 40, other), dtype=np.uint8)
        np.save(tmp_path / f"{index}.npy", array)
    source = tree(tmp_path)
    assert len(source) == 5 and source.channels == 3 and not source.skipped
    expected = np.load(tmp_path / "2.npy")[:, :, channels]
    image = source.read(list(source.names).index("2.npy"))
    assert torch.equal(image, torch.from_numpy(expected).permute(2, 0, 1))


def test_arrays_of_five_bands_among_those_of_three_channels_are_listed(tmp_path):
    for index in range(5):
        np.save(tmp_path / f"{index}.npy", np.zeros((30, 40, 5 if index == 2 else 3), np.uint8))
    with pytest.warns(BrokenImages, match=r"2.npy has 5 channels, but 3 are expected"):
        source = tree(tmp_path)
    assert len(source) == 4 and [skip.name for skip in source.skipped] == ["2.npy"]


def test_the_size_is_that_of_small_images(tmp_path):
    assert opened(classes(tmp_path)).size == 30


@pytest.mark.parametrize("names", [[], ["a"], ["a", "", "b/é", "name\udce9"]])
def test_names_are_a_sequence_of_texts(names):
    made = Names(names)
    assert list(made) == names and len(made) == len(names)
    assert [made[at] for at in range(len(names))] == names
    assert [made[at - len(names)] for at in range(len(names))] == names
    assert names == [] or made[np.int64(0)] == names[0]
    for wrong in (len(names), -len(names) - 1):
        with pytest.raises(IndexError, match=f"out of range for {len(names)} images"):
            made[wrong]
    assert list(Numbered(2)) == ["image 0", "image 1"]


def test_one_long_name_does_not_widen_the_others():
    made = Names([*map(str, range(1000)), "x" * 4000])
    assert len(made.joined) < 7000 and made[1000] == "x" * 4000


def test_slow_disks_are_read_by_threads_with_the_same_result(tmp_path, monkeypatch):
    broken(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = tree(tmp_path)
        monkeypatch.setattr("antipode.data.sources.walk.SLOW", 0)
        monkeypatch.setattr("antipode.data.sources.walk.BLOCK", 3)
        found = tree(tmp_path)
    assert list(found.names) == list(expected.names) and found.skipped == expected.skipped
    assert found.read.starts.tolist() == expected.read.starts.tolist()


def test_a_jpeg_with_a_large_thumbnail_is_opened(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "x" * 20_000
    photograph(tmp_path / "a.jpg", exif=exif)
    assert len(tree(tmp_path)) == 1


def test_files_that_are_longer_than_any_image_are_listed(tmp_path, monkeypatch):
    classes(tmp_path)
    (tmp_path / "cat" / "long.png").write_bytes(bytes(9000))
    monkeypatch.setattr("antipode.data.sources.headers.BYTES", 8999)
    with pytest.warns(BrokenImages, match=r"cat/long.png has 9,000 bytes, more than the limit"):
        source = tree(tmp_path)
    assert len(source) == 20
    monkeypatch.setattr("antipode.data.sources.headers.BYTES", 10)
    with pytest.raises(ValueError, match="more than the limit of 10"):
        source.read(0)
