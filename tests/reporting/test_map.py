"""Tests of the embedding map: places, neighbours, classes, sheets, and which images it has."""

import base64
import io
import json
import math
from dataclasses import replace

import pytest
import torch
from PIL import Image as Pillow

from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.evaluation import layout
from antipode.evaluation.duplicates import Image
from antipode.evaluation.features import extract
from antipode.evaluation.layout import follow, neighbours, principal
from antipode.evaluation.layout import places as placed_by_tsne
from antipode.reporting import embedding_map as module
from antipode.reporting import pictures
from antipode.reporting.embedding_map import coloured, embedding_map
from tests.evaluation.classes import Net, bright, task


def clusters(n, classes=2, width=8, seed=0):
    """Return features (N,width) of separate clusters, and labels (N,)."""
    labels = torch.arange(n) % classes
    noise = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    return noise + 8 * torch.nn.functional.one_hot(labels, width), labels


def placed(n, tests=0):
    return [Image("test" if at < tests else "train", at) for at in range(n)]


def places(flat):
    return torch.tensor(flat, dtype=torch.float).view(-1, 2)


@pytest.mark.parametrize("landmarks", [1000, 40])
def test_the_map_is_seeded_and_separates_what_is_apart(landmarks, monkeypatch):
    monkeypatch.setattr(module, "LANDMARKS", landmarks)
    x, labels = clusters(90)
    found = embedding_map(x, placed(90, 30), labels, ["a", "b"], 3)
    assert found == embedding_map(x, placed(90, 30), labels, ["a", "b"], 3)
    assert found["tests"] == 30 and found["classes"] == ["a", "b"] and found["sheets"] == []
    for flat in found["layouts"].values():
        where = places(flat)
        assert where.min() >= 0 and where.max() <= found["scale"]
        near = torch.cdist(where, where).fill_diagonal_(math.inf).argmin(1)
        assert (labels[near] == labels).float().mean() > 0.95


def test_few_images_get_a_map_without_tsne():
    assert list(embedding_map(torch.randn(6, 3), placed(6), None, None, 0)["layouts"]) == ["PCA"]


def test_principal_components_are_those_of_the_singular_value_decomposition():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    found = principal(x, 4)
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    assert torch.allclose(found.abs(), (u * s)[:, :4].abs(), atol=1e-4)


def test_an_image_beside_a_landmark_is_placed_there():
    z = torch.nn.functional.normalize(torch.eye(6).repeat(2, 1) + 1e-3)
    spots = torch.tensor([[0.0, 0.0], [9, 0], [0, 9], [9, 9], [5, 5], [2, 7]])
    found = follow(z, torch.arange(6), spots, 0)
    assert torch.equal(found[:6], spots)
    assert (found[6:] - spots).abs().max() < 0.2


@pytest.mark.parametrize("bank", [1000, 20])
def test_neighbours_are_the_nearest_of_the_bank_and_never_the_image_itself(bank, monkeypatch):
    monkeypatch.setitem(module.BANK, "cpu", bank)
    z = torch.nn.functional.normalize(
        torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    )
    found, cosines = neighbours(z, 0)
    assert torch.allclose(cosines, (z[:, None] * z[found]).sum(2), atol=1e-5)
    candidates = sorted(set(found.flatten().tolist()))
    assert found.shape == (60, 6) and len(candidates) <= bank
    for at in range(60):
        assert at not in found[at].tolist()
        if bank >= 60:
            others = z @ z[at]
            others[at] = -2
            assert found[at].tolist() == others.topk(6).indices.tolist()


@pytest.mark.parametrize("landmarks", [1000, 40])
def test_places_separate_what_is_apart_and_need_no_unit_length(landmarks, monkeypatch):
    monkeypatch.setattr(layout, "LANDMARKS", landmarks)
    x, labels = clusters(90)
    where = placed_by_tsne(x, 3)
    assert torch.equal(where, placed_by_tsne(4 * x, 3))
    near = torch.cdist(where, where).fill_diagonal_(math.inf).argmin(1)
    assert (labels[near] == labels).float().mean() > 0.95


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_few_images_have_places_and_neighbours(count):
    x = torch.randn(count, 3)
    assert placed_by_tsne(x, 0).shape == (count, 2)
    found, _ = neighbours(x, 0)
    assert found.shape == (count, count - 1)


def test_classes_are_numbered_by_frequency_and_images_without_a_label_have_none():
    numbers, names = coloured(torch.tensor([5, 2, 5, -1, 5, 2, 0]), None)
    assert names == ["class 5", "class 2", "class 0"] and numbers == [0, 1, 0, -1, 0, 1, 2]
    assert coloured(None, None) == (None, []) and coloured(torch.tensor([-1]), None) == (None, [])


def test_every_image_has_its_thumbnail_on_a_sheet(monkeypatch):
    monkeypatch.setattr(module, "PER_SHEET", 8)
    monkeypatch.setattr(module, "COLUMNS", 4)
    levels = torch.arange(11) * 20

    def read(positions):
        return [torch.full((3, 40, 40), int(levels[at]), dtype=torch.uint8) for at in positions]

    found = embedding_map(torch.randn(11, 4), placed(11), None, None, 0, read=read)
    sheets = [
        Pillow.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) for uri in found["sheets"]
    ]
    assert [sheet.size for sheet in sheets] == [(128, 64), (128, 32)] and found["side"] == 32
    for at in range(11):
        spot = at % 8
        value = sheets[at // 8].getpixel((32 * (spot % 4) + 16, 32 * (spot // 4) + 16))
        assert abs(value[0] - int(levels[at])) < 6


def test_the_map_has_all_images_if_their_features_are_stored(tmp_path, monkeypatch):
    splits = bright(train=64, test=40)
    made = task(splits, Net(), cache=tmp_path)
    queries, bank = torch.zeros(40, 16), torch.zeros(64, 16)
    images, x = pictures.mapped(made, queries, bank, 0)
    assert len(images) == len(x) == 104 and not x.any()  # nothing is stored: those given
    for source in (splits.train, splits.test):
        extract(made.backbone, made.eval_view, source, cache=tmp_path)
    images, x = pictures.mapped(made, queries, bank, 0)
    assert [image.split for image in images] == ["test"] * 40 + ["train"] * 64 and x.any()
    monkeypatch.setitem(pictures.MAPPED, True, 30)
    some, y = pictures.mapped(made, queries, bank, 0)
    assert len(some) == 30 and {image.split for image in some} == {"train", "test"}
    assert torch.equal(y, x[[images.index(image) for image in some]])


def test_sampled_images_are_those_whose_features_were_computed():
    values = torch.arange(50).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).to(torch.uint8)
    source = Memory(values)
    splits = Splits("x", source, source, None, 8, (0.5,), (0.25,))
    queries, bank, _ = pictures.sample(splits, 20, 3)
    images = pictures._sampled(splits, len(queries), len(bank), 3)
    taken = torch.cat([queries.images, bank.images])[:, 0, 0, 0].tolist()
    assert [image.at for image in images] == taken
    test = replace(splits, test=Memory(values + 100))
    queries, bank, _ = pictures.sample(test, 20, 3)
    images = pictures._sampled(test, len(queries), len(bank), 3)
    taken = torch.cat([queries.images, bank.images])[:, 0, 0, 0].tolist()
    assert [image.at + 100 * (image.split == "test") for image in images] == taken


def test_a_map_of_many_images_stays_small_as_json():
    x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    found = embedding_map(x, placed(3000, 500), torch.arange(3000) % 10, None, 0)
    assert len(json.dumps(found, separators=(",", ":"))) / 3000 < 75  # bytes for each image
