"""Tests of PASCAL VOC and COCO: labels, boxes and masks."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from antipode.data.sources.annotated import VOC, Thing, detection, mask, presence
from antipode.data.sources.catalog import load


def photograph(path, size=(20, 16)):
    """Write a random JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG")


def thing(name, box, difficult):
    """Return the XML of one object in VOC's format."""
    corners = "".join(
        f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return (
        f"<object><name>{name}</name><difficult>{difficult}</difficult>"
        f"<bndbox>{corners}</bndbox></object>"
    )


def voc(root, year, sets):
    """Write a tiny VOC of one year; `sets` has the image names of each split."""
    home = root / "VOCdevkit" / f"VOC{year}"
    for part, keys in sets.items():
        (home / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
        (home / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(keys) + "\n")
        for key in keys:
            photograph(home / "JPEGImages" / f"{key}.jpg")
            things = (
                thing("dog", (1, 1, 10, 8), 0)
                + thing("dog", (2, 2, 4, 4), 1)
                + thing("sofa", (3, 3, 9, 9), 1)
            )
            (home / "Annotations").mkdir(exist_ok=True)
            (home / "Annotations" / f"{key}.xml").write_text(f"<annotation>{things}</annotation>")


def test_voc_has_several_classes_and_spares_the_difficult(tmp_path):
    voc(tmp_path, 2007, {"trainval": ["000001", "000002"], "test": ["000003"]})
    voc(tmp_path, 2012, {"trainval": ["2008_000001"]})
    splits = load("voc07", root=tmp_path)
    assert splits.train.labels.shape == (2, 20) and len(splits.test) == 1
    row = splits.train.labels[0]
    assert row[VOC.index("dog")] == 1 and row[VOC.index("sofa")] == -1 and row.abs().sum() == 2
    both = load("voc07+12", root=tmp_path)
    assert (len(both.train), len(both.test)) == (3, 1) and both.train.read(2).shape == (3, 16, 20)


def test_voc_boxes_count_from_zero(tmp_path):
    voc(tmp_path, 2007, {"trainval": ["000001"], "test": ["000003"]})
    image, target = detection("voc07", "train", tmp_path)[0]
    assert image.shape == (3, 16, 20)
    assert target["boxes"][0].tolist() == [0, 0, 10, 8]
    assert target["labels"].tolist() == [VOC.index("dog") + 1] * 2 + [VOC.index("sofa") + 1]
    assert target["iscrowd"].tolist() == [0, 1, 1] and "masks" not in target


def coco(root):
    """Write a tiny COCO with a polygon and a crowd."""
    square = [[2, 3, 8, 3, 8, 9, 2, 9]]
    runs = {"size": [16, 20], "counts": [16 * 4, 16, 16 * 15]}
    content = {
        "images": [{"id": 30, "file_name": "30.jpg"}, {"id": 9, "file_name": "9.jpg"}],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}],
        "annotations": [
            {
                "image_id": 30,
                "category_id": 90,
                "bbox": [2, 3, 6, 6],
                "segmentation": square,
                "iscrowd": 0,
            },
            {
                "image_id": 30,
                "category_id": 1,
                "bbox": [4, 0, 1, 16],
                "segmentation": runs,
                "iscrowd": 1,
            },
        ],
    }
    for part in ("train", "val"):
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))
        for key in (30, 9):
            photograph(root / f"{part}2017" / f"{key}.jpg")


def test_coco_labels_boxes_and_masks(tmp_path):
    coco(tmp_path / "coco")
    splits = load("coco", root=tmp_path)
    assert splits.classes == ["person", "toothbrush"]
    assert splits.train.labels.tolist() == [[-1, 1], [0, 0]]
    objects = detection("coco", "test", tmp_path)
    assert objects.categories == [1, 90] and objects.ids == [30, 9]
    _, target = objects[0]
    assert target["boxes"].tolist() == [[2, 3, 8, 9], [4, 0, 5, 16]]
    assert target["labels"].tolist() == [2, 1]
    square, column = target["masks"]
    assert square[3:9, 2:8].all() and square.sum() <= 49
    assert column.nonzero()[:, 1].unique().tolist() == [4] and column.sum() == 16
    _, empty = objects[1]
    assert empty["boxes"].shape == (0, 4) and empty["masks"].shape == (0, 16, 20)


def test_presence_of_a_class_wins_over_its_spared_objects():
    box = (0, 0, 1, 1)
    rows = presence(
        [[Thing(1, box), Thing(1, box, None, True)], [Thing(1, box, None, True), Thing(1, box)]], 2
    )
    assert rows.tolist() == [[0, 1], [0, 1]]


def test_masks_that_cannot_be_read_and_unknown_sets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="compressed format"):
        mask({"counts": "abc"}, 4, 4)
    sentence = r"no object annotations for cifar10 train; choose one of voc07, voc07.12, coco"
    with pytest.raises(ValueError, match=sentence):
        detection("cifar10", "train", tmp_path)
    assert torch.equal(mask([[0, 0, 1, 1]], 4, 4), torch.zeros(4, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("outline", "sentence"),
    [
        ({"counts": [4, 4, 9]}, "are not those of 4 x 4 pixels"),
        ({"counts": [4, -4, 16]}, "are not those of 4 x 4 pixels"),
        ({"counts": [10**18, 1]}, "are not those of 4 x 4 pixels"),
        ({"counts": [16.0]}, "are not those of 4 x 4 pixels"),
        ({}, "are not those of 4 x 4 pixels"),
        ("x", "neither polygons nor run lengths"),
        ([1, 2, 3], "is not a list of x, y"),
        ([[1, 2, 3]], "is not a list of x, y"),
        ([[0, 0, 1, 1, 2, "a"]], "'a' is not a coordinate"),
        ([[0, 0, 1, 1, 2, 1e300]], "1e.300 is not a coordinate"),
        ([[0, 0, 1, 1, 2, None]], "None is not a coordinate"),
    ],
)
def test_outlines_that_cannot_be_are_refused(outline, sentence):
    with pytest.raises(ValueError, match=sentence):
        mask(outline, 4, 4)


def test_an_outline_that_cannot_be_is_named_with_its_image(tmp_path):
    coco(tmp_path / "coco")
    file = tmp_path / "coco" / "annotations" / "instances_val2017.json"
    content = json.loads(file.read_text())
    content["annotations"][1]["segmentation"]["counts"] = [5]
    file.write_text(json.dumps(content))
    objects = detection("coco", "test", tmp_path)
    with pytest.raises(ValueError, match=r"an object in 30.jpg cannot be used: its run lengths"):
        objects[0]
