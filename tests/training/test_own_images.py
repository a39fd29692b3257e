"""Your own images and networks: surprises are reported, and images may be moved later."""

import itertools
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import antipode
from antipode.cli import main

FLAGS = {"method": "simclr", "backbone": "resnet10-slim", "batch": 8, "quiet": True}
FIT = {"views.size": 16}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for at in range(16):
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(
            tmp_path / "photos" / f"{at}.png"
        )
    return tmp_path / "photos"


def trained(data, epochs=2):
    return antipode.pretrain(data=data, epochs=epochs, out="run", overrides=FIT, **FLAGS)


def test_a_folder_under_another_name_or_in_another_place_is_the_same_images(photos, tmp_path):
    trained("folder:photos")
    weights = (tmp_path / "run" / "backbone.safetensors").read_bytes()
    for name in (
        "folder:photos/",
        "folder:./photos",
        f"folder:{photos}",
        "folder:photos/../photos",
    ):
        with pytest.warns(UserWarning, match=f"are now read from {name}"):
            trained(name)
    shutil.copytree(photos, tmp_path / "other")
    # the images of the run are still in their place
    with pytest.raises(ValueError, match="started with another recipe"):
        trained("folder:other")
    photos.rename(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="are now read from folder:elsewhere"):
        trained("folder:elsewhere")
    assert (tmp_path / "run" / "backbone.safetensors").read_bytes() == weights


def output(call):
    """Return the text of all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return " ".join(str(warning.message) for warning in caught)


def test_images_that_are_much_enlarged_are_said_to_be(photos, tmp_path):
    ask = {"epochs": 1, "data": "folder:photos"} | FLAGS
    text = output(lambda: antipode.pretrain(out="large", overrides={"views.size": 32}, **ask))
    assert "images of 16 px are enlarged to views of 32 px, which takes 4 times as long" in text
    assert 'use overrides={"views.size": 16, "backbone.stem": "small"}' in text
    assert "enlarged" not in output(
        lambda: antipode.pretrain(out="small", overrides={"views.size": 24}, **ask)
    )


def test_images_of_other_channels_train_and_what_they_do_without_is_said(tmp_path):
    images = torch.randint(
        0, 256, (16, 5, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    ask = {
        "data": TensorDataset(images),
        "epochs": 1,
        "out": tmp_path / "run",
        "overrides": FIT,
    } | FLAGS
    assert "the images have 5 channels: the views leave out saturation" in output(
        lambda: antipode.pretrain(**ask)
    )
    assert (tmp_path / "run" / "backbone.safetensors").exists()


class Fixed(nn.Module):
    """A network for images of one size only, such as a vision transformer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 32)

    def forward(self, x):
        assert x.shape[-1] == 32, f"input of {x.shape[-1]} does not match 32"
        return self.layer(x).flatten(1)


def test_a_network_of_fixed_size_refuses_other_views_before_anything_is_written(photos, tmp_path):
    ask = {"data": "folder:photos", "epochs": 1} | FLAGS | {"backbone": Fixed()}
    with pytest.raises(
        ValueError,
        match="does not accept 16 px images of 3 channels: input of 16 does not match 32",
    ):
        antipode.pretrain(out="run", overrides=FIT, **ask)
    assert not (tmp_path / "run" / "recipe.json").exists()
    with pytest.warns(UserWarning, match="enlarged"):
        antipode.pretrain(out="run", overrides={"views.size": 32}, **ask)


def test_test_images_that_cannot_be_read_are_counted_in_each_split_and_score(tmp_path, monkeypatch):
    """Also if the features are read from the cache, so that the files are not opened again."""
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    for split, kind, at in itertools.product(("train", "val"), "ab", range(8)):
        file = tmp_path / "photos" / split / kind / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
        if at == 7:
            file.write_bytes(file.read_bytes()[:200])
    run = trained("folder:photos", epochs=1)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            score = antipode.evaluate(run, ["linear-fast"])["linear-fast"]
        assert score.more["unreadable train images"] == 2
        assert score.more["unreadable test images"] == 2
        text = " ".join(str(warning.message) for warning in caught)
        assert (
            "2 of the 16 test images of folder:photos cannot be read: "
            "the next readable image is scored in their place"
        ) in text
    antipode.embed(run, "folder:photos", out=tmp_path / "x.npz")
    names = np.load(tmp_path / "x.npz")["names"].tolist()
    # left out of the features, in both splits
    assert "a/7.png" not in names and names.count("b/0.png") == 2
    # a relative path; the page shows another one
    page = antipode.report("run").read_text()
    assert "4 images could not be used" in page


