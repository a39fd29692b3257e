"""Subfolders are classes unless they look like dates, camera folders or numbered portions."""

import numpy as np
import pytest
from PIL import Image

from antipode.data.sources.catalog import load
from antipode.data.sources.folder import folder
from antipode.data.sources.label_folders import decide


def paths(*folders, images=5):
    return [f"{name}/{at}.jpg" for name in folders for at in range(images)]


@pytest.mark.parametrize(
    "names",
    [
        [f"2024-{month:02d}" for month in range(1, 13)],
        ["2019", "2021", "2022"],
        ["2024-01-31 Rome", "2024-02-29 Oslo"],
        ["20240131", "20240201"],
        ["31.01.2024", "01.02.2024"],
        ["January", "February", "March"],
        ["Jan 2024", "Feb 2024"],
        ["100CANON", "101CANON"],
        ["100APPLE", "101_PANA", "102MSDCF"],
        ["DCIM", "100NIKON"],
        ["IMG_0001", "IMG_0002"],
        ["batch3", "batch17"],
        ["part1", "part2", "part3"],
        ["New folder", "New folder (2)"],
        ["0", "1", "2", "3"],
        ["s1", "s2", "s3", "s5"],
        ["2024-01", "2024-02", "cats"],  # most of them
    ],
)
def test_dates_cameras_and_portions_are_not_classes(names):
    assert decide(paths(*names)).labels == "none"


@pytest.mark.parametrize(
    "names",
    [
        ["cats", "dogs"],
        ["n01440764", "n01443537", "n01484850"],  # synsets
        ["001.Black_footed_Albatross", "002.Laysan_Albatross"],
        ["A320", "A330", "A340", "A380"],  # numbers, but not in a row
        ["class_0", "class_1", "class_2"],  # a word for classes
        ["label1", "label2"],
        ["may", "rose", "lily"],  # one is also a month
        ["a", "b"],
    ],
)
def test_other_names_are_classes(names):
    decision = decide(paths(*names))
    assert decision.labels == "folders" and f"{len(names)} subfolders" in decision.reason


def test_the_bounds_are_two_to_a_thousand_classes_of_five_images_each():
    words = [
        f"{chr(97 + at // 676)}{chr(97 + at // 26 % 26)}{chr(97 + at % 26)}x" for at in range(1001)
    ]
    assert decide(paths(*words[:1000])).labels == "folders"
    assert "1,001 subfolders" in decide(paths(*words)).reason
    assert "1 subfolder," in decide(paths("cats")).reason
    assert decide(paths("cats", "dogs", images=5)).labels == "folders"
    assert "only 4 of the 5" in decide(paths("cats", "dogs", images=4)).reason
    assert "directly in the folder" in decide([*paths("cats", "dogs"), "x.jpg"]).reason
    assert "no subfolders" in decide(["a.jpg", "b.jpg"]).reason


def photos(root, names, images=5, side=8):
    noise = np.random.default_rng(0)
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        for at in range(images):
            pixels = noise.integers(0, 256, (side, side, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{at}.png")
    return root


def test_each_way_reads_the_same_images(tmp_path):
    root = photos(tmp_path / "x", ["2024-01", "2024-02"])
    forced, plain, auto = (folder(root, labels) for labels in ("folders", "none", "auto"))
    assert forced.classes == ["2024-01", "2024-02"] and forced.test is not None
    assert plain.classes is auto.classes is None and plain.test is auto.test is None
    assert len(plain.train) == len(auto.train) == 10 == len(forced.train) + len(forced.test)
    assert "dates" in auto.labelling
    photos(root, ["cats", "dogs", "birds"])
    again = folder(root, "auto")
    assert again.classes == ["2024-01", "2024-02", "birds", "cats", "dogs"]
    assert list(again.train.names) == list(folder(root).train.names)


def test_load_takes_the_folders_as_classes_unless_it_is_told_otherwise(tmp_path):
    root = photos(tmp_path / "x", ["2024-01", "2024-02"])
    assert load(f"folder:{root}").classes and load(f"folder:{root}", labels="none").classes is None
    with pytest.raises(ValueError, match="labels must be one of auto, folders, none, not 'no'"):
        load(f"folder:{root}", labels="no")


def test_splits_stay_splits_without_classes(tmp_path):
    photos(tmp_path / "train", ["2024-01", "2024-02"])
    photos(tmp_path / "val", ["2024-03"])  # not a folder of train: an error for classes only
    splits = folder(tmp_path, "auto")
    assert splits.classes is None and len(splits.train) == 10 and len(splits.test) == 5
    assert splits.test.labels is None
    with pytest.raises(ValueError, match="not in train"):
        folder(tmp_path, "folders")


def test_a_tenth_of_a_thousand_images_without_labels_is_held_out(tmp_path):
    image = tmp_path / "one.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(image)
    content = image.read_bytes()
    image.unlink()
    for at in range(999):
        (tmp_path / f"{at}.png").write_bytes(content)
    assert folder(tmp_path, "none").test is None
    (tmp_path / "999.png").write_bytes(content)
    splits = folder(tmp_path, "auto")
    assert len(splits.test) == 100 and len(splits.pretrain) == 900
    assert not {*splits.test.names} & {*splits.train.names}
    # the choice depends on the names, so it stays when images are added
    for at in range(1000, 1100):
        (tmp_path / f"{at}.png").write_bytes(content)
    assert len({*folder(tmp_path, "auto").test.names} & {*splits.test.names}) > 80
    assert folder(tmp_path, "folders").test is None  # as in earlier versions
