"""Drawn scenes: COCO's layout, boxes and masks that match the pixels, reproducible images."""

import json
import os
import time
from multiprocessing import get_context

import pytest
import torch
from PIL import Image

from antipode import rng
from antipode.data.sources.annotated import detection, mask
from antipode.data.sources.shapes import KINDS
from antipode.reproduction import scenes
from antipode.runs.run import opened


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return scenes.draw(tmp_path_factory.mktemp("scenes"), 12, 5)


def test_scenes_are_read_as_coco(home):
    train, test = (detection("coco", part, home) for part in ("train", "test"))
    assert (len(train), len(test)) == (12, 5) and train.classes == list(KINDS)
    image, target = train[0]
    assert image.shape == (3, scenes.SIDE, scenes.SIDE) and 1 <= len(target["boxes"]) <= 3
    assert target["masks"].shape == (len(target["boxes"]), scenes.SIDE, scenes.SIDE)


def test_a_box_is_the_smallest_that_holds_its_mask_and_area_counts_its_pixels(home):
    notes = json.loads((home / "coco" / "instances_train.json").read_text())
    assert [note["id"] for note in notes["annotations"]] == list(
        range(1, len(notes["annotations"]) + 1)
    )
    for note in notes["annotations"]:
        inside = mask(note["segmentation"], scenes.SIDE, scenes.SIDE)
        rows, columns = inside.nonzero().unbind(1)
        x, y, width, height = note["bbox"]
        assert (x, y) == (columns.min(), rows.min())
        assert (x + width - 1, y + height - 1) == (columns.max(), rows.max())
        assert note["area"] == inside.sum() > 20


def test_an_objects_pixels_are_of_one_colour_that_is_not_the_grounds():
    for number in range(20):
        picture, things = scenes.scene(rng.key(0, "test", number))
        whole = torch.zeros(scenes.SIDE, scenes.SIDE, dtype=torch.bool)
        for thing in things:
            inside = mask(thing["segmentation"], scenes.SIDE, scenes.SIDE).bool()
            assert not (inside & whole).any(), "each object is in a different quarter"
            whole |= inside
            colours = picture[:, inside]
            assert (colours == colours[:, :1]).all()
        ground = picture[:, ~whole].float().mean(1)
        for thing in things:
            inside = mask(thing["segmentation"], scenes.SIDE, scenes.SIDE).bool()
            assert (picture[:, inside].float().mean(1) - ground).abs().max() > 255 * 0.2


def test_scenes_are_the_same_every_time_and_train_and_test_differ(home, tmp_path):
    again = scenes.draw(tmp_path, 12, 5)
    for name in ("instances_train.json", "instances_val.json"):
        assert (again / "coco" / name).read_text() == (home / "coco" / name).read_text()
    files = [
        Image.open(home / "coco" / "images" / f"{part}-00000.png") for part in ("train", "val")
    ]
    assert files[0].tobytes() != files[1].tobytes()
    before = (home / "coco" / "instances_val.json").stat().st_mtime_ns
    scenes.draw(home.parent, 12, 5)
    assert (home / "coco" / "instances_val.json").stat().st_mtime_ns == before, (
        "existing scenes are kept"
    )


def test_two_processes_draw_the_scenes_once(tmp_path, monkeypatch):
    """Otherwise one of them may read an image while the other writes it again."""

    def slowly(folder, part, count):
        time.sleep(0.3)
        (folder.parent / f"{part}-{os.getpid()}").touch()
        return {}

    monkeypatch.setattr(scenes, "_draw_split", slowly)
    (tmp_path / "scenes-12-5" / "coco").mkdir(parents=True)
    processes = [
        get_context("fork").Process(target=scenes.draw, args=(tmp_path, 12, 5)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    drawn = [path.name.partition("-")[0] for path in (tmp_path / "scenes-12-5/coco").glob("*-*")]
    assert sorted(drawn) == ["train", "val"]


def test_a_mask_that_starts_inside_is_written_as_coco_does():
    inside = torch.zeros(4, 5, dtype=torch.bool)
    inside[0:2, 0] = True
    note = scenes._annotation(inside, 3)
    assert (
        note["segmentation"]["counts"] == [0, 2, 18]
        and note["bbox"] == [0, 0, 1, 2]
        and note["area"] == 2
    )
    assert torch.equal(mask(note["segmentation"], 4, 5).bool(), inside)


@pytest.mark.slow
def test_a_slim_detector_is_judged_and_filed(tmp_path, monkeypatch):
    settings, *_ = scenes.SLIM["segment-smoke"]
    monkeypatch.setitem(scenes.SLIM, "segment-smoke", (settings, 8, 4))
    run = opened("random:resnet10-slim", data="shapes", out=tmp_path / "r")
    score = scenes.score_detector(run, "segment-smoke", scenes=tmp_path, device="cpu")
    stored = json.loads((tmp_path / "r" / "scores.json").read_text())["segment-smoke"]
    assert stored["value"] == score.value and "box AP" in stored["more"]
    assert stored["data"] == "scenes"
