"""Tests of decoding at a reduced size: same boxes, fewer pixels decoded, a stated difference."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipode.data import reduced
from antipode.data.loader import Loader
from antipode.data.sources.folder import tree
from antipode.data.views.views import views


def photo(seed, width, height):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve images: JPEG of 203 x 150 px, and one PNG and one small JPEG that are not reduced."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(10):
        photo(number, 203, 150 + number).save(root / f"{number:02d}.jpg", quality=92)
    photo(10, 200, 150).save(root / "10.png")
    photo(11, 40, 32).save(root / "11.jpg")
    return tree(root)


def crops(source, policy="simclr", size=24, **settings):
    values = {"batch": 6, "epochs": 2, "seed": 3, "workers": 0} | settings
    batches = list(Loader(source, views(policy, size=size), **values).decoded())
    images = torch.cat([torch.stack(crop, 1) for _, _, crop, _, _ in batches]).int()
    return images, torch.cat([ids for *_, ids in batches])


@pytest.mark.parametrize("policy", ["simclr", "byol"])
def test_reduced_crops_are_those_of_the_full_image_up_to_a_smoother_filter(photos, policy):
    """A box or a flip that is wrong would change a smooth picture by dozens of levels."""
    full, ids = crops(photos, policy)
    less, same_ids = crops(photos, policy, reduced=True)
    gap = (full - less).abs().double()
    assert torch.equal(ids, same_ids)
    assert gap.mean() < 1 and gap.max() <= 16
    assert (gap.flatten(1).amax(1) > 0).double().mean() > 0.7  # most images were reduced
    assert not gap[(ids == 10) | (ids == 11)].any()  # the PNG and the small image were not


def test_workers_and_restarts_change_no_bit(photos):
    alone, _ = crops(photos, reduced=True)
    assert torch.equal(crops(photos, reduced=True, workers=2)[0], alone)


@pytest.mark.parametrize(
    ("boxes", "scale"),
    [([(48, 60)], 2), ([(47, 60)], 1), ([(500, 193), (48, 48)], 2), ([(500, 193)], 8)],
)
def test_every_box_keeps_the_pixels_of_its_view(boxes, scale):
    table = np.array([(0, 0, *box, 0, 0) for box in boxes], np.int32)
    assert reduced._scale(table, [24] * len(boxes)) == scale


@pytest.mark.parametrize("damage", ["truncated", "empty profile", "short JFIF"])
def test_a_file_that_pillow_refuses_is_left_to_the_full_decoder(damage):
    file = io.BytesIO()
    photo(0, 200, 150).save(file, "JPEG")
    whole = file.getvalue()
    jfif = 4 + int.from_bytes(whole[4:6], "big")  # where the first segment ends
    damaged = {
        "truncated": whole[:2000],
        "empty profile": whole[:jfif] + b"\xff\xe2\x00\x0eICC_PROFILE\0" + whole[jfif:],
        "short JFIF": whole[:2] + b"\xff\xe0\x00\x07JFIF\0" + whole[jfif:],
    }
    data = np.frombuffer(damaged[damage], np.uint8)
    box = np.array([(0, 0, 100, 100, 0, 0)], np.int32)
    out = [torch.zeros(1, 3, 24, 24, dtype=torch.uint8)]
    assert not reduced._cut(data, 2, box, views("linear", size=24), 0, out)


@pytest.mark.slow
@pytest.mark.skipif("ANTIPODE_DATA" not in os.environ, reason="needs ANTIPODE_DATA")
def test_the_difference_on_photographs():
    """The stated bound: on average 2 grey levels of 255, and 5 in any single crop."""
    root = Path(os.environ["ANTIPODE_DATA"], "coco-mini", "images")
    if not root.is_dir():
        pytest.skip("needs coco-mini")
    source = tree(root)
    full, _ = crops(source, size=96, batch=16)
    less, _ = crops(source, size=96, batch=16, reduced=True)
    gap = (full - less).abs().double().flatten(2).mean(2)
    assert 0.1 < gap.mean() < 2 and gap.max() < 5