def test_a_report_of_a_run_in_a_relative_folder_has_the_pictures_of_datasets_of_ones_own(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    images = torch.randint(
        0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    data = TensorDataset(images, torch.arange(40) % 2)
    run = antipode.pretrain(data=data, epochs=1, out="run", overrides=FIT, **FLAGS)
    assert "passed in Python" not in antipode.report(run).read_text()


def test_a_network_in_eval_mode_is_trained_in_train_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = {"data": "digits", "epochs": 1, "batch": 500, "quiet": True, "method": "byol"}
    ask["overrides"] = {"method.dim": 8, "method.hidden": 16}
    first = antipode.pretrain(backbone="resnet10-slim", out="first", **ask)
    again = antipode.load_backbone(first)
    before = again.bn1.running_mean.clone()
    run = antipode.pretrain(backbone=again, out="again", **ask)
    assert not torch.equal(antipode.load_backbone(run).bn1.running_mean, before)


def test_a_run_goes_on_with_its_own_network_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = {
        "method": "simclr",
        "data": "digits",
        "batch": 500,
        "out": "run",
        "quiet": True,
        "epochs": 2,
    }

    def layers(width):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width))

    antipode.pretrain(backbone=layers(8), **ask)
    with pytest.raises(
        ValueError, match=r"the checkpoint belongs to another network \(size mismatch"
    ):
        antipode.pretrain(backbone=layers(9), **ask)
    frozen = layers(8)
    frozen[1].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="different weights frozen"):
        antipode.pretrain(backbone=frozen, **ask)


class Pixels(nn.Module):
    """A network for digits of 8 px only."""

    def __init__(self, width=None):
        super().__init__()
        self.layer = nn.Linear(64, 12)
        if width:
            self.width = width

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("width", [None, 12])
def test_a_network_for_one_size_is_tried_with_that_of_the_views(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = {
        "method": "simclr",
        "data": "digits",
        "epochs": 1,
        "batch": 500,
        "out": "run",
        "quiet": True,
    }
    run = antipode.pretrain(backbone=Pixels(width), **ask)
    assert antipode.evaluate(run, ["knn"])["knn"].value > 20
    with pytest.raises(ValueError, match="takes images of 1 channels, but shapes has 3"):
        antipode.evaluate(run, ["knn"], data="shapes")
    if width:
        # the network has no convolution that tells the number of channels, which is 1
        assert antipode.export(run, "onnx", tmp_path / "pixels.onnx").exists()
    assert antipode.embed(run, "digits").x.shape[1] == 12 and antipode.analyse(run, ["spectrum"])
    with pytest.raises(ValueError, match="does not accept 16 px images of 1 channels"):
        antipode.pretrain(
            backbone=Pixels(width), overrides={"views.size": 16}, **ask | {"out": "other"}
        )


def test_a_network_that_states_its_width_needs_no_size_for_a_loop_of_ones_own():
    assert antipode.build("dcl", Pixels(12)).backbone.width == 12
    with pytest.raises(ValueError, match="does not accept 224 px images"):
        antipode.build("dcl", Pixels())


def test_a_folder_of_images_in_the_place_of_a_recipe_is_answered_with_what_to_write(photos, capsys):
    with pytest.raises(SystemExit) as end:
        main(["pretrain", "./photos"])
    assert end.value.code == 2
    assert "if photos holds images, use --data folder:photos" in capsys.readouterr().err


def test_the_version_can_be_asked_for(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out.strip()) == (0, antipode.__version__)


def test_alignment_and_uniformity_count_a_stand_in_once(photos):
    (photos / "3.png").write_bytes((photos / "3.png").read_bytes()[:200])
    with pytest.warns(UserWarning, match="is replaced by the next"):
        run = trained("folder:photos", 1)
        scores = antipode.evaluate(run, ["alignment-uniformity", "retrieval"])
    assert {score.n for score in scores.values()} == {15}
