"""Tests with real images, which are skipped unless ANTIPODE_DATA contains them."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from antipode.data.loader import Loader, in_order
from antipode.data.sources.annotated import detection
from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.data.sources.packed import verify
from antipode.data.views.views import views

DATA = Path(os.environ.get("ANTIPODE_DATA", "/nonexistent"))
CIFAR = pytest.mark.skipif(
    not (DATA / "cifar-10-batches-py").is_dir(),
    reason="cifar-10-batches-py is not in ANTIPODE_DATA",
)
COCO = pytest.mark.skipif(
    not (DATA / "coco-mini").is_dir(), reason="coco-mini is not in ANTIPODE_DATA"
)


@CIFAR
def test_cifar10_is_torchvisions_cifar10():
    splits = load("cifar10", root=DATA)
    data = torchvision.datasets.CIFAR10(str(DATA), train=False)
    assert (len(splits.pretrain), len(splits.test)) == (50_000, 10_000)
    assert splits.classes == data.classes
    for index in (0, 7, 9_999):
        image, label = data[index]
        assert torch.equal(
            splits.test.images[index], torch.from_numpy(np.array(image)).permute(2, 0, 1)
        )
        assert splits.test.labels[index] == label
    pixels = splits.train.images.double() / 255
    assert torch.allclose(
        pixels.mean((0, 2, 3)), torch.tensor(splits.mean, dtype=torch.double), atol=1e-3
    )


@CIFAR
def test_an_epoch_of_cifar10_is_all_of_it():
    loader = Loader(
        load("cifar10", root=DATA).pretrain,
        views("simclr-cifar", size=32),
        batch=5000,
        epochs=1,
        seed=0,
    )
    ids = torch.cat([image_ids for _, _, _, _, image_ids in loader.resident()])
    assert torch.equal(ids.sort().values, torch.arange(50_000))


@COCO
def test_coco_photographs_are_what_pillow_reads():
    splits = load("coco", root=DATA / "coco-mini")
    assert (len(splits.train), len(splits.test), len(splits.classes)) == (24, 8, 80)
    assert splits.train.labels.shape == (24, 80) and (splits.train.labels == 1).any(1).sum() > 20
    for index, name in enumerate(splits.train.names):
        expected = np.array(Image.open(DATA / "coco-mini" / "images" / name).convert("RGB"))
        assert torch.equal(splits.train.read(index), torch.from_numpy(expected).permute(2, 0, 1))


@COCO
def test_coco_boxes_hold_their_masks():
    objects = detection("coco", "train", DATA / "coco-mini")
    for index in range(len(objects)):
        image, target = objects[index]
        assert target["masks"].shape[1:] == image.shape[1:]
        for box, mask, crowd in zip(
            target["boxes"], target["masks"], target["iscrowd"], strict=True
        ):
            rows, columns = mask.nonzero().unbind(1)
            if crowd or not len(rows):
                continue
            extent = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (extent - box).abs().max() <= 2


@COCO
@pytest.mark.parametrize(
    "settings", [{}, {"size": 256}, {"size": 256, "quality": 90}], ids=["bytes", "pixels", "jpeg"]
)
def test_photographs_in_a_folder_train_and_pack(tmp_path, settings):
    shutil.copytree(DATA / "coco-mini" / "images", tmp_path / "photos")
    name = f"folder:{tmp_path / 'photos'}"
    splits = load(name)
    home = pack(name, tmp_path / "packed", **settings)
    assert verify(home) == []
    after = load(f"packed:{home}")
    assert len(after.pretrain) == len(splits.pretrain) == 32 and after.size == 224
    make = views("mocov2", size=64)
    before, now = (
        Loader(s.pretrain, make, batch=16, epochs=1, seed=0, workers=workers).steps()
        for s, workers in ((splits, 0), (after, 2))
    )
    for (_, _, a), (_, _, b) in zip(before, now, strict=True):
        assert torch.equal(a.image_ids, b.image_ids)
        if not settings:
            assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
        else:  # the same crops of a reduced image, up to about a pixel
            assert all((x - y).abs().mean() < 0.5 for x, y in zip(a.views, b.views, strict=True))


@COCO
def test_photographs_in_order_are_those_of_take():
    source = load("coco", root=DATA / "coco-mini").test
    eval_view = views("eval", size=224)
    images = torch.cat([view for view, _ in in_order(source, eval_view, batch=3, workers=2)])
    assert torch.equal(images, eval_view(source.take(torch.arange(8))[0])[0])
    assert images.shape == (8, 3, 224, 224)
